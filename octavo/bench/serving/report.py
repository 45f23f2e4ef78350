"""A run in files: the result as the other kinds of `octavo bench` write theirs, a trace for the simulator, and a page with plots."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from octavo.bench.report import versions
from octavo.bench.serving.dataset import trace_line
from octavo.bench.serving.measure import Server
from octavo.bench.serving.page import page
from octavo.bench.serving.run import Run


def result_of(command: str, server: Server, name: str, found: Mapping[str, Any], facts: Mapping[str, str]) -> dict[str, Any]:
    """The device is the server's, which a client cannot know: `facts` may tell it, and more."""
    address = server.address
    return {
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": f"server at {address.name}",
        "versions": versions(),
        "flags": {"model": server.route.model, "endpoint": server.route.endpoint},
        "start": {},
        "kind": "serve",
        "checks": {},
        "results": {name: dict(found)},
        **facts,
    }


def details(run: Run) -> list[dict[str, Any]]:
    """Each request's own figures, in the order of their sending; seconds from the run's begin."""
    ordered = sorted(run.outcomes, key=lambda one: one.sent_s)
    return [
        {
            "sent_s": one.sent_s - run.begin_s, "ended_s": one.ended_s - run.begin_s, "status": one.status, "error": one.error,
            "input_tokens": one.num_prompt, "cached_tokens": one.num_cached, "output_tokens": one.num_output,
            "ttft_s": one.ttft_s if one.times_s else None, "itl_s": one.gaps_s,
        }
        for one in ordered
    ]  # fmt: skip


def write_trace(path: Path, run: Run) -> None:
    """What was sent and answered, for `octavo simulate --trace`."""
    good = sorted(((arrival, one) for arrival, one in run.sent if one.error is None), key=lambda pair: pair[1].sent_s)
    lines = [trace_line(arrival, one.sent_s - run.begin_s, max(1, one.num_prompt), max(1, one.num_output)) for arrival, one in good]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def write_page(path: Path, result: Mapping[str, Any], run: Run) -> None:
    path.write_text(page(result, run), encoding="utf-8")

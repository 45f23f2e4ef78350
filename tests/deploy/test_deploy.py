"""What is shipped for Grafana and Prometheus uses metrics that are there, and shows those that matter."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml

from octavo.config.resolved import Resolved
from octavo.core.kv.cache import KVCache
from octavo.core.kv.layout import lay_out
from octavo.core.kv.specs import PagedSpec
from octavo.core.scheduler import Scheduler
from octavo.engine.link import stats_from
from octavo.engine.loop import EngineLoop
from octavo.metrics import FrontMetrics

DEPLOY = Path(__file__).parents[2] / "deploy"
SHOWN = {
    "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions", "prefix_cache_queries", "prefix_cache_hits",
    "prompt_tokens", "generation_tokens", "time_to_first_token_seconds", "inter_token_latency_seconds", "time_per_output_token_seconds",
    "e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds",
    "batch_size", "iteration_tokens_total", "oom_events", "cache_evictions", "spec_decode_num_drafts", "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens", "request_success", "startup_seconds",
}  # fmt: skip


def exported() -> set[str]:
    """Every name that a query may use: of a histogram its three."""
    settings = Resolved()
    cache = KVCache(lay_out([PagedSpec(1, 8)], settings.block_size, 1 << 20), True)
    metrics = FrontMetrics("m", 64)
    loop = EngineLoop(Scheduler(settings, cache), None, None, lambda: 0.0)  # pyright: ignore[reportArgumentType]  # it runs no step
    metrics.engines = [stats_from(loop.stats())]
    ends = {"gauge": ("",), "counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    return {family.name.removeprefix("octavo:") + end for family in metrics.collect() for end in ends[family.type]}


def grafana() -> dict[str, Any]:
    return json.loads((DEPLOY / "grafana.json").read_text(encoding="utf-8"))


def queries() -> list[str]:
    return [target["expr"] for panel in grafana()["panels"] for target in panel.get("targets", ())]


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DEPLOY / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    return group["rules"]


def names(texts: list[str]) -> set[str]:
    return {name for text in texts for name in re.findall(r"octavo:(\w+)", text)}


def test_every_name_in_use_is_exported() -> None:
    variables = [one["definition"] for one in grafana()["templating"]["list"] if one["type"] == "query"]
    assert names([*queries(), *variables, *(rule["expr"] for rule in rules())]) - exported() == set()


def test_what_matters_is_shown() -> None:
    shown = names(queries())
    bare = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in shown} | shown
    assert SHOWN - bare == set()


def test_queries_are_whole() -> None:
    for text in [*queries(), *(rule["expr"] for rule in rules())]:
        assert text.count("(") == text.count(")"), text
        assert "vllm" not in text


def test_the_dashboard_is_what_its_source_says() -> None:
    spec = importlib.util.spec_from_file_location("grafana", DEPLOY / "grafana.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["grafana"] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
        assert module.dashboard() == grafana(), "make docs"
    finally:
        del sys.modules["grafana"]


def test_panels_have_places_of_their_own() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in grafana()["panels"]:
        place = panel["gridPos"]
        own = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not own & cells, panel["title"]
        assert max(x for x, _ in own) < 24
        cells |= own
    numbers = [panel["id"] for panel in grafana()["panels"]]
    assert len(numbers) == len(set(numbers))


def test_every_alert_says_what_is_wrong_and_what_helps() -> None:
    assert len({rule["alert"] for rule in rules()}) == len(rules()) >= 10
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert set(rule["annotations"]) == {"summary", "description"}

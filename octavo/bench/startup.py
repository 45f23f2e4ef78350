"""Starts of a model, each in a process of its own: seconds to the first token and where they went, and how fast each level is then.

An empty start has a new cache folder for Octavo, Triton and CUDA. A filled one has a folder in which the same settings have started
before. The pages of files that the system keeps are not dropped: they are warm, but for those that nobody has read yet.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal, Protocol

from octavo import env

Caches = Literal["empty", "filled"]
CACHE_FOLDERS = {"OCTAVO_CACHE_ROOT": "octavo", "TRITON_CACHE_DIR": "triton", "CUDA_CACHE_PATH": "cuda"}
FLOOR = "import torch; torch.cuda.is_available() and torch.zeros(1, device='cuda')"
SHOWN_S = 0.01  # stages that take less in every start have no column


@dataclass(frozen=True)
class Start:
    """One start of a level: seconds by stage from the process's beginning to the first token, and one stream after it."""

    level: int
    caches: Caches
    stages: Mapping[str, float] = field(default_factory=dict[str, float])
    meanwhile: Mapping[str, float] = field(default_factory=dict[str, float])  # what ran beside the stages
    ms_per_token: float = 0.0
    differing: Sequence[Mapping[str, Any]] = ()  # from the first start's text (`octavo.bench.ties.Difference`)
    told: Mapping[str, Any] | None = None  # that text
    failed: str = ""  # why there was no first token

    @property
    def first_token_s(self) -> float:
        return sum(self.stages.values())


class Launch(Protocol):
    """Runs python with these words and further variables; gives its last line. Raises `StartFailed`."""

    def __call__(self, words: Sequence[str], variables: Mapping[str, str]) -> str: ...


class StartFailed(RuntimeError):
    """The process ended without a first token; the text is the last line that it wrote."""


def launch(words: Sequence[str], variables: Mapping[str, str]) -> str:
    done = subprocess.run([sys.executable, *words], env=env.with_settings(**variables), capture_output=True, text=True, check=False)
    if done.returncode:
        raise StartFailed(_last_line(done.stderr) or f"exit code {done.returncode}")
    return _last_line(done.stdout)


@dataclass(frozen=True)
class Bench:
    """What is started. Cache folders are made in `folder`."""

    flags: Mapping[str, Any]
    output_len: int
    folder: Path
    launch: Launch = launch
    clock: Callable[[], float] = time.monotonic

    def floor_s(self) -> float:
        """Seconds of a process that imports torch, and takes the GPU where there is one: no start can be sooner."""
        begin_s = self.clock()
        self.launch(["-c", FLOOR], {})
        return self.clock() - begin_s

    def start(self, level: int, caches: Caches, told: Mapping[str, Any] | None = None) -> Start:
        """The first empty start of a level fills the folder that its filled ones find. Its text is compared with what was `told`."""
        task = {"flags": {**self.flags, "optimization_level": level}, "output_len": self.output_len, "told": told}
        filled = self.folder / f"level{level}"
        place = Path(mkdtemp(dir=self.folder)) if caches == "empty" and filled.exists() else filled
        place.mkdir(exist_ok=True)
        variables = {name: str(place / part) for name, part in CACHE_FOLDERS.items()}
        begin_s = self.clock()
        try:
            found = json.loads(self.launch(["-m", "octavo.bench.one_start", json.dumps(task)], variables))
        except StartFailed as error:
            return Start(level, caches, failed=str(error))
        stages = stages_of(begin_s, found["moments"], found["timeline"])
        return Start(level, caches, stages, dict(found["meanwhile"]), found["ms_per_token"], found["differing"], found["told"])


def stages_of(begin_s: float, moments: Mapping[str, float], timeline: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Seconds by stage from `begin_s`, when the process was begun, to its first token: together they are all of that time."""
    inside: dict[str, float] = {}
    for name, seconds in timeline:
        inside[name] = inside.get(name, 0.0) + seconds
    return {
        "python": moments["begin"] - begin_s,
        "import octavo": moments["imported"] - moments["begin"],
        **inside,
        "other": moments["ready"] - moments["imported"] - sum(inside.values()),
        "first token": moments["first token"] - moments["ready"],
    }


def run(bench: Bench, levels: Sequence[int], caches: Sequence[Caches], repeat: int) -> Iterator[float | Start]:
    """The floor and every start, `repeat` times in turn, so that a slow minute of the machine meets all of them."""
    if caches[0] == "filled":
        for level in levels:
            bench.start(level, "empty")  # fills the folder and is not counted
    told = None
    for _ in range(repeat):
        yield bench.floor_s()
        for level in levels:
            for kind in caches:
                start = bench.start(level, kind, told)
                told = told or start.told
                yield start


def summarize(floors: Sequence[float], starts: Sequence[Start]) -> dict[str, Any]:
    """Medians by level and caches, and how many tokens are not those of the first start, of which most may be ties."""
    groups: dict[tuple[int, Caches], list[Start]] = {}
    for start in starts:
        groups.setdefault((start.level, start.caches), []).append(start)
    return {
        "floor_s": list(floors),
        "starts": [_summary(level, caches, found) for (level, caches), found in groups.items()],
    }


def _summary(level: int, caches: Caches, starts: Sequence[Start]) -> dict[str, Any]:
    head = {"level": level, "caches": caches, "runs": len(starts)}
    if failed := next((start.failed for start in starts if start.failed), ""):
        return {**head, "failed": failed}
    return {
        **head,
        "first_token_s": [start.first_token_s for start in starts],
        "stages_s": _medians([start.stages for start in starts]),
        "meanwhile_s": _medians([start.meanwhile for start in starts]),
        "ms_per_token": [start.ms_per_token for start in starts],
        "output_tokens": max(len((start.told or {}).get("token_ids", ())) for start in starts),
        "ties": max(sum(one["tie"] for one in start.differing) for start in starts),
        "differing": max(sum(not one["tie"] for one in start.differing) for start in starts),
    }


def _medians(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: statistics.median(one.get(name, 0.0) for one in found) for name in dict.fromkeys(name for one in found for name in one)}


def as_table(result: Mapping[str, Any]) -> str:
    """Medians, with least and most of the starts in brackets; below, where the seconds went."""
    rows = [row for row in result["starts"] if "failed" not in row]
    lines = ["| level | caches | start to first token, s | ms a token | greedy text |", "| --- " * 5 + "|"]
    lines += [_line(_cells(row)) for row in result["starts"]]
    lines += ["", f"A process that only imports torch, and takes the GPU where there is one: {_spread(result['floor_s'], 2)} s."]
    names = [name for name in dict.fromkeys(name for row in rows for name in row["stages_s"]) if _longest_s(rows, name) >= SHOWN_S]
    if names:
        lines += ["", "Seconds by stage, medians:", "", _line(["level", "caches", *names]), "| --- " * (2 + len(names)) + "|"]
        lines += [_line([f"-O{row['level']}", row["caches"], *(f"{row['stages_s'].get(name, 0.0):.2f}" for name in names)]) for row in rows]
    return "\n".join(lines)


def _cells(row: Mapping[str, Any]) -> list[str]:
    head = [f"-O{row['level']}", row["caches"]]
    if "failed" in row:
        return [*head, f"failed: {row['failed']}", "", ""]
    text = "equal" if not row["ties"] else f"equal but for ties in {row['ties']} of {row['output_tokens']} tokens"
    if row["differing"]:
        text = f"differs in {row['differing']} of {row['output_tokens']} tokens"
    return [*head, _spread(row["first_token_s"], 2), _spread(row["ms_per_token"], 2), text]


def _longest_s(rows: Iterable[Mapping[str, Any]], name: str) -> float:
    return max(row["stages_s"].get(name, 0.0) for row in rows)


def _spread(values: Sequence[float], digits: int) -> str:
    middle = f"{statistics.median(values):.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"

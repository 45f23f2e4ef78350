"""`octavo bench startup`: how soon a model gives its first token, where the seconds go, and how fast each level is after it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

from octavo.cli.flags import Settings
from octavo.config.engine import ENGINE_TOPICS
from octavo.config.fields import ConfigError, Flag, at_least


@dataclass(frozen=True)
class StartupOptions:
    """Which starts are measured, and where the result goes."""

    levels: Annotated[tuple[int, ...], Flag("levels (-O) to start at; the text of each is compared with the first's")] = (0, 1, 2, 3)
    caches: Annotated[
        tuple[Literal["empty", "filled"], ...],
        Flag("empty: a new cache folder for Octavo, Triton and CUDA; filled: one in which the same has started before"),
    ] = ("empty", "filled")
    repeat: Annotated[int, Flag("number of starts of each level and kind of caches, in turn; the table has their median")] = 3
    output_len: Annotated[int, Flag("tokens that one stream makes after the start, for speed and text")] = 64
    output_json: Annotated[str | None, Flag("also write every figure to this file")] = None

    def __post_init__(self) -> None:
        if not self.levels or any(not 0 <= level <= 3 for level in self.levels):
            raise ConfigError("levels", self.levels, "use some of 0 1 2 3")
        if not self.caches:
            raise ConfigError("caches", self.caches, "use empty, filled or both")
        at_least("repeat", self.repeat, 1)
        at_least("output_len", self.output_len, 1)


OPTIONS = StartupOptions
TOPICS = ENGINE_TOPICS


def run(settings: Settings) -> int:
    from octavo.bench import startup
    from octavo.bench.report import circumstances

    options: StartupOptions = settings.topic(StartupOptions)
    settings.engine()
    flags = {**settings.engine_flags(), "skip_tokenizer_init": True}
    if "optimization_level" in flags:
        raise ConfigError("optimization_level", flags["optimization_level"], "--levels says here which levels are started")
    floors: list[float] = []
    starts: list[startup.Start] = []
    with TemporaryDirectory(prefix="octavo-startup-") as folder:
        bench = startup.Bench(flags, options.output_len, Path(folder))
        levels, caches = tuple(dict.fromkeys(options.levels)), tuple(dict.fromkeys(options.caches))
        for found in startup.run(bench, levels, caches, options.repeat):
            if isinstance(found, startup.Start):
                starts.append(found)
                print(_told(found), file=sys.stderr)
            else:
                floors.append(found)
    result = startup.summarize(floors, starts)
    head = {**circumstances(sys.argv[1:]), "flags": flags, "kind": "startup"}  # imports torch, so only when all is measured
    print(startup.as_table(result))
    if options.output_json:
        Path(options.output_json).write_text(json.dumps({**head, "results": result}) + "\n", encoding="utf-8")
    return 1 if any("failed" in row for row in result["starts"]) else 0


def _told(start: Any) -> str:
    said = f"failed: {start.failed}" if start.failed else f"{start.first_token_s:.2f} s, then {start.ms_per_token:.2f} ms a token"
    return f"-O{start.level}, {start.caches} caches: {said}"

"""`octavo bench validate`: how near the simulator is to this machine, and whether a target for latencies holds."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from octavo.cli.flags import CommandLineError, Settings
from octavo.cli.plan import read_config
from octavo.config.architecture import Architecture
from octavo.config.engine import ENGINE_TOPICS
from octavo.config.fields import ConfigError, Flag


@dataclass(frozen=True)
class ValidateOptions:
    """What is played, and where the result goes."""

    duration: Annotated[float, Flag("seconds in which the requests of each load arrive")] = 25.0
    target: Annotated[float, Flag("milliseconds between tokens that the loads with a target are to hold, for 99 of 100 gaps")] = 40.0
    only_mixed: Annotated[bool, Flag("play only the loads of long requests among short ones, by a fixed budget and by the target")] = False
    own_time: Annotated[bool, Flag("count the seconds that this process works instead of a clock's, on a machine that others use too")] = (
        False
    )
    replayed: Annotated[str | None, Flag("play nothing; fit and judge again what an earlier run wrote with --output-json")] = None
    output_json: Annotated[str | None, Flag("write what was played, with every step, and the judgement to this file")] = None

    def __post_init__(self) -> None:
        for name in ("duration", "target"):
            if getattr(self, name) <= 0:
                raise ConfigError(name, getattr(self, name), "it must be greater than 0")


OPTIONS = ValidateOptions
TOPICS = ENGINE_TOPICS


def run(settings: Settings) -> int:
    from octavo.bench import validate

    options: ValidateOptions = settings.topic(ValidateOptions)
    if options.replayed:
        data = _read(options.replayed)
        arch = Architecture.from_config(read_config(settings.engine().model))
        subject, played = validate.from_data(arch, data["results"])
    else:
        data, subject, played = _play(options, settings)
    rows = validate.judge(subject, played)
    print("measured, simulated (error); times in milliseconds\n\n" + validate.as_table(rows))
    print("\n".join(["", *validate.held(played)]))
    _write(options, {**data, "judged": rows})
    return 0


def _play(options: ValidateOptions, settings: Settings) -> tuple[dict[str, Any], Any, Any]:
    from octavo.bench import validate
    from octavo.bench.cost import Subject
    from octavo.bench.replay import OwnTime
    from octavo.bench.report import circumstances
    from octavo.llm import LLM

    flags = {**settings.engine_flags(), "skip_tokenizer_init": True}
    subject = Subject.of(flags)
    llm = LLM(**flags)
    if options.own_time:
        llm.inside[0].clock = OwnTime()
    head = {**circumstances(sys.argv[1:]), "flags": flags, "kind": "validate", "own_time": options.own_time}

    def told(played: list[validate.Played]) -> None:
        print(f"{played[-1].point.name}: {played[-1].figures['seconds']:.1f} s", file=sys.stderr)
        _write(options, {**head, "results": validate.to_data(subject, played)})  # a run that is cut short leaves what it has

    bench = validate.Bench(llm, subject, llm.info["vocab_size"], told)
    validate.run(bench, options.duration, options.target / 1000, options.only_mixed)
    llm.close()
    return {**head, "results": validate.to_data(subject, bench.played)}, subject, bench.played


def _write(options: ValidateOptions, data: dict[str, Any]) -> None:
    if options.output_json:
        Path(options.output_json).write_text(json.dumps(data) + "\n", encoding="utf-8")


def _read(path: str) -> dict[str, Any]:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CommandLineError(f"--replayed {path} cannot be read: {error}") from None

"""`octavo bench knobs`: moves one flag at a time on this machine and shows what each does."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from octavo.cli.flags import Settings
from octavo.cli.plan import read_config
from octavo.config.engine import ENGINE_TOPICS
from octavo.config.fields import ConfigError, Flag

NAMES = ("chunked prefill", "max_num_seqs", "prefix cache", "graphs", "KV dtype", "block size", "memory share")


@dataclass(frozen=True)
class KnobsOptions:
    """What is turned, and where the result goes."""

    only: Annotated[tuple[str, ...], Flag(f"some of them: {', '.join(NAMES)}; default: all")] = ()
    own_time: Annotated[bool, Flag("count the seconds that this process works instead of a clock's, on a machine that others use too")] = (
        False
    )
    output_json: Annotated[str | None, Flag("write every figure to this file")] = None
    output_html: Annotated[str | None, Flag("write a page with tables and plots to this file")] = None

    def __post_init__(self) -> None:
        for name in self.only:
            if name not in NAMES:
                raise ConfigError("only", name, f"use {', '.join(NAMES)}")


OPTIONS = KnobsOptions
TOPICS = ENGINE_TOPICS


def run(settings: Settings) -> int:
    from octavo.bench import knobs, knobs_report
    from octavo.bench.cost import Subject
    from octavo.bench.replay import OwnTime
    from octavo.bench.report import circumstances
    from octavo.config.engine import EngineConfig
    from octavo.config.resolve import resolve
    from octavo.llm import LLM
    from octavo.plan.memory import plan_memory
    from octavo.tune.machine import free

    options: KnobsOptions = settings.topic(KnobsOptions)
    flags = {"max_model_len": "auto", **settings.engine_flags(), "skip_tokenizer_init": True}
    config, subject = read_config(settings.engine().model), Subject.of(flags)
    every = knobs.knobs(subject.settings, plan_memory(subject.arch, subject.settings))
    chosen = [knob for knob in every if not options.only or knob.name in options.only]

    def start(changes: knobs.Changes) -> Any:
        free()  # what the engine before has left
        resolve(EngineConfig.from_flags(**{**flags, **changes}), config, subject.device, offline=True)
        engine = LLM(**{**flags, **changes})
        if options.own_time:
            engine.inside[0].clock = OwnTime()
        return engine

    head = {**circumstances(sys.argv[1:]), "flags": flags, "kind": "knobs"}
    model = str(settings.engine().model.model)

    def told(trials: Sequence[knobs.Trial]) -> None:
        if options.output_json:  # a run that is cut short leaves what it has
            data = {**head, "results": [asdict(trial) for trial in trials]}
            Path(options.output_json).write_text(json.dumps(data) + "\n", encoding="utf-8")
        if options.output_html:
            Path(options.output_html).write_text(knobs_report.page(head, model, trials, chosen), encoding="utf-8")
        print(knobs_report.line(trials[-1]), file=sys.stderr)

    trials = knobs.run(chosen, start, subject.arch.vocab, told)
    print(knobs_report.as_text(trials, chosen))
    return 0 if any(trial.figures for trial in trials) else 1

"""`octavo bench knobs`: moves one flag at a time on this machine and shows what each does."""

from __future__ import annotations

import json
import sys
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

    trials = knobs.run(chosen, start, subject.arch.vocab, _say)
    head = {**circumstances(sys.argv[1:]), "flags": flags, "kind": "knobs"}
    print(knobs_report.as_text(trials, chosen))
    if options.output_json:
        Path(options.output_json).write_text(json.dumps({**head, "results": [asdict(trial) for trial in trials]}) + "\n", encoding="utf-8")
    if options.output_html:
        page = knobs_report.page(head, str(settings.engine().model.model), trials, chosen)
        Path(options.output_html).write_text(page, encoding="utf-8")
    return 0 if any(trial.figures for trial in trials) else 1


def _say(trial: Any) -> None:
    said = trial.refused or f"{trial.figures['output_tokens_per_s']:,.0f} output tokens/s"
    print(f"{trial.knob} {trial.value}, {trial.load}: {said}", file=sys.stderr)

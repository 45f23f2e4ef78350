"""The real engine: plays loads with changed settings, live where a flag allows it, else after a new start; nothing is played twice."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from octavo.attention.registry import choose_attention
from octavo.bench.cost import Engine, Subject, play, warm_up
from octavo.bench.replay import OwnTime
from octavo.config.engine import EngineConfig
from octavo.config.fields import ConfigError
from octavo.config.resolve import resolve
from octavo.config.resolved import Resolved
from octavo.plan.timing import Timing
from octavo.simulate.result import summarize
from octavo.tune.journal import Journal
from octavo.tune.objective import Figures
from octavo.tune.space import LIVE, Changes, is_live, num_ranks
from octavo.tune.workload import Workload, of_all, of_one

WARM_UP_S = 1.0
COMPRESSED_KV = ("int8", "fp8")  # at little loss


class Started(Engine, Protocol):
    """The part of `LLM` that is needed here."""

    def close(self) -> None: ...


@dataclass
class Machine:
    """This machine with one model. `start` makes an engine of flags."""

    flags: Mapping[str, Any]  # as given
    subject: Subject  # as these flags make it
    config: Mapping[str, Any]  # the model's
    start: Callable[[dict[str, Any]], Started]
    journal: Journal
    workload: Workload
    own_time: bool = False
    num_devices: int = 1
    _engine: Started | None = field(default=None, init=False)
    _started_with: Changes = field(default_factory=dict[str, Any], init=False)
    _changes: Changes = field(default_factory=dict[str, Any], init=False)

    def settings(self, changes: Changes) -> Resolved:
        """What these changes make of the flags. Raises ConfigError where they cannot be."""
        settings = resolve(EngineConfig.from_flags(**{**self.flags, **changes}), self.config, self.subject.device)
        if num_ranks(settings) > max(self.num_devices, num_ranks(self.subject.settings)):
            raise ConfigError("tensor_parallel_size", settings.tensor_parallel_size, f"a layout has at most {self.num_devices} GPUs here")
        return settings

    def kv_formats(self) -> tuple[str, ...]:
        """Those of `COMPRESSED_KV` in which attention reads this model's K and V here."""
        return tuple(name for name in COMPRESSED_KV if self._reads(name))

    def _reads(self, kv_format: str) -> bool:
        try:
            choose_attention(self.subject.arch, self.settings({"kv_cache_dtype": kv_format}), self.subject.device.sm)
        except ConfigError:
            return False
        return True

    def play(self, changes: Changes, rate: float, duration_s: float) -> Figures:
        """The workload at that rate, as it was served."""
        return self._played(changes, rate, duration_s)["figures"]

    def timings(self, changes: Changes, rate: float, duration_s: float) -> list[Timing]:
        """The steps that this took."""
        return [Timing.of_row(row) for row in self._played(changes, rate, duration_s)["timings"]]

    def advice(self, changes: Changes, rate: float, duration_s: float) -> list[Mapping[str, Any]]:
        """What the engine found to hold it back."""
        return self._played(changes, rate, duration_s)["advice"]

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None
            free()

    def _played(self, changes: Changes, rate: float, duration_s: float) -> Mapping[str, Any]:
        what = " ".join(f"{flag}={value}" for flag, value in sorted(changes.items()))
        return self.journal.of(f"{rate:.4g}/s for {duration_s:g} s: {what}", lambda: self._play(changes, rate, duration_s))

    def _play(self, changes: Changes, rate: float, duration_s: float) -> dict[str, Any]:
        engine, vocab = self._with(changes, min(rate, 8.0)), self.subject.arch.vocab
        replicas = self.settings(changes).data_parallel_size
        measured = play(engine, lambda: of_one(self.workload.at(rate, duration_s), replicas), vocab)
        loop, _ = engine.inside
        return {
            "figures": of_all(summarize(measured.record), replicas),
            "timings": [one.row for one in measured.timings],
            "advice": loop.watch.findings(loop.scheduler, loop.clock()),
        }

    def _with(self, changes: Changes, rate: float) -> Started:
        """An engine with these changes: the one that runs, or a new one, warmed up."""
        if self._engine is not None and is_live(changes, self._started_with, self.settings(self._started_with)):
            if changes != self._changes:
                wanted, running = self.settings(changes), self.settings(self._started_with)
                self._engine.inside[0].adjust(replace(running, **{name: getattr(wanted, name) for name in LIVE}))
        else:
            self.close()
            settings = self.settings(changes)
            sizes = {"max_num_seqs": settings.max_num_seqs, "max_num_batched_tokens": settings.max_num_batched_tokens}
            alone = {"data_parallel_size": 1} if settings.data_parallel_size > 1 and settings.expert_parallel_size == 1 else {}
            self._engine = self.start({**self.flags, **changes, **sizes, **alone, "skip_tokenizer_init": True})
            self._started_with = changes
            if self.own_time:
                self._engine.inside[0].clock = OwnTime()
            if settings.pass_sizes:
                warm_up(self._engine, settings, self.subject.arch.vocab)
            play(self._engine, lambda: self.workload.at(rate, WARM_UP_S), self.subject.arch.vocab)
        self._changes = changes
        return self._engine


def start_llm(flags: dict[str, Any]) -> Started:
    """An engine in this process."""
    from octavo.llm import LLM

    return LLM(**flags)


def free() -> None:
    """Give back what a closed engine has left: its objects hold each other, and a start sets all there is apart from collection."""
    import torch

    gc.unfreeze()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

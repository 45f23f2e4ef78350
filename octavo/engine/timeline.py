"""Where each second of the start went: stages in the order they ended, printed, exported as metrics, and shown by `bench startup`."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Timeline:
    """Seconds by stage. `on_stage` hears of each stage as it ends."""

    clock: Callable[[], float]
    on_stage: Callable[[str, float], None] = lambda name, seconds: None
    stages: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])
    beside: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])  # what ran at the same time, in threads

    @contextmanager
    def stage(self, name: str) -> Generator[None]:
        begin_s = self.clock()
        yield
        seconds = self.clock() - begin_s
        self.stages.append((name, seconds))
        self.on_stage(name, seconds)

    def replace_last(self, inside: list[tuple[str, float]]) -> None:
        """Tell the last stage by those that passed inside it; what they leave of it keeps its name."""
        name, seconds = self.stages.pop()
        self.stages += [(name, seconds - sum(one for _, one in inside)), *inside]

    def __str__(self) -> str:
        total = sum(seconds for _, seconds in self.stages)
        return f"{_listed(self.stages)}, together {total:.2f} s" + (f"; meanwhile {_listed(self.beside)}" if self.beside else "")


def _listed(stages: list[tuple[str, float]]) -> str:
    return ", ".join(f"{name} {seconds:.2f} s" for name, seconds in stages)

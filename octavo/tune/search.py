"""Looks for the best of many combinations: all of them where they are few, else by Optuna where it is installed, else flag by flag."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from octavo.tune.space import Changes, Choice

Rate = Callable[[Changes], float]


class Tried:
    """Values of combinations, each asked once; one that cannot be is worth nothing."""

    def __init__(self, rate: Rate, most: int) -> None:
        self.values: dict[tuple[tuple[str, Any], ...], float] = {}
        self.most = most
        self._rate = rate

    @property
    def full(self) -> bool:
        return len(self.values) >= self.most

    def __call__(self, changes: Changes) -> float:
        key = tuple(sorted(changes.items()))
        if key not in self.values:
            self.values[key] = self._rate(changes)
        return self.values[key]

    def ranked(self) -> list[tuple[Changes, float]]:
        """The best first, of equals the one with fewer changes."""
        return [(dict(key), value) for key, value in sorted(self.values.items(), key=lambda one: (-one[1], len(one[0])))]


def search(choices: Sequence[Choice], rate: Rate, num_trials: int) -> list[tuple[Changes, float]]:
    """All that was tried with its value, the best first. `rate` is asked at most about `num_trials` times, of no changes first."""
    tried = Tried(rate, num_trials)
    tried({})
    if math.prod(len(choice.values) for choice in choices) <= num_trials:
        for values in product(*(choice.values for choice in choices)):
            tried(changes_of(choices, values))
    elif importlib.util.find_spec("optuna"):
        from octavo.tune.tpe import ask_optuna

        space = {choice.flag: choice.values for choice in choices}
        # One that it asks for again costs nothing.
        ask_optuna(space, lambda values: tried(changes_of(choices, values)), lambda: tried.full, 2 * num_trials)
    else:
        by_flag(choices, tried)
    return tried.ranked()


def changes_of(choices: Sequence[Choice], values: Sequence[Any]) -> Changes:
    return {choice.flag: value for choice, value in zip(choices, values) if value != choice.values[0]}


def by_flag(choices: Sequence[Choice], tried: Tried) -> None:
    """Every value of one flag after the other, with the best of the others so far, until a round finds nothing better."""
    best = {choice.flag: choice.values[0] for choice in choices}

    def value_of(settings: dict[str, Any]) -> float:
        return tried(changes_of(choices, [settings[choice.flag] for choice in choices]))

    found, before = value_of(best), -1.0
    while found > before and not tried.full:
        before = found
        for choice in choices:
            for value in choice.values:
                one = value_of({**best, choice.flag: value})
                if one > found:
                    best, found = {**best, choice.flag: value}, one

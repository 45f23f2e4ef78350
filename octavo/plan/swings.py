"""How steps differ from what a cost model foresees: what recorded steps of a size take beyond it, and how far the same step swings.

A device that has multiplied matrices takes its clock down, for as long as it does and some hundredths of a second more, so that all steps
among many prompts take longer than the same steps among few.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import NamedTuple

from octavo.core.plan import StepShape
from octavo.plan.cost import CostModel, Recorded, Size, StepTimes, Swing
from octavo.plan.timing import Timing

ENOUGH = 8  # steps of a size, or of a kind, from which on they are looked at by themselves
QUANTILES = 32  # of a ratio that are kept; what is rarer than one in 64 is left out on either side
MOST_SHARE = 0.5  # of what the terms say, that a size takes less or more
KEPT_S = 0.07  # for which a device's clock is what products have made it (H200: of 0.01 to 4 s it tells most of how steps differ)
MOST_WARM = 0.5
MISREAD = 0.8  # of what is foreseen: a device that was so much faster had begun before the host thought so


class Seen(NamedTuple):
    """A step beside what was foreseen of it."""

    size: Size
    foreseen: StepTimes
    device_s: float  # the nearest to what was foreseen that is between its bounds
    launch_s: float
    exact: bool
    warmth: float  # when it began

    @property
    def ratio(self) -> float:
        return self.device_s / self.foreseen.device_s


class Warmth:
    """The share of a device's latest time that went to products, the last of it counting most."""

    def __init__(self, model: CostModel) -> None:
        self.share = 0.0
        self._model = model

    def ran(self, shape: StepShape, device_s: float) -> None:
        kept = math.exp(-device_s / KEPT_S)
        self.share *= kept
        if shape.prefill_tokens:
            self.share += (1 - kept) * self._model.products_s(shape) / device_s


def seen(model: CostModel, timings: Iterable[Timing]) -> list[Seen]:
    """Steps in the order in which they ran."""
    found: list[Seen] = []
    warmth = Warmth(model)
    for one in timings:
        least_s, most_s = one.device_bounds(model.roofline.on_host)
        foreseen = model.times(one.shape)
        device_s = min(max(foreseen.device_s, least_s), most_s)
        found.append(Seen(model.roofline.recorded(one.shape), foreseen, device_s, one.launch_s, least_s == most_s, warmth.share))
        warmth.ran(one.shape, foreseen.device_s)
    return found


def extras(steps: Iterable[Seen]) -> dict[Size, float]:
    """Seconds that recorded steps of a size take beyond what is foreseen of them: libraries choose other kernels for each size, which no
    rate tells of. The median, where there are enough."""
    residuals: dict[Size, list[tuple[float, float]]] = {}
    for one in steps:
        if one.exact and one.size[0] is not Recorded.NOTHING:
            residuals.setdefault(one.size, []).append((one.device_s - one.foreseen.device_s, one.foreseen.device_s))
    found: dict[Size, float] = {}
    for size, pairs in residuals.items():
        if len(pairs) >= ENOUGH:
            bound_s = MOST_SHARE * statistics.median(foreseen_s for _, foreseen_s in pairs)
            found[size] = min(bound_s, max(-bound_s, statistics.median(off_s for off_s, _ in pairs)))
    return found


def swings(steps: Iterable[Seen]) -> dict[Recorded, Swing]:
    """By kind of step, the ratios of measured to foreseen times."""
    kinds: dict[Recorded, list[Seen]] = {}
    for one in steps:
        if one.ratio > MISREAD:
            kinds.setdefault(one.size[0], []).append(one)
    return {kind: _swing(kept) for kind, kept in kinds.items() if len(kept) >= ENOUGH}


def _swing(steps: Sequence[Seen]) -> Swing:
    warm = _warm([one for one in steps if one.exact and one.ratio < 2 - MISREAD])
    launch = [one.launch_s / one.foreseen.launch_s if one.foreseen.launch_s else 1.0 for one in steps]
    return Swing(_quantiles(launch), _quantiles([one.ratio - warm * one.warmth for one in steps]), warm)


def _warm(steps: Sequence[Seen]) -> float:
    """How much longer steps take for each share of the time before them that went to products: the slope of a line through their ratios."""
    if len(steps) < ENOUGH:
        return 0.0
    mean = sum(one.warmth for one in steps) / len(steps)
    spread = sum((one.warmth - mean) ** 2 for one in steps)
    slope = sum((one.warmth - mean) * one.ratio for one in steps) / spread if spread else 0.0
    return round(min(MOST_WARM, max(0.0, slope)), 4)


def _quantiles(values: list[float]) -> tuple[float, ...]:
    """Evenly spaced among them."""
    ordered = sorted(values)
    return tuple(round(ordered[int((place + 0.5) / QUANTILES * len(ordered))], 4) for place in range(QUANTILES))


class Swinging:
    """The times of steps as they were measured: what a model foresees of a step, times a ratio drawn from those of its kind. Asked for
    each step once, in the order in which they run."""

    def __init__(self, model: CostModel, seed: int = 1) -> None:
        self._model = model
        self._swings: Mapping[Recorded, Swing] = model.swings
        self._warmth = Warmth(model)
        self._random = Random(seed).random

    def __call__(self, shape: StepShape) -> StepTimes:
        launch_s, device_s = self._model.times(shape)
        swing = self._swings.get(self._model.roofline.recorded(shape)[0])
        if swing is None:
            return StepTimes(launch_s, device_s)
        ratio = swing.device[int(self._random() * len(swing.device))] + swing.warm * self._warmth.share
        self._warmth.ran(shape, device_s)
        if self._model.roofline.on_host:
            return StepTimes(device_s * ratio, device_s * ratio)
        return StepTimes(launch_s * swing.launch[int(self._random() * len(swing.launch))], device_s * ratio)

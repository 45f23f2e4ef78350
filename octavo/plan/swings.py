"""How steps differ from what a cost model foresees: what recorded steps of a size take beyond it, and how far the same step swings."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from random import Random
from typing import NamedTuple

from octavo.core.plan import StepShape
from octavo.plan.cost import CostModel, Recorded, Size, StepTimes, Swing
from octavo.plan.timing import Timing

ENOUGH = 8  # steps of a size, or of a kind, from which on they are looked at by themselves
QUANTILES = 32  # of a ratio that are kept; what is rarer than one in 64 is left out on either side,
TAILS = 0.05  # and of the host's times so much more: a kernel that had to be loaded, say, which is of the day and not of the load
MOST_SHARE = 0.5  # of what the terms say, that a size takes less or more
MISREAD = 0.8  # of what is foreseen: a device that was so much faster had begun before the host thought so


class Seen(NamedTuple):
    """A step beside what was foreseen of it."""

    size: Size
    foreseen: StepTimes
    device_s: float  # the nearest to what was foreseen that is between its bounds
    launch_s: float
    exact: bool


def seen(model: CostModel, timings: Iterable[Timing]) -> list[Seen]:
    found: list[Seen] = []
    for one in timings:
        least_s, most_s = one.device_bounds(model.roofline.on_host)
        foreseen = model.times(one.shape)
        device_s = min(max(foreseen.device_s, least_s), most_s)
        found.append(Seen(model.roofline.recorded(one.shape), foreseen, device_s, one.launch_s, least_s == most_s))
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
    device: dict[Recorded, list[float]] = {}
    launch: dict[Recorded, list[float]] = {}
    for one in steps:
        ratio = one.device_s / one.foreseen.device_s
        if ratio > MISREAD:
            device.setdefault(one.size[0], []).append(ratio)
            launch.setdefault(one.size[0], []).append(one.launch_s / one.foreseen.launch_s if one.foreseen.launch_s else 1.0)
    enough = [kind for kind, ratios in device.items() if len(ratios) >= ENOUGH]
    return {kind: Swing(_quantiles(launch[kind], TAILS), _quantiles(device[kind], 0.0)) for kind in enough}


def _quantiles(values: list[float], tails: float) -> tuple[float, ...]:
    """Evenly spaced, without a share on either side."""
    ordered, size = sorted(values), (1 - 2 * tails) * len(values)
    return tuple(round(ordered[int(tails * len(ordered) + (place + 0.5) / QUANTILES * size)], 4) for place in range(QUANTILES))


class Swinging:
    """The times of steps as they were measured: what a model foresees of a step, times a ratio drawn from those of its kind."""

    def __init__(self, model: CostModel, seed: int = 1) -> None:
        self._model = model
        self._swings: Mapping[Recorded, Swing] = model.swings
        self._random = Random(seed).random

    def __call__(self, shape: StepShape) -> StepTimes:
        launch_s, device_s = self._model.times(shape)
        swing = self._swings.get(self._model.roofline.recorded(shape)[0])
        if swing is None:
            return StepTimes(launch_s, device_s)
        device_s *= swing.device[int(self._random() * len(swing.device))]
        if self._model.roofline.on_host:
            return StepTimes(device_s, device_s)
        return StepTimes(launch_s * swing.launch[int(self._random() * len(swing.launch))], device_s)

"""Coefficients of the cost model from recorded steps: non-negative least squares on relative errors, robust against stray steps.

What the host took is known of every step. What the device took is known exactly where the host saw it begin and end; of other steps only
that it lay between two bounds, and such a step counts only where the model is outside of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import mul
from typing import NamedTuple

from octavo.plan.cost import COMMON, CostModel, Launch, Roofline, Terms
from octavo.plan.swings import extras, seen, swings
from octavo.plan.timing import Timing

PULL = 1e-4  # weight of the common coefficients against the data's: it decides only what the data leave open
ROUNDS = 8  # of weighing residuals anew
SWEEPS = 400
CLOSE = 1e-5  # of a coefficient: a sweep that moves none by more is the last
TRIED = 1500  # steps that are looked at where several models are tried
KNEES = (1.2, 1.5, 2.0, 3.0)
EAGER_SHARES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)  # of a worker's usual time to launch a step
HUBER = 2.0  # residuals over so many standard deviations count less
LEAST_SHARE = 0.1  # of a step's time that is left to the terms
INERTIA = 0.05  # weight of a row that is inside of its bounds: so that it does not swing from one side to the other


def fit(first: CostModel, timings: Sequence[Timing]) -> CostModel:
    """The coefficients that explain the timings best; `first` says the roofline and, for what the data leave open, the host's times. Errors
    are relative to a step's time and count by its square root: a step of a long prompt is rare, and takes as long as many others.

    Residuals are weighed by Huber's function (Huber 1964) in rounds; each round's problem is solved by coordinate descent.
    """
    roofline = first.roofline
    timings = [timing for timing in timings if timing.device_bounds(roofline.on_host)[1] > 0]
    if not timings:
        raise ValueError("there is no timing to fit to")
    few = timings[:: -(-len(timings) // TRIED)]

    def better(rooflines: Iterable[Roofline]) -> Roofline:
        return min(rooflines, key=lambda one: judge(fit_terms(replace(first, roofline=one), few), few)["weighted"])

    # How long a worker takes to launch a step, and how far reading weights hides products, enter as the larger of two times, which no least
    # squares can find: so a few are tried.
    if roofline.eager_s:
        roofline = better(replace(roofline, eager_s=roofline.eager_s * share) for share in EAGER_SHARES)
    roofline = better(replace(roofline, knee=knee) for knee in KNEES)
    found = fit_terms(replace(first, roofline=roofline), timings)
    extra_s = extras(seen(found, timings))
    found = fit_terms(replace(first, roofline=roofline, extra_s=extra_s), timings)
    # What a size takes beyond is told by a median, and the terms by all steps: the second time each knows of the other.
    extra_s = extras(seen(replace(found, extra_s={}), timings))
    found = replace(found, extra_s=extra_s)
    return replace(found, swings=swings(seen(found, timings)))


def fit_terms(first: CostModel, timings: Sequence[Timing]) -> CostModel:
    """The terms alone, with the roofline, and what sizes take beyond it, as they are. Every timing is longer than 0, and there is one."""
    roofline = first.roofline
    device = [_row(first, one) for one in timings]
    host = [_Row(first.launch.terms(one.shape, roofline.recorded(one.shape)[0]), one.launch_s, one.launch_s) for one in timings]
    host = [row for row in host if row.most_s > 0 and not roofline.on_host]
    launch = first.launch
    if host:
        launch = Launch(*map(mul, launch, _coefficients(host, (1.0,) * len(launch))))
    return CostModel(roofline, launch, Terms(*_coefficients(device, COMMON)), f"{len(timings):,} measured steps", first.extra_s)


def _row(first: CostModel, timing: Timing) -> _Row:
    """What the terms are to add up to."""
    extra_s = first.extra_s.get(first.roofline.recorded(timing.shape), 0.0)
    least_s, most_s = timing.device_bounds(first.roofline.on_host)
    return _Row(first.roofline.terms(timing.shape), max(0.0, least_s - extra_s), max(LEAST_SHARE * most_s, most_s - extra_s))


class _Row(NamedTuple):
    """One equation: the terms, each with its coefficient, sum up to a time between two bounds."""

    terms: Sequence[float]
    least_s: float
    most_s: float


def _coefficients(rows: Sequence[_Row], common: Sequence[float]) -> list[float]:
    """Those that fulfil the rows best; `common` where the rows say nothing."""
    parts = [tuple(term / row.most_s for term in row.terms) for row in rows]
    lengths = [row.most_s**0.5 for row in rows]
    found, bound = list(common), math.inf
    for number in range(ROUNDS):
        targets: list[float] = []
        weights: list[float] = []
        residuals: list[float] = []
        for part, row, length in zip(parts, rows, lengths):
            guess = sum(map(mul, found, part))
            target = min(max(guess, row.least_s / row.most_s), 1.0)
            off, exact = abs(guess - target), row.least_s == row.most_s
            if exact or off:
                residuals.append(off)
                # The first round has only the common coefficients to say on which side of its bounds a row is, so it asks exact ones alone.
                weight = length * min(1.0, bound / max(off, 1e-12)) if exact or number else 0.0
            else:
                weight = INERTIA * length
            targets.append(target)
            weights.append(weight)
        found = _solve(parts, targets, weights, common, found)
        bound = HUBER * max(1.4826 * statistics.median(residuals or (0.0,)), 1e-6)
    return found


def _solve(
    parts: Sequence[Sequence[float]], targets: Sequence[float], weights: Sequence[float], common: Sequence[float], start: Sequence[float]
) -> list[float]:
    """Minimise sum of w (part . c - target)^2, plus a slight pull to the common coefficients, over c >= 0."""
    size, pull = len(start), max(PULL * sum(weights), 1e-12)
    gram = [[pull * (i == j) for j in range(size)] for i in range(size)]
    right = [pull * one for one in common]
    for part, target, weight in zip(parts, targets, weights):
        if not weight:
            continue
        for i, x in enumerate(part):
            if x:
                right[i] += weight * x * target
                line = gram[i]
                for j, y in enumerate(part):
                    line[j] += weight * x * y
    found = list(start)
    for _ in range(SWEEPS):
        moved = 0.0
        for i, line in enumerate(gram):
            before = found[i]
            found[i] = max(0.0, before + (right[i] - sum(map(mul, line, found))) / line[i])
            moved = max(moved, abs(found[i] - before))
        if moved < CLOSE:
            break
    return found


def judge(model: CostModel, timings: Iterable[Timing]) -> Mapping[str, float]:
    """Errors on steps: mean, median and 90th percentile of their size, relative to the step; bias is that of the total time, and `weighted`
    the sum of their sizes over it. A device's time that is only known between bounds is right within them. The host's times have a median
    and a bias of their own."""
    device: list[tuple[float, float]] = []
    host: list[tuple[float, float]] = []
    for one in timings:
        least_s, most_s = one.device_bounds(model.roofline.on_host)
        if most_s > 0:
            times = model.times(one.shape)
            device.append((times.device_s - min(max(times.device_s, least_s), most_s), most_s))
            host.append((times.launch_s - one.launch_s, one.launch_s))
    errors = sorted(abs(off) / seconds for off, seconds in device)
    launch = sorted(abs(off) / seconds for off, seconds in host if seconds > 0) or [0.0]
    return {
        "steps": len(errors),
        "mean": sum(errors) / len(errors),
        "median": errors[len(errors) // 2],
        "p90": errors[min(len(errors) - 1, int(0.9 * len(errors)))],
        "bias": sum(off for off, _ in device) / sum(seconds for _, seconds in device),
        "weighted": sum(abs(off) for off, _ in device) / sum(seconds for _, seconds in device),
        "launch_median": launch[len(launch) // 2],
        "launch_bias": sum(off for off, _ in host) / (sum(seconds for _, seconds in host) or 1.0),
    }

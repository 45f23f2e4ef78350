"""Coefficients of the cost model from recorded steps: non-negative least squares on relative errors, robust against stray steps."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import starmap
from operator import mul
from typing import NamedTuple

from octavo.core.plan import StepShape
from octavo.plan.cost import COMMON, CostModel, Roofline, Terms

PULL = 1e-4  # weight of the common coefficients against the data's: it decides only what the data leave open
ROUNDS = 8  # of weighing residuals anew
SWEEPS = 400
CLOSE = 1e-5  # of a coefficient: a sweep that moves none by more is the last
EAGER_SHARES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)  # of the host's usual time to launch a step
HUBER = 2.0  # residuals over so many standard deviations count less


class Timing(NamedTuple):
    """A step as the engine measured it."""

    shape: StepShape
    seconds: float


def fit(roofline: Roofline, timings: Sequence[Timing]) -> CostModel:
    """The coefficients that explain the timings best. Errors are relative to a step's time and count by its square root: a step of a long
    prompt is rare, and takes as long as many others.

    Residuals are weighed by Huber's function (Huber 1964) in rounds; each round's problem is solved by coordinate descent.
    """
    timings = [timing for timing in timings if timing.seconds > 0]
    if not timings:
        raise ValueError("there is no timing to fit to")
    if not roofline.eager_s:
        return fit_terms(roofline, timings)
    # How long the host takes to launch a step enters as the larger of two times, which no least squares can find: so a few are tried.
    tried = [fit_terms(replace(roofline, eager_s=roofline.eager_s * share), timings) for share in EAGER_SHARES]
    return min(tried, key=lambda model: judge(model, timings)["mean"])


def fit_terms(roofline: Roofline, timings: Sequence[Timing]) -> CostModel:
    """As `fit`, with the roofline as it is. Every timing is longer than 0, and there is one."""
    rows = [tuple(term / timing.seconds for term in roofline.terms(timing.shape)) for timing in timings]
    lengths = [timing.seconds**0.5 for timing in timings]
    weights = lengths
    found = COMMON
    for _ in range(ROUNDS):
        found = _solve(rows, weights, found)
        residuals = [abs(sum(c * x for c, x in zip(found, row)) - 1) for row in rows]
        bound = HUBER * max(1.4826 * statistics.median(residuals), 1e-6)
        weights = [length * min(1.0, bound / max(residual, 1e-12)) for length, residual in zip(lengths, residuals)]
    return CostModel(roofline, found, f"{len(rows):,} measured steps")


def _solve(rows: Sequence[tuple[float, ...]], weights: Sequence[float], start: Terms) -> Terms:
    """Minimise sum of w (row . c - 1)^2, plus a slight pull to the common coefficients, over c >= 0."""
    size, pull = len(start), PULL * sum(weights)
    gram = [[pull * (i == j) for j in range(size)] for i in range(size)]
    right = [pull * common for common in COMMON]
    for row, weight in zip(rows, weights):
        for i, x in enumerate(row):
            if x:
                right[i] += weight * x
                line = gram[i]
                for j, y in enumerate(row):
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
    return Terms(*found)


def judge(model: CostModel, timings: Iterable[Timing]) -> Mapping[str, float]:
    """Errors on steps: mean, median and 90th percentile of their size, relative to the step; bias is that of the total time."""
    pairs = [(model.seconds(shape), seconds) for shape, seconds in starmap(Timing, timings) if seconds > 0]
    errors = sorted(abs(guess / seconds - 1) for guess, seconds in pairs)
    return {
        "steps": len(errors),
        "mean": sum(errors) / len(errors),
        "median": errors[len(errors) // 2],
        "p90": errors[min(len(errors) - 1, int(0.9 * len(errors)))],
        "bias": sum(guess for guess, _ in pairs) / sum(seconds for _, seconds in pairs) - 1,
    }


def fit_and_judge(roofline: Roofline, timings: Sequence[Timing]) -> tuple[CostModel, Mapping[str, float]]:
    """Fit to all timings; the errors are those, on every second timing, of a fit to the others."""
    errors = judge(fit(roofline, timings[::2]), timings[1::2])
    model = fit(roofline, timings)
    origin = f"{model.origin}, {errors['median']:.1%} off in the middle, {errors['bias']:+.1%} in sum"
    return replace(model, origin=origin), errors

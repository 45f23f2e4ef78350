"""From a first measurement to settings that were measured: calibrate, search in the simulator, confirm, and tell the gains apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from octavo.bench.cost import Subject, simulated
from octavo.config.fields import ConfigError
from octavo.plan.cost import CostModel, Launch, Roofline
from octavo.plan.fit import fit, judge
from octavo.plan.timing import Timing
from octavo.simulate.result import summarize
from octavo.tune.machine import Machine
from octavo.tune.objective import Figures, Objective, Score
from octavo.tune.search import search
from octavo.tune.space import Changes, Choice
from octavo.tune.workload import of_all, of_one

SIMULATED_PROBES = 6
CALIBRATED = ((1, 0.4), (1, 1.2), (4, 0.8))  # (divisor of the step's budget, share of the capacity that is expected)
FITTED = 1200  # steps, at most
WORTH = 0.01  # of gain, below which a change is left out
NOTHING: Changes = {}


class Told(Protocol):
    """Hears how far the course is, in seconds of work."""

    def advance(self, count: int) -> None: ...


@dataclass(frozen=True)
class Task:
    """What is done, how often and how long."""

    objective: Objective
    choices: Sequence[Choice]
    duration_s: float  # of each load
    num_trials: int  # of simulated settings
    num_confirmed: int
    num_probes: int  # rates that are played to measure one set of settings
    first_rate: float = 4.0

    @property
    def set_s(self) -> int:
        """About the seconds that one set of settings takes on the real engine."""
        return round(1.5 * self.duration_s * self.num_probes)

    @property
    def total_s(self) -> int:
        """About the seconds of everything, for the progress bar."""
        return round(1.5 * self.duration_s * len(CALIBRATED)) + self.set_s * (1 + 2 * self.num_confirmed) + self.num_trials


@dataclass(frozen=True)
class Compared:
    """Settings as they were predicted and as they were measured."""

    changes: Changes
    predicted: Score
    measured: Score


@dataclass(frozen=True)
class Stair:
    """One change on top of those before it; gains are over those."""

    flag: str
    value: Any
    predicted_gain: float
    measured_gain: float


@dataclass
class Outcome:
    """All that the report tells."""

    baseline: Compared
    confirmed: list[Compared]
    model: CostModel
    errors: Mapping[str, float]  # of the model on the baseline's steps, fitted to the others
    num_trials: int
    advice: Sequence[Mapping[str, Any]] = ()
    stairs: list[Stair] = field(default_factory=list[Stair])

    @property
    def best(self) -> Compared:
        """The best that was measured; the baseline where nothing was better."""
        better = [one for one in self.confirmed if one.measured.value > self.baseline.measured.value]
        return max(better, key=lambda one: one.measured.value, default=self.baseline)


class Predictor:
    """Plays in the simulator what the machine would play."""

    def __init__(self, machine: Machine, model: CostModel, task: Task) -> None:
        self.machine, self.model, self.task = machine, model, task
        self.guess = task.first_rate

    def play(self, changes: Changes, rate: float) -> Figures:
        settings = self.machine.settings(changes)
        subject, replicas = replace(self.machine.subject, settings=settings), settings.data_parallel_size
        load = of_one(self.machine.workload.at(rate, self.task.duration_s), replicas)
        return of_all(summarize(simulated(subject, self._model_of(subject), load)), replicas)

    def score(self, changes: Changes) -> Score:
        return self.task.objective.measure(lambda rate: self.play(changes, rate), self.guess, SIMULATED_PROBES)

    def value(self, changes: Changes) -> float:
        try:
            return self.score(changes).value
        except ConfigError:  # these settings cannot be together
            return 0.0

    def _model_of(self, subject: Subject) -> CostModel:
        """Other formats move other numbers of bytes, at the same coefficients; workers of their own launch for themselves."""
        roofline = Roofline.of(subject.arch, subject.settings, subject.device)
        if subject.settings.executor_backend != self.machine.subject.settings.executor_backend:
            launch = Launch.of(subject.arch, subject.settings, subject.device)
            return replace(self.model, roofline=replace(roofline, knee=self.model.roofline.knee), launch=launch)
        return replace(self.model, roofline=replace(roofline, eager_s=self.model.roofline.eager_s, knee=self.model.roofline.knee))


def tune(machine: Machine, task: Task, first: CostModel, told: Told, say: Callable[[str], None]) -> Outcome:
    """The whole course. `first` is what is known of steps before any is measured."""
    timings, guess = _calibrate(machine, task, first, told)
    predictor = Predictor(machine, _fit(machine, timings), task)
    predictor.guess = predictor.score(NOTHING).rate or guess
    measured = _measure(machine, task, NOTHING, predictor.guess, told)
    seen = [step for rate, _ in measured.probes for step in machine.timings(NOTHING, rate, task.duration_s)]
    errors = judge(predictor.model, seen)
    predictor.model = _fit(machine, timings + seen)
    baseline = Compared(NOTHING, predictor.score(NOTHING), measured)
    predictor.guess = baseline.predicted.rate or predictor.guess
    say(f"defaults: {measured.value:.4g} {task.objective.unit}; simulated {baseline.predicted.value:.4g}")
    ranked = search(task.choices, _counted(predictor.value, told), task.num_trials)
    outcome = Outcome(baseline, [], predictor.model, errors, len(ranked))
    outcome.advice = machine.advice(NOTHING, measured.probes[-1][0], task.duration_s)
    for changes in _candidates(predictor, ranked, task.num_confirmed):
        predicted = predictor.score(changes)
        score = _measure(machine, task, changes, _expected(baseline, predicted), told)
        outcome.confirmed.append(Compared(changes, predicted, score))
        say(f"{text(changes)}: {score.gain_over(measured):+.1%}, simulated {predicted.gain_over(baseline.predicted):+.1%}")
    outcome.stairs = _stairs(machine, task, predictor, outcome, told)
    return outcome


def text(changes: Changes) -> str:
    return ", ".join(f"{flag} {value}" for flag, value in changes.items()) or "the defaults"


def _calibrate(machine: Machine, task: Task, first: CostModel, told: Told) -> tuple[list[Timing], float]:
    """Steps at light and heavy load, and in small pieces; with each load the next is aimed better. Also the rate that is then expected."""
    settings, timings = machine.subject.settings, list[Timing]()
    predictor = Predictor(machine, first, task)
    for divisor, share in CALIBRATED:
        rate = predictor.score(NOTHING).rate or predictor.guess
        predictor.guess = rate
        budget = max(settings.max_num_batched_tokens // divisor, settings.max_num_seqs)
        changes = {"max_num_batched_tokens": budget} if budget < settings.max_num_batched_tokens else NOTHING
        timings += machine.timings(changes, share * rate, task.duration_s)
        predictor.model = _fit(machine, timings)
        told.advance(round(1.5 * task.duration_s))
    return timings, predictor.guess


def _fit(machine: Machine, timings: Sequence[Timing]) -> CostModel:
    """To as many of them as are enough, from all over."""
    return fit(machine.subject.costs, timings[:: -(-len(timings) // FITTED)])


def _measure(machine: Machine, task: Task, changes: Changes, guess: float, told: Told) -> Score:
    score = task.objective.measure(lambda rate: machine.play(changes, rate, task.duration_s), guess, task.num_probes)
    told.advance(task.set_s)
    return score


def _counted(value: Callable[[Changes], float], told: Told) -> Callable[[Changes], float]:
    def counted(changes: Changes) -> float:
        told.advance(1)
        return value(changes)

    return counted


def _expected(baseline: Compared, predicted: Score) -> float:
    """The rate at which settings will be at their limits, if the simulator is off by as much as it is with the defaults."""
    was = baseline.predicted.rate
    return predicted.rate * (baseline.measured.rate / was if was and baseline.measured.rate else 1.0) or baseline.measured.rate or 1.0


def _candidates(predictor: Predictor, ranked: Sequence[tuple[Changes, float]], count: int) -> list[Changes]:
    """The best that differ once what does not matter is left out of them; none that is not better than the defaults."""
    least = (1 + WORTH) * predictor.value(NOTHING)
    found: list[Changes] = []
    for changes, value in ranked[: 4 * count]:
        if value < least or len(found) == count:
            break
        kept = _needed(predictor, changes, value)
        if kept and kept not in found:
            found.append(kept)
    return found


def _needed(predictor: Predictor, changes: Changes, value: float) -> Changes:
    """Without the changes that can be taken back for less than `WORTH`."""
    kept = dict(changes)
    for flag in changes:
        without = {name: one for name, one in kept.items() if name != flag}
        if predictor.value(without) > value * (1 - WORTH):
            kept = without
    return kept


def _stairs(machine: Machine, task: Task, predictor: Predictor, outcome: Outcome, told: Told) -> list[Stair]:
    """The best settings' changes one after the other, the weightiest first, each measured on top of those before it."""
    best, below = outcome.best, outcome.baseline
    left, taken, stairs = dict(best.changes), dict[str, Any](), list[Stair]()
    while left:
        scores = {flag: predictor.score({**taken, flag: value}) for flag, value in left.items()}
        flag = max(scores, key=lambda name: scores[name].value)
        taken[flag] = value = left.pop(flag)
        measured = best.measured if not left else _measure(machine, task, dict(taken), _expected(outcome.baseline, scores[flag]), told)
        stairs.append(Stair(flag, value, scores[flag].gain_over(below.predicted), measured.gain_over(below.measured)))
        below = Compared(dict(taken), scores[flag], measured)
    return stairs

"""Optuna's tree of Parzen estimators (Bergstra et al. 2011). The only file that imports Optuna (`octavo[tune]`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna


def ask_optuna(space: Mapping[str, Sequence[Any]], value: Callable[[list[Any]], float], enough: Callable[[], bool], most: int) -> None:
    """Let it maximise `value` over one of the values for each name, until that is enough or it has asked `most` times.

    It begins with every value alone, beside the first ones of the others, from which it learns which names matter at all.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=1))
    by_text = {name: {str(one): one for one in values} for name, values in space.items()}
    before = {name: str(values[0]) for name, values in space.items()}
    for name, values in space.items():
        for one in values[1:]:
            study.enqueue_trial({**before, name: str(one)})

    def rate(trial: optuna.Trial) -> float:
        return value([of[trial.suggest_categorical(name, list(of))] for name, of in by_text.items()])

    while not enough() and len(study.trials) - len(study.get_trials(states=[optuna.trial.TrialState.WAITING])) < most:
        study.optimize(rate, n_trials=1)

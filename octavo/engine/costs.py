"""What a step will cost, as far as this engine knows: a measured cost model, or one that it fits to its own steps while it serves."""

from __future__ import annotations

from dataclasses import replace

from octavo.config.resolved import Resolved
from octavo.core.plan import StepShape
from octavo.plan.cost import CostModel
from octavo.plan.fit import fit_terms
from octavo.plan.steps import StepLog

FIRST = 32  # steps before the first fit; each later one waits for twice as many
FITTED = 256  # steps that a fit looks at: it runs between two steps, and may take no longer than they do


class LearnedCosts:
    """Seconds of a step's shape. A model that nobody measured is corrected by the engine's log of steps."""

    def __init__(self, model: CostModel, log: StepLog) -> None:
        self.model = model
        self.log = log
        self._next = FIRST if not model.measured else 0  # 0: never

    def __call__(self, shape: StepShape) -> float:
        if self._next and self.log.num_steps >= self._next:
            self._next *= 2
            self._learn()
        return self.model.seconds(shape)

    def longest_s(self, settings: Resolved) -> float:
        """Of a step: as many prompt tokens as one may have, behind as many as a sequence may have."""
        n = settings.max_num_batched_tokens
        return self.model.seconds(StepShape(n, settings.max_num_seqs, settings.max_num_seqs, n, n * settings.max_model_len, 0))

    def prompt_rate(self, settings: Resolved) -> float:
        """Prompt tokens a second, of one prompt that fills a step."""
        n = min(settings.max_num_batched_tokens, settings.max_model_len)
        return n / self.model.seconds(StepShape(n, 1, 1, n, n * (n + 1) // 2, 0))

    def expected(self, settings: Resolved) -> dict[str, float]:
        """What a front may want to know of steps to come."""
        return {"longest_step_seconds": self.longest_s(settings), "prompt_tokens_per_second": self.prompt_rate(settings)}

    def _learn(self) -> None:
        found = fit_terms(self.model, self.log.timings(FITTED))
        self.model = replace(found, origin=f"{self.log.num_steps:,} steps of this engine")

"""What a step will cost, as far as this engine knows: a measured cost model, or one that it fits to its own steps while it serves."""

from __future__ import annotations

from dataclasses import replace

from octavo.config.resolved import Resolved
from octavo.core.budget import Work
from octavo.core.plan import StepShape
from octavo.core.scheduler import Scheduler
from octavo.plan.caution import Caution
from octavo.plan.cost import CostModel
from octavo.plan.fit import fit_terms
from octavo.plan.steps import StepLog

FIRST = 32  # steps before the first fit; each later one waits for twice as many
LEAST_S = 1e-9  # what takes less is free
FITTED = 256  # steps that a fit looks at: it runs between two steps, and may take no longer than they do


class LearnedCosts:
    """Seconds of a step's shape for a budget to aim by, with caution where steps took longer than foreseen. A model that nobody measured is
    corrected by the engine's log of steps."""

    def __init__(self, model: CostModel, log: StepLog) -> None:
        self.model = model
        self.log = log
        self.caution = Caution()
        self._next = FIRST if not model.measured else 0  # 0: never

    def __call__(self, shape: StepShape) -> float:
        if self._next and self.log.num_steps >= self._next:
            self._next *= 2
            self._learn()
        return self.caution.factor * self.model.seconds(shape)

    def saw(self, shape: StepShape, seconds: float, target_s: float) -> None:
        """A step ended so long after the one before it; `target_s` for the gaps between tokens, or 0."""
        if target_s and shape.prefill_tokens and shape.decode_context:
            self.caution.saw(self.model.seconds(shape), seconds, target_s)

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

    def prompt_steps(self, scheduler: Scheduler) -> dict[str, float]:
        """What it takes to read prompts beside the sequences that decode now; numbers of several engines can be added up, seconds averaged.

        `tokens`: prompt tokens of a full step; `full_s`: its seconds, without the attention of prompts; `least_s`: those of a step with one
        prompt token; `pairs_per_s`: that attention, in pairs as in `StepShape`; `context_per_s`: tokens that further decodes read; `rows`,
        `cache_tokens`: what further prompts find free.
        Empty where costs are not measured, or where steps that read prompts are not just filled up.
        """
        settings = scheduler.settings
        not_filled = settings.target_itl_s or settings.target_ttft_s or settings.long_prefill_token_threshold
        if not self.model.measured or not_filled or not settings.enable_chunked_prefill or settings.pipeline_parallel_size > 1:
            return {}
        decodes = Work.of(scheduler.running, (), 0)
        num_sequences = decodes.num_sequences + 1
        tokens = max(1, settings.max_num_batched_tokens - decodes.num_tokens)

        def seconds(n: int, pairs: int = 0, context: int = 0) -> float:
            shape = StepShape(decodes.num_tokens + n, num_sequences, num_sequences, n, pairs, decodes.context + context)
            return self.model.seconds(shape)

        def rate(amount: int, with_s: float) -> float:
            return amount / max(with_s - full_s, LEAST_S)

        full_s = seconds(tokens)
        longest = min(settings.max_num_batched_tokens, settings.max_model_len)
        free = scheduler.cache.pool.num_free * longest // scheduler.cache.layout.peak_blocks(longest, longest)
        return {
            "tokens": tokens,
            "full_s": full_s,
            "least_s": seconds(1),
            "pairs_per_s": rate(tokens**2, seconds(tokens, pairs=tokens**2)),
            "context_per_s": rate(tokens, seconds(tokens, context=tokens)),
            "rows": settings.max_num_seqs - decodes.num_sequences,
            "cache_tokens": free,
        }

    def _learn(self) -> None:
        found = fit_terms(self.model, self.log.timings(FITTED))
        self.model = replace(found, origin=f"{self.log.num_steps:,} steps of this engine")

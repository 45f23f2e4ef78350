"""A server whose engine is the real one but for the device: loop, scheduler, cache and grammars over steps that take times by a formula.

    python -m bench.paced '{"step_s": 0.002, "token_s": 0.0001}' '{"admission_ttft_ms": 500}'

Every text repeats the prose of `bench.front`; a masked token is the first that its mask allows. So what is measured is the server and the
brain, at a capacity that is known and the same on every machine that can keep up.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.front.scripted import TEMPLATE, script_ids, tokenizer
from octavo.config.resolved import Resolved
from octavo.config.server import ServerConfig
from octavo.core.budget import step_budget
from octavo.core.kv.cache import KVCache
from octavo.core.kv.layout import lay_out
from octavo.core.kv.specs import PagedSpec
from octavo.core.plan import Plan, StepOutput
from octavo.core.scheduler import Scheduler
from octavo.engine.costs import LearnedCosts
from octavo.engine.grammars import Grammars
from octavo.engine.loop import EngineLoop, Outbox
from octavo.engine.remote import RemoteEngine
from octavo.grammar.library import Vocabulary
from octavo.logs import start_logging
from octavo.plan.cost import CostModel, Launch, Roofline
from octavo.plan.steps import StepLog
from octavo.serve.front import Front, ServedModel
from octavo.serve.launch import run_until_done
from octavo.serve.listen import bind
from octavo.text.intake import Intake
from octavo.text.pooling import EmbeddingSpace
from octavo.text.template import ChatTemplate
from octavo.types import TokenLogprobs


@dataclass(frozen=True)
class Pace:
    """A step takes `step_s`, and `token_s` more for each of its tokens."""

    step_s: float = 0.001
    token_s: float = 1e-5
    max_model_len: int = 2048
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 256
    num_blocks: int = 1024
    block_tokens: int = 16

    @property
    def settings(self) -> Resolved:
        return Resolved(
            max_model_len=self.max_model_len,
            block_size=self.block_tokens,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            overlap_depth=1,
        )

    @property
    def costs(self) -> CostModel:
        """What the engine believes before it has measured its steps."""
        nothing = dict.fromkeys(
            ("weights_s", "sampled_products_s", "pair_s", "kv_token_s", "token_activations_s", "sequence_s", "collective_s"), 0.0
        )
        roofline = Roofline(step_s=self.step_s, token_products_s=self.token_s, windows=(), token_collective_s=0.0, **nothing)
        return CostModel(roofline, Launch(0.0, 0.0, 0.0, 0.0, 0.0))


class PacedStep:
    """A step under way."""

    def __init__(self, plan: Plan, end_s: float, output: StepOutput) -> None:
        self.plan, self.output = plan, output
        self._end_s = end_s

    def result(self) -> StepOutput:
        time.sleep(max(0.0, self._end_s - time.monotonic()))
        return self.output


class PacedExecutor:
    """A device that runs one step after another."""

    def __init__(self, pace: Pace, script: Sequence[int], eos_token_ids: Sequence[int]) -> None:
        self._pace = pace
        self._script = script
        self._ends = eos_token_ids
        self._free_s = 0.0  # when the steps submitted so far have ended
        self._open: deque[PacedStep] = deque()  # forward halves
        self._asked: dict[int, tuple[int | None, int | None]] = {}  # row -> log-probabilities that it wants, of outputs and of the prompt

    def submit(self, plan: Plan) -> PacedStep:
        for admission in plan.admitted:
            self._asked[admission.row] = admission.params.logprobs, admission.params.prompt_logprobs
        self._free_s = max(self._free_s, time.monotonic()) + self._pace.step_s + self._pace.token_s * plan.num_tokens
        token_id = self._script[plan.step % len(self._script)]
        tokens = [[token_id] if piece.sample else [] for piece in plan.slices]
        logprobs: dict[int, list[TokenLogprobs]] = {}
        prompts: dict[int, list[TokenLogprobs]] = {}
        for number, piece in enumerate(plan.slices):
            of_output, of_prompt = self._asked[piece.row]
            if of_output is not None and piece.sample:
                logprobs[number] = [_scores(token_id, of_output)]
            if of_prompt is not None and piece.tokens:
                prompts[number] = [_scores(one, of_prompt) for one in piece.tokens]
        step = PacedStep(plan, self._free_s, StepOutput(plan.step, tokens, logprobs=logprobs or None, prompt_logprobs=prompts or None))
        if plan.masked:
            self._open.append(step)
        return step

    def sample(self, plan: Plan, masks: Sequence[bytes | None]) -> None:
        step = self._open.popleft()
        assert step.plan is plan, "halves come in order"
        for number, mask in zip(plan.masked, masks):
            if mask is not None and step.output.tokens[number]:
                step.output.tokens[number] = [self._allowed(mask)]

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _allowed(self, mask: bytes) -> int:
        """The text's end where it may end, else the first token."""
        ends = (token_id for token_id in self._ends if mask[token_id // 8] >> token_id % 8 & 1)
        first = next(((number, byte) for number, byte in enumerate(mask) if byte), None)
        assert first is not None, "a mask allows something"
        return next(ends, 8 * first[0] + (first[1] & -first[1]).bit_length() - 1)


def _scores(token_id: int, num_others: int) -> TokenLogprobs:
    """The same for each token: itself, and its neighbours by id."""
    return TokenLogprobs(tuple(token_id + place for place in range(num_others + 1)), (-1.0,) * (num_others + 1), 1)


def build(fields: dict[str, Any], outbox: Outbox) -> tuple[EngineLoop, dict[str, Any]]:
    """Called in the engine's process, with the fields of a `Pace`."""
    pace, words = Pace(**fields), tokenizer()
    spec = PagedSpec(1, 64)
    layout = lay_out([spec], pace.block_tokens, spec.token_bytes * pace.block_tokens * pace.num_blocks)
    grammars = Grammars(lambda: Vocabulary(words, words.vocab_size, words.eos_token_ids), time.monotonic)
    costs = LearnedCosts(pace.costs, StepLog())
    scheduler = Scheduler(pace.settings, KVCache(layout), [grammars.preparation], step_budget(pace.settings, costs))
    executor = PacedExecutor(pace, script_ids("text"), words.eos_token_ids)
    return EngineLoop(scheduler, executor, outbox, time.monotonic, 1, costs, grammars), {}


def served_model(pace: Pace) -> ServedModel:
    words = tokenizer()
    intake = Intake(words, pace.max_model_len, words.vocab_size, words.eos_token_ids)
    return ServedModel(("paced",), words, intake, EmbeddingSpace(4), ChatTemplate(TEMPLATE))


def main(pace_json: str = "{}", config_json: str = "{}") -> int:
    start_logging()
    fields = json.loads(pace_json)
    config = ServerConfig(**{"port": 0, "disable_log_stats": True, **json.loads(config_json)})

    async def start() -> Front:
        return Front(await RemoteEngine.start("bench.paced:build", (fields,)), served_model(Pace(**fields)), config)

    return run_until_done(config, bind(config), start)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

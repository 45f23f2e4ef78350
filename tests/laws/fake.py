"""A fake executor with an integer array for KV memory, and the model that it runs.

The model is a recursion on integers that stands for attention: the value of a position depends on its token and on the value before it,
which is read back through the block table, and a sampled token depends on every value in the context. A wrong slot, table, hit or position
therefore changes the text, as it would with a real model. Used by the laws, by the simulator's and by the server's tests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from octavo.core.kv.layout import KVGroup, KVLayout
from octavo.core.kv.specs import LatentSpec, PagedSpec, WindowSpec
from octavo.core.plan import Plan, Slice, StepOutput
from octavo.types import Request, TokenLogprobs


def make_layout(num_blocks: int, block_tokens: int, windows: Sequence[int | None] = (None,), units: Sequence[int] = ()) -> KVLayout:
    """One group a window (None: full attention); `units[g]` is how many times larger group g's blocks are in tokens."""
    full = PagedSpec(1, 1) if num_blocks % 2 else LatentSpec(2)  # of equal size
    groups = tuple(
        KVGroup(full if window is None else WindowSpec(1, 1, window), block_tokens * (units[i] if units else 1), (i,))
        for i, window in enumerate(windows)
    )
    return KVLayout(groups, 1, block_tokens, block_tokens * 8, num_blocks, 0.0, 1)


@dataclass(frozen=True)
class FakeModel:
    """Token ids below `vocab_size`; id 0 may serve as end id. One entry of `windows` per KV group."""

    vocab_size: int = 32
    windows: tuple[int | None, ...] = (None,)

    def value(self, group: int, before: int, token: int) -> int:
        return hash((group, token if self.windows[group] == 1 else (before, token)))

    def sample(self, contexts: Sequence[tuple[int, ...]], seed: int, index: int) -> int:
        return hash((*contexts, seed, index)) % self.vocab_size

    def first_read(self, group: int, position: int) -> int:
        window = self.windows[group]
        return 0 if window is None else max(0, position - window + 1)

    def continuation(self, prompt: Sequence[int], num_tokens: int, seed: int, index: int = 0) -> list[int]:
        """The next `num_tokens` tokens by plain recursion, with no memory, no blocks and no steps."""
        values: list[list[int]] = [[] for _ in self.windows]
        made: list[int] = []
        fed = list(prompt)
        while len(made) < num_tokens:
            for token in fed:
                for group, known in enumerate(values):
                    known.append(self.value(group, known[-1] if known else 0, token))
            last = len(values[0]) - 1
            contexts = [tuple(known[self.first_read(group, last) :]) for group, known in enumerate(values)]
            fed = [self.sample(contexts, seed, index)]
            made += fed
        return made

    def expected(self, request: Request, seed: int, index: int, max_model_len: int) -> tuple[list[int], str]:
        """Output tokens and finish reason of a request that nobody disturbs."""
        params = request.params
        room = max_model_len - len(request.prompt_token_ids)
        limit = room if params.max_tokens is None else min(room, params.max_tokens)
        tokens = self.continuation(request.prompt_token_ids, limit, seed, index)
        for i, token in enumerate(tokens):
            if token in params.ending_token_ids and i >= params.min_tokens:
                return tokens[: i + 1], "stop"
        return tokens, "length"


@dataclass
class FakeRow:
    generation: int
    index: int
    seed: int
    num_prompt: int
    tokens: list[int]
    computed: int
    tables: list[list[int]]
    logprobs: bool
    prompt_logprobs: bool
    drafts: list[int] = field(default_factory=list)
    sampling: bool = False  # a step samples for it, and what came of it is not recorded yet


class FakeDevice:
    """One pipeline stage: rows and memory, and plans applied to them."""

    def __init__(self, layout: KVLayout, max_num_seqs: int, model: FakeModel) -> None:
        self.groups = layout.groups
        self.model = model
        self.memory = [[-1] * max(group.block_tokens for group in self.groups) for _ in range(layout.num_blocks)]
        self.rows: list[FakeRow | None] = [None] * max_num_seqs
        self.written: set[int] = set()  # blocks that the last step wrote

    def forward(self, plan: Plan, broken: bool = False) -> list[list[int]]:
        """Apply the plan and write its KV. Per slice: the tokens sampled at its last position and at each of its drafts.

        A broken step leaves rubbish in the memory that it should have written.
        """
        for row in plan.retired:
            assert self.rows[row] is not None
            self.rows[row] = None
        for new in plan.admitted:
            assert self.rows[new.row] is None
            assert new.computed < len(new.tokens)
            self.rows[new.row] = FakeRow(
                new.generation, new.index, new.seed, new.num_prompt_tokens, list(new.tokens), new.computed,
                [list(table) for table in new.blocks], new.params.logprobs is not None,
                new.params.prompt_logprobs is not None,
            )  # fmt: skip
        for growth in plan.grown:
            row = self.rows[growth.row]
            assert row is not None
            row.tables[growth.group][growth.first :] = growth.blocks
        for number, token in plan.newest:
            row = self.rows[number]
            assert row is not None
            if row.sampling:  # on another stage
                self._learn(row, [token])
            assert row.tokens[-1] == token
        self.written.clear()
        samples = [self._run(piece) for piece in plan.slices]
        if broken:
            for block in self.written:
                self.memory[block] = [-self.memory[block][0]] * len(self.memory[block])
        return samples

    def _run(self, piece: Slice) -> list[int]:
        row = self.rows[piece.row]
        assert row is not None and row.generation == piece.generation, "the row has another owner"  # noqa: PT018
        assert not row.sampling, "what the row sampled last is not known here yet"
        start = row.computed
        if piece.tokens:
            fed = list(piece.tokens)
            assert fed == row.tokens[start : start + piece.count]
            assert piece.sample == (start + len(fed) == len(row.tokens))
        else:
            assert piece.sample
            assert start == len(row.tokens) - 1
            fed = [row.tokens[-1], *row.drafts[: piece.drafts]]
        assert len(fed) <= piece.count
        for offset, token in enumerate(fed):
            self._write(row, start + offset, token)
        if not piece.sample:
            row.computed += piece.count
            return []
        row.sampling = True
        first = start + len(fed) - 1 if piece.tokens else start
        return [self._sample(row, position) for position in range(first, start + len(fed))]

    def accept(self, piece: Slice, samples: list[int]) -> list[int]:
        """Which of the samples stand: those up to the first that a draft did not foretell."""
        row = self.rows[piece.row]
        assert row is not None
        taken: list[int] = []
        for i, token in enumerate(samples):
            taken.append(token)
            if i < len(samples) - 1 and row.drafts[i] != token:
                break
        return taken

    def record(self, piece: Slice, taken: list[int], drafts: list[int]) -> None:
        row = self.rows[piece.row]
        assert row is not None
        assert row.generation == piece.generation
        self._learn(row, taken)
        row.drafts = drafts

    def _learn(self, row: FakeRow, tokens: list[int]) -> None:
        row.sampling = False
        row.tokens += tokens
        row.computed = len(row.tokens) - 1

    def _read(self, row: FakeRow, group: int, position: int) -> int:
        size = self.groups[group].block_tokens
        return self.memory[row.tables[group][position // size]][position % size]

    def _write(self, row: FakeRow, position: int, token: int) -> None:
        for group, spec in enumerate(self.groups):
            before = self._read(row, group, position - 1) if position else 0
            block = row.tables[group][position // spec.block_tokens]
            self.memory[block][position % spec.block_tokens] = self.model.value(group, before, token)
            self.written.add(block)

    def _sample(self, row: FakeRow, position: int) -> int:
        contexts = [
            tuple([self._read(row, group, p) for p in range(self.model.first_read(group, position), position + 1)])
            for group in range(len(self.groups))
        ]
        return self.model.sample(contexts, row.seed, row.index)


class FakeExecutor:
    """Implements the executor's protocol with `num_stages` fake devices. A plan moves on one stage whenever the next is submitted.

    With `num_drafts` it proposes up to so many drafts a step, each right with probability `hit_rate`. Steps listed in `failing` raise.
    """

    def __init__(
        self, layout: KVLayout, max_num_seqs: int, model: FakeModel, *, num_stages: int = 1, num_drafts: int = 0, hit_rate: float = 0.5,
        seed: int = 0, failing: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.model = model
        self.devices = [FakeDevice(layout, max_num_seqs, model) for _ in range(num_stages)]
        self.num_drafts = num_drafts
        self.hit_rate = hit_rate
        self.failing = set(failing)
        self._random = Random(seed)
        self._moving: deque[FakeStep] = deque()

    def submit(self, plan: Plan) -> FakeStep:
        self._move()
        step = FakeStep(self, plan)
        self._moving.append(step)
        self._visit(step)
        return step

    def sample(self, plan: Plan, masks: Any) -> None:
        raise AssertionError("the fake model knows no grammars")

    def close(self) -> None:
        self._moving.clear()

    def wait(self, step: FakeStep) -> None:
        while step.output is None:
            self._move()

    def _move(self) -> None:
        for step in list(self._moving):
            self._visit(step)

    def _visit(self, step: FakeStep) -> None:
        """Run the step on its next stage; on the last, sample."""
        if step.output is not None:
            return
        broken = step.plan.step in self.failing
        samples = self.devices[step.stage].forward(step.plan, broken)
        assert step.samples is None or samples == step.samples, "stages disagree about the context"
        step.samples = samples
        step.stage += 1
        if step.stage == len(self.devices):
            self._moving.remove(step)
            step.output = self._finish(step.plan, samples)

    def _finish(self, plan: Plan, samples: list[list[int]]) -> StepOutput:
        last = self.devices[-1]
        tokens: list[list[int]] = []
        num_drafts: list[int] = []
        scored: dict[int, list[TokenLogprobs]] = {}
        logprobs: dict[int, list[TokenLogprobs]] = {}
        for i, (piece, sampled) in enumerate(zip(plan.slices, samples)):
            row = last.rows[piece.row]
            assert row is not None
            taken = last.accept(piece, sampled) if piece.sample else []
            if row.logprobs and taken:
                logprobs[i] = [TokenLogprobs((token,), (-1.0,), 1) for token in taken]
            if row.prompt_logprobs and piece.tokens:
                start = row.computed if piece.sample else row.computed - piece.count
                known = row.tokens[start + 1 : min(start + piece.count + 1, row.num_prompt)]
                scored[i] = [TokenLogprobs((token,), (-1.0,), 1) for token in known]
            drafts = self._propose(row, taken) if piece.sample else []
            tokens.append(taken)
            num_drafts.append(len(drafts))
            if piece.sample:
                last.record(piece, taken, drafts)  # the other stages learn it by `Plan.newest`
        return StepOutput(plan.step, tokens, num_drafts if self.num_drafts else None, logprobs or None, scored or None)

    def _propose(self, row: FakeRow, taken: list[int]) -> list[int]:
        count = self._random.randint(0, self.num_drafts)
        if not count:
            return []
        right = self.model.continuation(row.tokens + taken, count, row.seed, row.index)
        return [token if self._random.random() < self.hit_rate else self._random.randrange(self.model.vocab_size) for token in right]


class FakeStep:
    """A step under way."""

    def __init__(self, executor: FakeExecutor, plan: Plan) -> None:
        self.plan = plan
        self.stage = 0
        self.samples: list[list[int]] | None = None
        self.output: StepOutput | None = None
        self._executor = executor

    def result(self) -> StepOutput:
        self._executor.wait(self)
        if self.plan.step in self._executor.failing:
            raise RuntimeError(f"step {self.plan.step} failed")
        assert self.output is not None
        return self.output

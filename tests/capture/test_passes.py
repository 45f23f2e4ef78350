"""Passes that are recorded by room: what a graph would repeat gives what the step gives op by op."""

import random
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from octavo import LLM, SamplingParams
from octavo.attention.backend import AttentionShape
from octavo.attention.triton import PieceTuning, TileTuning, TritonAttention, Tuning
from octavo.capture.passes import PassGraphs
from octavo.config.architecture import Architecture
from octavo.config.graphs import FEW, PASS_SIZES, first_rooms, rooms, slice_sizes
from octavo.config.resolved import Resolved
from octavo.context import UNPADDED, Room
from octavo.core.plan import Admission, Plan, Slice
from octavo.models.checkpoint import Checkpoint
from octavo.plan.memory import MOST_PASSES
from octavo.worker.batch import BatchBuilder
from octavo.worker.build import build_runner
from octavo.worker.rows import Rows
from octavo.worker.warm import GREEDY
from tests.interpreter import interpret
from tests.worker.test_warm import CONFIG

INTERPRETED = interpret()
TUNING = Tuning(PieceTuning(programs=3, shortest=16, block_n=16), TileTuning(block_m=16, block_n=16, num_warps=4))


class Recorder:
    """As a graph does: the host's numbers stay those of the recording, the result is always in the same memory."""

    def __init__(self):
        self.num_recorded = self.num_replays = 0

    def __call__(self, step):
        self.num_recorded += 1
        memory = step().clone()

        def replay():
            self.num_replays += 1
            memory.copy_(step())

        return replay, memory


def texts(record, ahead=False, **flags):
    llm = LLM(
        "smollm2-135m", max_model_len=128, kv_cache_memory_bytes=32 << 20, seed=0, enforce_eager=True, max_num_batched_tokens=40, **flags
    )
    worker = llm._engine.executor.worker
    if record is not None:
        worker.passes = PassGraphs(worker.run, (8, 16, 40), slice_sizes(worker.rows.padding), 5, record)
        if ahead:
            llm._engine.executor.order("record_pass", 40, worker.rows.padding)
            assert (record.num_recorded, record.num_replays) == (1, 0)
    draw = random.Random(1)
    prompts = [{"prompt_token_ids": [draw.randrange(40000) for _ in range(draw.choice((3, 9, 60)))]} for _ in range(9)]
    params = [
        SamplingParams(
            temperature=draw.choice((0, 0.8)),
            seed=number,
            max_tokens=draw.choice((2, 9, 14)),
            ignore_eos=True,
            detokenize=False,
            logprobs=1,
            prompt_logprobs=1 if number == 4 else None,
        )
        for number in range(9)
    ]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    llm.close()
    return [output.outputs[0].token_ids for output in outputs], outputs[4].prompt_logprobs


@pytest.mark.parametrize(("backend", "ahead"), [("reference", False), ("auto", True)])
def test_an_engine_answers_the_same_from_recorded_passes(backend, ahead):
    record = Recorder()
    flags = dict(attention_backend=backend, dtype="float32", max_num_seqs=20)
    recorded, recorded_scores = texts(record, ahead, **flags)
    plain, plain_scores = texts(None, **flags)
    assert recorded == plain
    assert [list(each) for each in recorded_scores[1:]] == [list(each) for each in plain_scores[1:]]
    assert 1 < record.num_recorded <= 5
    assert record.num_replays > 10


def test_a_room_is_recorded_when_it_is_needed_again():
    record = Recorder()
    passes = PassGraphs(lambda batch: torch.tensor([1.0]), (4, 8), (2, 6), 2, record)
    assert passes.room(3, 1) == Room(4, 2)
    assert passes.room(5, 3) == Room(8, 6)
    assert passes.room(9, 1) == passes.room(8, 7) == UNPADDED
    passes.run(None, Room(4, 2))
    assert not record.num_recorded
    passes.run(None, Room(4, 2))
    passes.run(None, Room(4, 2))
    assert (record.num_recorded, record.num_replays) == (1, 2)
    passes.run(None, Room(8, 6)), passes.run(None, Room(8, 6))
    assert passes.room(5, 2) == UNPADDED, "there are as many as there may be"
    assert passes.room(3, 2) == Room(4, 2)


def test_a_step_in_no_room_is_never_recorded():
    record = Recorder()
    passes = PassGraphs(lambda batch: torch.zeros(batch), (4, 8), (2, 6), 2, record)
    assert [len(passes.run(size, UNPADDED)) for size in (9, 9, 12, 20)] == [9, 9, 12, 20]
    assert not record.num_recorded


def test_sizes_for_slices_end_with_all_rows():
    assert slice_sizes(5) == (5,)
    assert slice_sizes(64) == (64,)
    assert slice_sizes(300) == (64, 300)


def test_all_rooms_of_the_usual_sizes_can_be_recorded():
    """Else the cost model, which counts steps of these sizes among the graphs, would be wrong about those that came too late."""
    assert len(list(rooms(Resolved(max_num_seqs=1024, pass_sizes=PASS_SIZES)))) <= MOST_PASSES


def test_replicas_that_step_together_begin_with_all_rooms_that_they_come_to():
    sizes, most = tuple(sorted({*FEW, *PASS_SIZES})), 1024
    settings = Resolved(max_num_seqs=most, pass_sizes=sizes, data_parallel_size=2, expert_parallel_size=2)
    passes = PassGraphs(torch.zeros, sizes, slice_sizes(most), MOST_PASSES, Recorder())
    met = {passes.room(together, min(together, most)) for together in range(1, sizes[-1] + 1)}
    assert sorted(first_rooms(settings)) == sorted((room.num_tokens, room.num_slices) for room in met)
    assert len(met) <= MOST_PASSES
    assert len(list(first_rooms(replace(settings, data_parallel_size=1)))) == 1


class Rooms(PassGraphs):
    """Notes which are asked for, in turn."""

    def run(self, batch, room):
        self.seen = [*getattr(self, "seen", []), (room, batch.tokens.numel(), batch.rows.numel())]
        return super().run(batch, room)


def test_replicas_that_step_together_are_in_one_room_whatever_each_has_to_do(tmp_path):
    settings = Resolved(max_model_len=64, block_size=8, max_num_seqs=6, max_num_batched_tokens=48, kv_bytes=1 << 20)
    checkpoint = Checkpoint("tiny", tmp_path, "dummy", CONFIG, {})
    seen, record = [], Recorder()
    for counts in ([(3, 1), (1,)], [(), (1, 1, 1)], [(9,), ()]):
        runner = build_runner(settings, Architecture.from_config(CONFIG), checkpoint, lambda name: nullcontext())
        runner.passes = Rooms(runner.run, (1, 2, 4, 8, 16, 48), slice_sizes(6), 5, record)
        for step, (together, own) in enumerate(zip((9, 3), counts)):
            admitted = tuple(Admission(row, 1, GREEDY, 0, (7,) * 9, 9, 0, ((row,),)) for row in range(len(own)))
            slices = tuple(Slice(row, 1, count, 0, True, (5,) * count) for row, count in enumerate(own))
            runner.step(Plan(step, slices, admitted, num_tokens_all=together)).result()
            runner.rows.apply(Plan(step, retired=tuple(range(len(own)))))
        seen.append(runner.passes.seen)
    assert seen == [[(Room(16, 6), 16, 6), (Room(4, 6), 4, 6)]] * 3


def built(counts, old, room):
    """The batch of these slices over contexts of `old` tokens, one group of blocks of four tokens."""
    settings = Resolved(max_num_seqs=6, max_num_batched_tokens=64, max_model_len=64)
    device = torch.device("cpu")
    rows, batches = Rows(settings, (16,), (), device), BatchBuilder(settings, (4,), device)
    admitted = tuple(
        Admission(row, 1, SamplingParams(), 0, (7,) * 64, 64, done, (tuple(range(row * 16, row * 16 + 16)),))
        for row, done in enumerate(old)
    )
    slices = tuple(Slice(row, 1, count, 0, True, (row + 1,) * count) for row, count in enumerate(counts))
    plan = Plan(1, slices, admitted)
    rows.apply(plan)
    return batches.build(plan, rows, room), rows


@pytest.mark.parametrize(("counts", "old"), [((1, 9, 3), (20, 0, 5)), ((1, 1), (40, 3)), ((2, 1, 1, 1), (0, 30, 1, 7)), ((30,), (0,))])
def test_triton_attends_in_a_room_as_it_does_without(counts, old):
    shape, backend, num = AttentionShape(4, 2, 16, 0.3), TritonAttention(TUNING), sum(counts)
    torch.manual_seed(0)
    q, kv = torch.randn(64, 4, 16), torch.randn(96, 2, 4, 2, 16)
    found = []
    for room in (UNPADDED, Room(40, 6)):
        batch, rows = built(counts, old, room)
        plan = backend.plan(batch, 0, rows.block_tables[0], 4)
        found.append(backend.run(plan, q[: batch.tokens.numel()], kv, shape))
    assert found[1].shape[0] == 40
    torch.testing.assert_close(found[1][:num], found[0], atol=1e-5, rtol=1e-5)
    assert not found[1][num:].any(), "padding is finite"


def test_what_the_host_says_of_a_batch_in_a_room_depends_on_the_room_alone():
    facts = set()
    for counts, old in (((1, 9, 3), (20, 0, 5)), ((1,), (3,)), ((39,), (0,))):
        batch, rows = built(counts, old, Room(40, 6))
        facts.add(
            (batch.num_tokens, batch.num_slices, batch.max_count, batch.max_length, batch.fresh, batch.tokens.shape, batch.lengths.shape)
        )
        assert batch.lengths.tolist() == [done + count for done, count in zip(old, counts)] + [0] * (6 - len(counts))
        assert batch.starts.tolist()[len(counts) :] == [sum(counts)] * (7 - len(counts))
        assert batch.rows.tolist()[len(counts) :] == [rows.padding] * (6 - len(counts))
        assert batch.slots[0, sum(counts) :].tolist() == [-1] * (40 - sum(counts))
    assert len(facts) == 1

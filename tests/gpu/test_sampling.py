"""Rows and sampler on a GPU: the tokens of the CPU, and the whole of it in a captured graph."""

import numpy as np
import pytest
import torch

from octavo.core.plan import Plan, Slice
from octavo.types import SamplingParams
from tests.sampling.oracle import Bench

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

VOCAB = 5000
MANY = [
    SamplingParams(temperature=0),
    SamplingParams(),
    SamplingParams(temperature=0.8, top_p=0.95),
    SamplingParams(top_k=20, min_p=0.01),
    SamplingParams(top_k=50, top_p=0.5, repetition_penalty=1.2),
    SamplingParams(temperature=0, presence_penalty=1.0, logit_bias={7: 4.0}),
    SamplingParams(temperature=1.3, min_tokens=3, stop_token_ids=[1, 2]),
    SamplingParams(temperature=0, allowed_token_ids=[4, 5]),
]


def benches(many=MANY):
    both = [Bench(len(many), VOCAB), Bench(len(many), VOCAB, device="cuda")]
    for bench in both:
        for row, params in enumerate(many):
            bench.admit(row, params, seed=row)
    return both


def logits_of(step, rows=8):
    return torch.from_numpy(np.random.default_rng(step).normal(size=(rows, VOCAB)).astype(np.float32) * 3)


def test_tokens_are_those_of_the_cpu():
    cpu, gpu = benches([*MANY, SamplingParams(logprobs=3), SamplingParams(temperature=0, bad_token_ids=((3,), (4, 5)))])
    for step in range(20):
        by_row = dict(enumerate(logits_of(step, 10)))
        expected, got = cpu.step(by_row), gpu.step(by_row)
        assert got.tokens == expected.tokens
        assert got.logprobs[8][0].token_ids == expected.logprobs[8][0].token_ids
        assert got.logprobs[8][0].logprobs == pytest.approx(expected.logprobs[8][0].logprobs, abs=1e-4)


def test_a_captured_step_follows_the_sequences_through_replays():
    eager, gpu = benches()
    plan = Plan(0, tuple(Slice(row, 0, 1, 0, True) for row in range(len(MANY))))
    recipe = gpu.sampler.recipe(plan, gpu.rows.held).everywhere()
    logits = torch.zeros(len(MANY), VOCAB, device="cuda")
    batch = gpu.batch(range(len(MANY)))

    def step():
        batch.positions.copy_(gpu.rows.computed[: len(MANY)])
        sampled = gpu.sampler(logits.clone(), batch, gpu.rows, recipe)
        gpu.rows.record(batch, sampled)
        return sampled

    start = {name: column.clone() for name, column in (*gpu.rows.columns.items(), *gpu.rows.pools.items())}
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sampled = step()
    for name, column in (*gpu.rows.columns.items(), *gpu.rows.pools.items()):
        column.copy_(start[name])
    gpu.rows.computed[: len(MANY)] = 2  # of three prompt tokens
    for i in range(10):
        logits.copy_(logits_of(i))
        graph.replay()
        assert sampled.fetch(plan).result().tokens == eager.step(dict(enumerate(logits_of(i)))).tokens
    assert gpu.rows.computed[: len(MANY)].tolist() == [12] * len(MANY)
    assert gpu.rows.last_token[: len(MANY)].tolist() == sampled.tokens[:, 0].tolist()

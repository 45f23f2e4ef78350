"""Random workloads: whatever the settings, arrivals and disturbances, every text equals plain recursion and nothing is left over."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import pytest

from octavo.config.resolved import Resolved
from octavo.core.limits import SlotPool
from octavo.types import Request, SamplingParams
from tests.laws.drive import Engine
from tests.laws.fake import FakeModel, make_layout

NUM_WORKLOADS = 2400
PARTS = 12


@dataclass(frozen=True)
class Workload:
    settings: Resolved
    windows: tuple[int | None, ...]
    units: tuple[int, ...]
    num_blocks: int
    hit_rate: float
    slots: int
    requests: tuple[tuple[int, Request], ...]  # the step at which each arrives
    aborts: tuple[tuple[int, str], ...]
    finishes: tuple[tuple[int, str, int], ...]
    failing: tuple[int, ...]  # steps that raise


def draw_workload(seed: int) -> Workload:
    draw = Random(seed)
    block = draw.choice([1, 2, 3, 4, 8])
    windows: tuple[int | None, ...] = draw.choice([(None,)] * 4 + [(None, 3), (4,), (None, 5, 5), (1, None), (7, None)])
    units = tuple(draw.choice([1, 1, 2]) if draw.random() < 0.3 else 1 for _ in windows)
    max_model_len = draw.randint(8, 48)
    chunked = draw.random() < 0.85
    budget = draw.randint(1, 24) if chunked else max_model_len + draw.randint(0, 16)
    settings = Resolved(
        max_model_len=max_model_len,
        block_size=block,
        enable_prefix_caching=draw.random() < 0.75,
        max_num_seqs=draw.randint(1, 8),
        max_num_batched_tokens=budget,
        enable_chunked_prefill=chunked,
        scheduling_policy=draw.choice(["fcfs", "priority", "fair"]),
        max_num_partial_prefills=draw.choice([1, 1, 2, 3]),
        max_long_partial_prefills=1,
        long_prefill_token_threshold=draw.choice([0, 0, 0, 3, 6]),
        overlap_depth=draw.choice([0, 1, 1, 2, 3]),
        num_speculative_tokens=draw.choice([0, 0, 1, 3]),
        pipeline_parallel_size=draw.choice([1, 1, 1, 2, 3, 4]),
        target_itl_s=draw.choice([0.0, 0.0, 2.0, 6.0, 15.0]) if chunked else 0.0,
        target_ttft_s=draw.choice([0.0, 0.0, 5.0, 50.0]) if chunked else 0.0,
    )
    if settings.pipeline_parallel_size > 1:
        settings = replace(settings, num_speculative_tokens=0)
    layout = make_layout(1 << 20, block, windows, units)
    least = layout.peak_blocks(max_model_len - 1, budget)
    num_blocks = least + draw.choice([0, 0, 1, 3, draw.randint(0, 4 * least)])
    requests = tuple((draw.randint(0, 15), _request(draw, i, max_model_len)) for i in range(draw.randint(1, 9)))
    names = [request.id for _, request in requests]
    return Workload(
        settings, windows, units, num_blocks, draw.choice([0.0, 0.5, 0.9, 1.0]), draw.randint(1, 8), requests,
        aborts=tuple((draw.randint(0, 60), draw.choice(names)) for _ in range(draw.choice([0, 0, 1, 3]))),
        finishes=tuple((draw.randint(0, 60), draw.choice(names), draw.randint(0, 2)) for _ in range(draw.choice([0, 0, 1, 3]))),
        failing=tuple(draw.randint(1, 40) for _ in range(draw.choice([0, 0, 0, 1, 2]))),
    )  # fmt: skip


def _request(draw: Random, number: int, max_model_len: int) -> Request:
    shared = [draw.randrange(1, 32) for _ in range(4)] if draw.random() < 0.2 else [(7 * i) % 31 + 1 for i in range(max_model_len)]
    length = min(draw.randint(1, max_model_len - 1), draw.randint(1, max_model_len - 1))
    keep = draw.randint(0, length)
    prompt = (shared[:keep] + [draw.randrange(1, 32) for _ in range(length)])[:length]
    max_tokens = draw.choice([None, None, 1, draw.randint(1, 40)])
    params = SamplingParams(
        n=draw.choice([1, 1, 1, 2, 3]),
        seed=draw.randrange(3),
        max_tokens=max_tokens,
        min_tokens=draw.randint(0, 4) if max_tokens is None or max_tokens >= 4 else 0,
        eos_token_ids=(0, 5) if draw.random() < 0.5 else (),
        logprobs=0 if draw.random() < 0.2 else None,
        prompt_logprobs=1 if draw.random() < 0.15 else None,
    )
    return Request(
        f"r{number}", tuple(prompt), params, arrival_s=float(number), priority=draw.choice([0, 0, 1, -3]),
        cache_salt=draw.choice([None, None, "a", "b"]), tenant=draw.choice([None, "x", "y"]),
    )  # fmt: skip


def run_workload(load: Workload) -> Engine:
    layout = make_layout(load.num_blocks, load.settings.block_size, load.windows, load.units)
    engine = Engine(
        load.settings, layout, FakeModel(32, load.windows), hit_rate=load.hit_rate, limits=(SlotPool(load.slots),), failing=load.failing
    )
    for now in range(62):
        for at, request in load.requests:
            if at == now:
                engine.add(request)
        for at, name in load.aborts:
            if at == now:
                engine.abort(name)
        for at, name, index in load.finishes:
            if at == now and (name, index) in engine.told:
                engine.finish(name, index)
        engine.step()
    engine.run(20_000)
    engine.check_texts()
    engine.check_empty()
    return engine


@pytest.mark.parametrize("part", range(PARTS))
def test_every_text_equals_plain_recursion(part: int) -> None:
    for seed in range(part, NUM_WORKLOADS, PARTS):
        try:
            run_workload(draw_workload(seed))
        except Exception as error:
            raise AssertionError(f"workload {seed}: {draw_workload(seed)}") from error

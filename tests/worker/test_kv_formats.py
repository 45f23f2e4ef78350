"""A whole step with K and V in each compressed format: near the logits without, not equal to them, and the same after sleep."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from octavo.config.architecture import Architecture
from octavo.config.resolved import Resolved
from octavo.core.plan import Admission, Plan, Slice
from octavo.models.checkpoint import Checkpoint
from octavo.ops.kv_format import FP8
from octavo.types import SamplingParams
from octavo.worker.build import build_runner
from tests.worker.test_warm import CONFIG

SETTINGS = Resolved(max_model_len=64, block_size=8, max_num_seqs=3, max_num_batched_tokens=48, kv_bytes=1 << 16)
GREEDY = SamplingParams(temperature=0.0)
TOKENS = tuple(range(3, 33))


def start(tmp_path, level, kv_dtype):
    settings = replace(SETTINGS, kv_dtype=kv_dtype, optimization_level=level)
    checkpoint = Checkpoint("tiny", tmp_path, "dummy", CONFIG, {})
    return build_runner(settings, Architecture.from_config(CONFIG), checkpoint, lambda name: nullcontext())


def logits(runner):
    """After a prompt in two chunks, and after a token more: [2, vocab]."""
    admission = Admission(1, 1, GREEDY, 0, TOKENS, len(TOKENS), 0, ((4, 2, 7, 1),))
    runner.step(Plan(1, (Slice(1, 1, 20, 0, False, TOKENS[:20]),), (admission,), retired=tuple(runner.rows.held))).result()
    found = []
    for plan in (Plan(2, (Slice(1, 1, 10, 0, True, TOKENS[20:]),)), Plan(3, (Slice(1, 1, 1, 0, True),))):
        runner.forward(plan)
        found.append(runner.waiting_logits())
        runner.sample(plan).result()
        runner.rows.last_token[1] = 5  # whatever was sampled, so that runs are comparable
    return torch.cat(found)


@pytest.mark.parametrize("level", [0, 2])
def test_formats(tmp_path, level):
    exact = logits(start(tmp_path, level, "float32"))
    errors = {
        kind: float((logits(start(tmp_path, level, kind)) - exact).norm() / exact.norm())
        for kind in ("int8", "fp8_e4m3", "fp8_e5m2", "bfloat16")
    }
    assert 0 < errors["int8"] < errors["fp8_e4m3"] < errors["fp8_e5m2"] < 0.2
    assert 0 < errors["bfloat16"] < errors["int8"]


@pytest.mark.parametrize("kind", ["int8", "fp8_e4m3", "fp8_e5m2", "float32"])
def test_a_layer_wakes_with_the_scales_of_its_format(tmp_path, kind):
    runner = start(tmp_path, 2, kind)
    for layer in runner.model.attention_layers if kind in FP8 else ():
        layer.kv_scales.copy_(torch.tensor([0.5, 0.25]))  # as a checkpoint's
    expected = logits(runner)
    runner.orders["sleep"](1)
    assert not any(layer.kv.nbytes for layer in runner.model.attention_layers)
    runner.orders["wake"](["weights", "kv_cache"])
    assert torch.equal(logits(runner), expected)

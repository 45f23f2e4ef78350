"""The first steps run, leave no row behind, and fit in small pools."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from octavo.config.architecture import Architecture
from octavo.config.resolved import Resolved
from octavo.models.checkpoint import Checkpoint
from octavo.worker.build import build_runner
from octavo.worker.warm import warm_up

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 48, "vocab_size": 60, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": True, "hidden_act": "silu",
}  # fmt: skip


@pytest.mark.parametrize(("max_num_seqs", "num_blocks"), [(8, 40), (2, 3), (1, 40)])
def test_warm_up(tmp_path, max_num_seqs, num_blocks):
    settings = Resolved(max_model_len=64, block_size=8, max_num_seqs=max_num_seqs, max_num_batched_tokens=48, kv_bytes=num_blocks * 8 * 256)
    checkpoint = Checkpoint("tiny", tmp_path, "dummy", CONFIG, {})
    runner = build_runner(settings, Architecture.from_config(CONFIG), checkpoint, lambda name: nullcontext())
    steps = []
    step = runner.step
    runner.step = lambda plan: steps.append(plan) or step(plan)
    warm_up(runner, settings)
    assert not runner.rows.held
    assert steps or num_blocks == 3
    assert all(plan.num_tokens <= settings.max_num_batched_tokens for plan in steps)


def test_all_padded_sizes_are_warmed_where_no_decode_step_is_captured(tmp_path):
    settings = Resolved(
        max_model_len=64, block_size=8, max_num_seqs=8, max_num_batched_tokens=48, kv_bytes=40 * 8 * 256, graph_mode="PIECEWISE",
        graph_sizes=(1, 2, 4, 8),
    )  # fmt: skip
    checkpoint = Checkpoint("tiny", tmp_path, "dummy", CONFIG, {})
    runner = build_runner(settings, Architecture.from_config(CONFIG), checkpoint, lambda name: nullcontext())
    sampled = []
    step = runner.step
    runner.step = lambda plan: sampled.append(sum(piece.sample for piece in plan.slices)) or step(plan)
    warm_up(runner, settings)
    assert {1, 2, 6} <= set(sampled)

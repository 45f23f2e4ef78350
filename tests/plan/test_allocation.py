"""What is planned from a config.json alone is what the engine allocates: blocks and tokens of KV, bytes of weights, KV and rows."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from octavo.config.architecture import Architecture
from octavo.config.engine import EngineConfig
from octavo.config.resolve import resolve
from octavo.engine.build import build_engine, open_model
from octavo.llm import Collected
from octavo.plan.devices import Device
from octavo.plan.memory import plan_memory
from tests.plan.checkpoints import DEEPSEEK_V3, GEMMA3_1B, LLAMA3_8B, MIXTRAL_8X7B, QWEN3_06B

SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128}
CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({**LLAMA3_8B, **SMALL, "num_hidden_layers": 3}, {}),
    ({**LLAMA3_8B, **SMALL, "num_hidden_layers": 2}, {"block_size": 32, "dtype": "float32"}),
    ({**QWEN3_06B, **SMALL, "num_hidden_layers": 2, "head_dim": 32}, {"dtype": "bfloat16", "max_num_seqs": 7}),
    ({**GEMMA3_1B, **SMALL, "num_hidden_layers": 6, "head_dim": 32}, {"max_model_len": 2048}),
    ({**MIXTRAL_8X7B, **SMALL, "num_hidden_layers": 2, "num_local_experts": 4}, {"max_num_batched_tokens": 512}),
]


LATENT = {
    **DEEPSEEK_V3, **SMALL, "num_key_value_heads": 4, "num_hidden_layers": 3, "first_k_dense_replace": 1, "kv_lora_rank": 32,
    "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "n_routed_experts": 8, "moe_intermediate_size": 32, "n_group": 4,
    "topk_group": 2, "num_experts_per_tok": 2,
}  # fmt: skip
CASES.append((LATENT, {"max_model_len": 4096}))


def check(asked: EngineConfig, config: Mapping[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    settings = resolve(asked, config, Device.cpu())
    plan = plan_memory(Architecture.from_config(config), settings)
    caplog.set_level(logging.INFO)
    loop, info = build_engine(asked, Collected())
    layout = loop.scheduler.cache.layout
    assert layout.num_blocks == plan.num_blocks > 10
    assert info["kv_tokens"] >= plan.kv_tokens
    if len(layout.groups) == 1:
        assert info["kv_tokens"] == pytest.approx(plan.kv_tokens, rel=0.01)
    loop.close()
    told = next(message for message in caplog.messages if "as planned" in message).splitlines()[2:]
    sides = [re.findall(r"[\d.]+ [KMG]iB", line) for line in told]
    assert len(sides) == 3
    for planned, measured in sides:
        assert planned.split()[1] == measured.split()[1]
        assert float(measured.split()[0]) == pytest.approx(float(planned.split()[0]), rel=0.01)


@pytest.mark.parametrize(("config", "flags"), CASES, ids=["llama", "wide blocks", "qwen3", "window", "experts", "latent"])
def test_the_engine_allocates_what_was_planned(
    config: dict[str, Any], flags: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    kv_bytes = (96 << 20) + 12_345
    asked = {"model": str(tmp_path), "load_format": "dummy", "skip_tokenizer_init": True, "kv_cache_memory_bytes": kv_bytes, **flags}
    check(EngineConfig.from_flags(**asked), config, caplog)


def test_packed_weights_take_what_was_planned(caplog: pytest.LogCaptureFixture) -> None:
    asked = EngineConfig.from_flags(model="smollm2-135m", kv_cache_memory_bytes=96 << 20, max_model_len=1024)
    check(asked, open_model(asked).config, caplog)

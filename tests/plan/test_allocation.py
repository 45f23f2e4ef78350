"""What is planned from a config.json alone is what the engine allocates, for models of five kinds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.config.architecture import Architecture
from octavo.config.engine import EngineConfig
from octavo.config.resolve import resolve
from octavo.engine.build import build_engine
from octavo.llm import Collected
from octavo.plan.devices import Device
from octavo.plan.memory import plan_memory
from tests.plan.checkpoints import GEMMA3_1B, LLAMA3_8B, MIXTRAL_8X7B, QWEN3_06B

SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128}
CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({**LLAMA3_8B, **SMALL, "num_hidden_layers": 3}, {}),
    ({**LLAMA3_8B, **SMALL, "num_hidden_layers": 2}, {"block_size": 32, "dtype": "float32"}),
    ({**QWEN3_06B, **SMALL, "num_hidden_layers": 2, "head_dim": 32}, {"dtype": "bfloat16", "max_num_seqs": 7}),
    ({**GEMMA3_1B, **SMALL, "num_hidden_layers": 6, "head_dim": 32}, {"max_model_len": 2048}),
    ({**MIXTRAL_8X7B, **SMALL, "num_hidden_layers": 2, "num_local_experts": 4}, {"max_num_batched_tokens": 512}),
]


@pytest.mark.parametrize(("config", "flags"), CASES)
def test_the_engine_allocates_what_was_planned(config: dict[str, Any], flags: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    asked = EngineConfig.from_flags(
        model=str(tmp_path), load_format="dummy", skip_tokenizer_init=True, kv_cache_memory_bytes=(96 << 20) + 12_345, **flags
    )
    plan = plan_memory(Architecture.from_config(config), resolve(asked, config, Device.cpu()))
    loop, info = build_engine(asked, Collected())
    assert loop.scheduler.cache.layout.num_blocks == plan.num_blocks > 10
    assert info["kv_tokens"] >= plan.kv_tokens
    if len(loop.scheduler.cache.layout.groups) == 1:
        assert info["kv_tokens"] == pytest.approx(plan.kv_tokens, rel=0.01)
    loop.close()

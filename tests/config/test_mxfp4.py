"""What stays packed of a checkpoint whose experts are in MXFP4."""

from __future__ import annotations

import pytest

from octavo.config.architecture import Architecture
from octavo.config.engine import EngineConfig
from octavo.config.fields import ConfigError
from octavo.config.resolve import resolve
from octavo.plan.devices import Device
from octavo.plan.memory import plan_memory

GPT_OSS_20B = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
    "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32,
    "num_experts_per_tok": 4, "sliding_window": 128, "vocab_size": 201088, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
    "attention_bias": True, "layer_types": ["sliding_attention", "full_attention"] * 12, "torch_dtype": "bfloat16", "hidden_act": "silu",
    "rope_theta": 150000, "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
}  # fmt: skip
IN_EXPERTS = 24 * 32 * 3 * 2880 * 2880


def decided(config=GPT_OSS_20B, **flags):
    return resolve(EngineConfig.from_flags(**flags), config, Device.named("h200"))


def test_experts_take_17_bytes_for_32_numbers():
    settings = decided()
    assert (settings.quantization, settings.packed) == ("mxfp4", (IN_EXPERTS, IN_EXPERTS // 32 * 17))
    planned = plan_memory(Architecture.from_config(GPT_OSS_20B), settings)
    weights = planned.costs.weight_bytes
    assert weights == pytest.approx(13.8e9, rel=0.01), "what the files of the model take"


@pytest.mark.parametrize(
    ("flags", "share"),
    [({"tensor_parallel_size": 2}, 2), ({"tensor_parallel_size": 4, "enable_expert_parallel": True}, 4), ({"pipeline_parallel_size": 2}, 2),
     ({"tensor_parallel_size": 2, "data_parallel_size": 2, "enable_expert_parallel": True}, 4), ({"load_format": "dummy"}, 1)],
)  # fmt: skip
def test_each_rank_holds_its_share(flags, share):
    assert decided(**flags).packed.num_values == IN_EXPERTS // share


def test_cut_between_blocks_they_are_widened_and_the_reason_is_told():
    settings = decided(tensor_parallel_size=4)
    assert settings.quantization == "none"
    assert settings.reasons["quantization"].startswith("experts in MXFP4 are widened: 2880 inner features over 4 ranks do not end")
    assert decided(quantization="none").packed.num_values == 0


@pytest.mark.parametrize(
    ("config", "flags", "why"),
    [
        (GPT_OSS_20B, {"quantization": "mxfp4", "tensor_parallel_size": 4}, "use none, --enable-expert-parallel, or fewer ranks"),
        (GPT_OSS_20B, {"quantization": "gguf"}, "the model's experts are in mxfp4; use mxfp4, none or auto"),
        (GPT_OSS_20B | {"quantization_config": None}, {"quantization": "mxfp4"}, "no experts in this format"),
    ],
)
def test_what_cannot_be_is_refused(config, flags, why):
    with pytest.raises(ConfigError, match=why):
        decided(config, **flags)

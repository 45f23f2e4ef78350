"""Where "auto" is decided: by checkpoint and device, with a reason, or refused with the numbers."""

from dataclasses import replace
from typing import Any

import pytest

from octavo.config.architecture import Architecture, UnsupportedModel
from octavo.config.engine import EngineConfig
from octavo.config.fields import ConfigError
from octavo.config.resolve import resolve
from octavo.config.resolved import Resolved
from octavo.plan.devices import GIB, Device
from octavo.plan.memory import weight_bytes
from tests.plan.checkpoints import DEEPSEEK_V3, GEMMA3_1B, LLAMA3_8B, MIXTRAL_8X7B, QWEN3_06B, QWEN3_30B_A3B

SMALL = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
    "num_hidden_layers": 2, "max_position_embeddings": 4096, "vocab_size": 512, "dtype": "bfloat16",
}  # fmt: skip
CPU = Device("cpu", "cpu", 16 * GIB, 12 * GIB, cores=4)


def decide(flags: dict[str, Any] | None = None, config: dict[str, Any] = SMALL, device: Device = CPU, offline: bool = False) -> Resolved:
    return resolve(EngineConfig.from_flags(**flags or {}), config, device, offline=offline)


@pytest.mark.parametrize(
    ("device", "offline", "seqs", "tokens"),
    [("h200", False, 1024, 8192), ("h200", True, 1024, 16384), ("h100", False, 1024, 8192), ("l4", False, 256, 2048),
     ("l4", True, 256, 8192),
     ("cpu", False, 32, 2048), ("cpu", True, 32, 2048)],
)  # fmt: skip
def test_batch_limits_by_device(device: str, offline: bool, seqs: int, tokens: int) -> None:
    chosen = decide(device=CPU if device == "cpu" else Device.named(device), offline=offline)
    assert (chosen.max_num_seqs, chosen.max_num_batched_tokens) == (seqs, tokens)
    assert "default" in chosen.reasons["max_num_seqs"]


@pytest.mark.parametrize(
    ("flags", "seqs", "tokens"),
    [
        ({"max_num_seqs": 4}, 4, 2048),
        ({"max_num_seqs": 1, "max_model_len": 100}, 1, 100),
        ({"max_num_batched_tokens": 7}, 7, 7),
        ({"max_num_seqs": 5000}, 5000, 5000),
        ({"enable_chunked_prefill": False}, 32, 4096),
        ({"enable_chunked_prefill": False, "max_model_len": 512, "max_num_batched_tokens": 512}, 32, 512),
    ],
)
def test_asked_limits_count_and_the_other_one_follows(flags: dict[str, Any], seqs: int, tokens: int) -> None:
    chosen = decide(flags)
    assert (chosen.max_num_seqs, chosen.max_num_batched_tokens) == (seqs, tokens)


def test_without_chunked_prefill_a_budget_below_the_length_is_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"max-num-batched-tokens = 512 .*max-model-len = 4096"):
        decide({"enable_chunked_prefill": False, "max_num_batched_tokens": 512})


FAST = replace(CPU, fast_dtypes=("bfloat16", "float32"))


@pytest.mark.parametrize(
    ("asked", "stored", "device", "chosen"),
    [
        ("auto", "bfloat16", CPU, "float32"),
        ("auto", "bfloat16", FAST, "bfloat16"),
        ("auto", "float32", FAST, "bfloat16"),
        ("auto", "float16", FAST, "bfloat16"),
        ("auto", None, CPU, "float32"),
        ("auto", "bfloat16", Device.named("h200"), "bfloat16"),
        ("auto", "float16", Device.named("h200"), "float16"),
        ("auto", "float32", Device.named("h200"), "bfloat16"),
        ("auto", "bfloat16", Device.named("t4"), "float16"),
        ("bfloat16", "float32", CPU, "bfloat16"),
        ("half", "bfloat16", CPU, "float16"),
        ("float", "bfloat16", Device.named("h200"), "float32"),
    ],
)
def test_number_format(asked: str, stored: str | None, device: Device, chosen: str) -> None:
    settings = decide({"dtype": asked}, {**SMALL, "dtype": stored}, device)
    assert (settings.dtype, settings.kv_dtype) == (chosen, chosen)
    assert settings.reasons["dtype"]


@pytest.mark.parametrize(
    ("flags", "config", "device", "says"),
    [({"dtype": "bfloat16"}, SMALL, "t4", "float16 or float32"), ({"dtype": "float16"}, GEMMA3_1B, "h200", "overflows in float16")],
)
def test_formats_that_cannot_work(flags: dict[str, Any], config: dict[str, Any], device: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        decide(flags, config, Device.named(device))


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        (SMALL, 4096),
        ({**SMALL, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 8192),
        ({**SMALL, "max_position_embeddings": 32768, "rope_scaling": YARN}, 32768),
        ({**SMALL, "max_position_embeddings": 8192, "rope_scaling": YARN}, 32768),
    ],
)
def test_the_length_comes_from_the_positions_scaled_once(config: dict[str, Any], limit: int) -> None:
    settings = decide(config=config)
    assert settings.max_model_len == limit
    assert str(config["max_position_embeddings"]) in settings.reasons["max_model_len"]
    with pytest.raises(ConfigError, match=f"positions end at {limit} .*use at most {limit}"):
        decide({"max_model_len": limit + 1}, config)
    assert decide({"max_model_len": limit}, config).max_model_len == limit


def test_a_second_class_of_lengths_is_shorter_than_the_first() -> None:
    assert decide({"most_model_len": 512}).most_model_len == 512
    with pytest.raises(ConfigError, match=r"--most-model-len = 4096 .* less than --max-model-len = 4096"):
        decide({"most_model_len": 4096})


def test_an_unknown_kind_of_scaling_is_an_error_not_a_guess() -> None:
    config = {**SMALL, "max_position_embeddings": 32768, "rope_scaling": {**YARN, "rope_type": "x-yarn"}}
    with pytest.raises(UnsupportedModel, match="x-yarn"):
        decide(config=config)


def test_exact_cache_size_is_kept_to_the_byte() -> None:
    assert decide({"kv_cache_memory_bytes": 123_456_789}).kv_bytes == 123_456_789
    assert decide({"kv_cache_memory_bytes": 123_456_789}).kv_bytes_exact
    assert not decide({}).kv_bytes_exact
    assert decide({"kv_cache_memory_bytes": "1G", "gpu_memory_utilization": 0.01}, device=Device.named("h200")).kv_bytes == GIB


def test_a_cache_larger_than_the_device_names_the_size_that_fits() -> None:
    with pytest.raises(ConfigError, match="use at most") as caught:
        decide({"kv_cache_memory_bytes": 64 * GIB})
    fits = int(str(caught.value).split("at most ")[1].split()[0])
    assert decide({"kv_cache_memory_bytes": fits}).kv_bytes == fits
    with pytest.raises(ConfigError):
        decide({"kv_cache_memory_bytes": fits + 1})


def test_an_exact_number_of_blocks() -> None:
    settings = decide({"num_gpu_blocks_override": 300, "max_model_len": 1024})
    assert settings.kv_bytes == 300 * 16 * 2 * (2 * 4 * 16 * 4)  # blocks, tokens, layers, bytes of keys and values in float32


def test_share_of_a_gpu() -> None:
    device = Device.named("h200")
    half, most = (decide({"gpu_memory_utilization": share}, LLAMA3_8B, device).kv_bytes for share in (0.5, 0.9))
    assert most - half == pytest.approx(0.4 * device.memory_bytes, abs=2)


@pytest.mark.parametrize(
    ("flags", "device", "says"),
    [
        ({}, replace(Device.named("h200"), free_bytes=100 * GIB), "only 100.00 GiB are free; use 0.71"),
        ({"gpu_memory_utilization": 0.05}, Device.named("h200"), "nothing is left for the KV cache"),
        ({}, Device.named("t4"), "weights take 14.96 GiB"),
        ({}, CPU, "weights take 29.92 GiB"),
    ],
)
def test_no_room_for_the_model(flags: dict[str, Any], device: Device, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        decide(flags, LLAMA3_8B, device)


def test_cpu_cache_is_modest_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert decide().kv_bytes == pytest.approx(3 * GIB, rel=0.02)  # a quarter of what is free
    assert decide(device=replace(CPU, memory_bytes=64 * GIB, free_bytes=60 * GIB)).kv_bytes == 4 * GIB
    monkeypatch.setenv("OCTAVO_CPU_KVCACHE_SPACE", "0.5")
    settings = decide()
    assert (settings.kv_bytes, settings.reasons["kv_bytes"]) == (GIB // 2, "OCTAVO_CPU_KVCACHE_SPACE")
    monkeypatch.setenv("OCTAVO_CPU_KVCACHE_SPACE", "50")
    with pytest.raises(ConfigError, match="use at most 11"):
        decide()
    monkeypatch.setenv("OCTAVO_CPU_KVCACHE_SPACE", "7")
    assert decide().kv_bytes == 7 * GIB
    # all workers of a host share its memory
    with pytest.raises(ConfigError, match=r"^OCTAVO_CPU_KVCACHE_SPACE = 7.0 is not possible.*use at most [56]"):
        decide({"tensor_parallel_size": 2})


def test_cpu_cache_grows_for_one_whole_sequence() -> None:
    settings = decide({"dtype": "bfloat16"}, QWEN3_06B)
    assert settings.kv_bytes == 40_960 * 114_688


def test_a_length_that_does_not_fit_names_the_longest_that_does() -> None:
    flags = {"kv_cache_memory_bytes": 100_000_000, "dtype": "bfloat16"}
    with pytest.raises(ConfigError, match=r"longest that fits is (\d+).*--kv-cache-memory-bytes") as caught:
        decide(flags, QWEN3_06B)
    longest = int(str(caught.value).split("longest that fits is ")[1].split(":")[0])
    assert longest == 100_000_000 // (114_688 * 16) * 16
    assert decide({**flags, "max_model_len": longest}, QWEN3_06B).max_model_len == longest
    with pytest.raises(ConfigError):
        decide({**flags, "max_model_len": longest + 1}, QWEN3_06B)
    for auto in ("auto", -1):
        settings = decide({**flags, "max_model_len": auto}, QWEN3_06B)
        assert settings.max_model_len == longest
        assert "longest that fits" in settings.reasons["max_model_len"]


def test_auto_length_is_the_model_s_where_all_of_it_fits() -> None:
    assert decide({"max_model_len": "auto"}).max_model_len == 4096


@pytest.mark.parametrize(
    ("flags", "name"),
    [({"tensor_parallel_size": 5}, "tensor_parallel_size"), ({"pipeline_parallel_size": 65}, "pipeline_parallel_size"),
     ({"long_prefill_token_threshold": 5000}, "long_prefill_token_threshold")],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_by_name(flags: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        decide(flags)
    assert caught.value.name == name


def test_compressed_kv_goes_only_where_it_is_read() -> None:
    assert decide({"kv_cache_dtype": "fp8"}).kv_dtype == "fp8_e4m3"
    assert decide({"kv_cache_dtype": "fp8"}, device=Device.named("h200")).kv_dtype == "fp8_e4m3"
    assert decide({"kv_cache_dtype": "int8"}, device=Device.named("a100")).kv_dtype == "int8"
    assert decide({"kv_cache_dtype": "int8", "attention_backend": "reference"}).kv_dtype == "int8"
    with pytest.raises(ConfigError, match="latent attention are kept as they are; use auto"):
        resolve(EngineConfig.from_flags(kv_cache_dtype="fp8"), DEEPSEEK_V3, Device.named("h200"))
    with pytest.raises(ConfigError, match="does not convert it; use fp8_e5m2, int8 or auto"):
        decide({"kv_cache_dtype": "fp8"}, device=Device.named("a100"))


def test_threshold_of_long_prompts_follows_where_several_partial_prefills_are_allowed() -> None:
    assert decide({"max_num_partial_prefills": 2}).long_prefill_token_threshold == 163
    assert decide({"max_num_partial_prefills": 2, "long_prefill_token_threshold": 50}).long_prefill_token_threshold == 50
    assert decide().long_prefill_token_threshold == 0


def test_overlap_can_be_switched_off() -> None:
    gpu = Device.named("h200")
    assert (decide(device=gpu).overlap_depth, decide({"async_scheduling": False}, device=gpu).overlap_depth) == (1, 0)


def test_on_a_cpu_there_is_nothing_to_overlap_unless_asked() -> None:
    assert (decide().overlap_depth, decide({"async_scheduling": True}).overlap_depth) == (0, 1)


def test_graphs_by_level_and_device() -> None:
    gpu = Device.named("h200")
    assert [decide({"optimization_level": level}).graph_mode for level in (0, 3)] == ["NONE", "FULL_DECODE_ONLY"]
    assert decide({"max_num_seqs": 3}).graph_sizes == (1, 2, 3)
    assert decide({"enforce_eager": True}).graph_sizes == decide({"cudagraph_mode": "NONE"}).graph_sizes == ()
    modes = {level: decide({"optimization_level": level}, device=gpu).graph_mode for level in range(4)}
    assert modes == {0: "NONE", 1: "PIECEWISE", 2: "FULL_AND_PIECEWISE", 3: "FULL_AND_PIECEWISE"}
    eager = decide({"enforce_eager": True}, device=gpu)
    assert (eager.graph_mode, eager.graph_sizes) == ("NONE", ())
    assert decide({"cudagraph_mode": "FULL"}, device=gpu).graph_mode == "FULL"
    assert decide({"cudagraph_capture_sizes": [8, 2, 2, 99999]}, device=gpu).graph_sizes == (2, 8)
    assert decide({"max_cudagraph_capture_size": 16}, device=gpu).graph_sizes == (1, 2, 4, 8, 16)
    assert decide({"max_num_seqs": 3}, device=gpu).graph_sizes == (1, 2, 4)
    assert [max(decide({"tensor_parallel_size": ranks}, device=gpu).graph_sizes) for ranks in (1, 2)] == [512, 1024]


def test_every_reason_names_a_field() -> None:
    settings = decide({"max_num_partial_prefills": 2}, device=Device.named("h200"))
    assert all(hasattr(settings, name) and text for name, text in settings.reasons.items())


GGUF = SMALL | {"quantization_config": {"quant_method": "gguf", "tensors": {"Q4_1": (64_000, 40_000), "Q6_K": (32_000, 26_250)}}}
KERNELS = replace(CPU, packed_products=True)


@pytest.mark.parametrize(
    ("flags", "device", "kept"),
    [({}, KERNELS, True), ({"dtype": "float32"}, KERNELS, False), ({"quantization": "none"}, KERNELS, False), ({}, CPU, False),
     ({"optimization_level": 0}, KERNELS, False), ({"quantization": "gguf", "dtype": "float32"}, CPU, True),
     ({"load_format": "dummy"}, KERNELS, False), ({}, Device.named("h200"), False)],
)  # fmt: skip
def test_packed_weights_stay_packed_on_cpu_unless_numbers_are_asked_for(flags: dict[str, Any], device: Device, kept: bool) -> None:
    chosen = decide(flags, GGUF, device)
    assert (chosen.quantization, chosen.packed) == (("gguf", (64_000, 40_000)) if kept else ("none", (0, 0)))
    assert "load_format" in flags or chosen.reasons["quantization"]


def test_packed_weights_count_with_their_bytes() -> None:
    plain, packed = (decide({"quantization": kept}, GGUF, KERNELS) for kept in ("none", "gguf"))
    arch = Architecture.from_config(GGUF)
    saved = weight_bytes(arch, "float32", plain.packed) - weight_bytes(arch, "float32", packed.packed)
    assert saved == 4 * 64_000 - 40_000


@pytest.mark.parametrize(
    ("flags", "config", "device", "match"),
    [({"quantization": "gguf"}, SMALL, KERNELS, "Q4_0, Q4_1, Q8_0"),
     ({"quantization": "gguf"}, GGUF, Device.named("h200"), "on CPU only"),
     ({}, SMALL | {"quantization_config": {"quant_method": "awq"}}, CPU, "quantised by awq")],
)  # fmt: skip
def test_packed_weights_that_cannot_be(flags: dict[str, Any], config: dict[str, Any], device: Device, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        decide(flags, config, device)


def test_heads_that_cannot_be_cut_are_refused_with_the_sizes_that_work() -> None:
    config = {**SMALL, "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 96}
    with pytest.raises(ConfigError, match=r"12 attention heads.*sizes that work: 1, 2, 4, 12; --pipeline-parallel-size"):
        decide({"tensor_parallel_size": 8}, config)
    assert decide({"tensor_parallel_size": 12}, config).tensor_parallel_size == 12


def test_whole_experts_lie_over_the_ranks_of_all_replicas() -> None:
    def ranks(**flags: Any) -> tuple[int, str]:
        asked = EngineConfig.from_flags(enable_expert_parallel=True, **flags)
        chosen = resolve(asked, QWEN3_30B_A3B, Device.named("h200"))
        return chosen.expert_parallel_size, chosen.dispatch

    assert ranks() == (1, "local")
    assert ranks(tensor_parallel_size=2) == (2, "local")
    assert ranks(tensor_parallel_size=2, data_parallel_size=4) == (8, "allgather_reducescatter")
    assert ranks(data_parallel_size=2, all2all_backend="deepep_low_latency") == (2, "alltoall")
    cut = decide({"tensor_parallel_size": 2}, QWEN3_30B_A3B, Device.named("h200"))
    assert (cut.expert_parallel_size, cut.dispatch) == (1, "local")


def test_experts_that_cannot_be_placed_are_refused_with_what_works() -> None:
    asked = EngineConfig.from_flags(enable_expert_parallel=True, tensor_parallel_size=8, data_parallel_size=2)
    with pytest.raises(ConfigError, match=r"8 experts a layer, fewer than .* = 16 ranks; what works: up to 8 ranks, such as 1, 2, 4, 8"):
        resolve(asked, MIXTRAL_8X7B, Device.named("h200"))
    with pytest.raises(ConfigError, match="the model has no experts"):
        decide({"enable_expert_parallel": True})
    with pytest.raises(ConfigError, match="768 inner features"):
        decide({"tensor_parallel_size": 5}, QWEN3_30B_A3B)


def test_ranks_that_wait_for_each_other_s_counts_run_without_graphs() -> None:
    flags = {"tensor_parallel_size": 2, "enable_expert_parallel": True, "all2all_backend": "alltoall"}
    assert decide(flags, QWEN3_30B_A3B, Device.named("h200")).graph_mode == "NONE"


def test_replicas_in_lock_step_record_passes_and_no_whole_steps() -> None:
    flags = {"data_parallel_size": 2, "enable_expert_parallel": True}
    gpus = decide(flags, QWEN3_30B_A3B, Device.named("h200"))
    assert gpus.graph_mode == "PIECEWISE"
    assert gpus.pass_sizes[:5] == (1, 2, 4, 8, 32)
    assert decide({**flags, "cudagraph_mode": "NONE"}, QWEN3_30B_A3B, Device.named("h200")).pass_sizes == ()


def test_what_binds_gpus_is_refused_where_there_is_none() -> None:
    with pytest.raises(ConfigError, match="there is no GPU; workers on the CPU are placed by CPU_VISIBLE_MEMORY_NODES"):
        decide({"numa_bind": True})

"""Memory arithmetic against published sizes and worked examples."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from octavo.config.architecture import Architecture
from octavo.config.engine import EngineConfig
from octavo.config.resolve import resolve
from octavo.config.resolved import Resolved
from octavo.config.stages import stages
from octavo.core.kv.layout import lay_out
from octavo.plan.devices import GIB, MIB, Device
from octavo.plan.memory import (
    active_parameters,
    costs,
    kv_bytes_per_token,
    kv_layout,
    longest_fit,
    num_parameters,
    one_rank,
    plan_memory,
    pool_block_bytes,
    sequence_blocks,
    weight_bytes,
)
from octavo.plan.report import as_table
from octavo.worker.memory import allocate, bind
from tests.attention.kv_memory import Keeper
from tests.plan.checkpoints import DEEPSEEK_V3, GEMMA3_1B, LLAMA3_8B, MIXTRAL_8X7B, QWEN3_06B, QWEN3_30B_A3B, QWEN25_32B

BFLOAT16 = Resolved(kv_dtype="bfloat16")
HEADS_OF_64 = {**LLAMA3_8B, "hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "num_hidden_layers": 5}


def read(config: dict[str, Any]) -> Architecture:
    return Architecture.from_config(config)


@pytest.mark.parametrize(
    ("config", "published"),
    [(LLAMA3_8B, 8_030_261_248), (QWEN25_32B, 32_763_876_352), (QWEN3_06B, 596_049_920), (GEMMA3_1B, 999_885_952),
     (QWEN3_30B_A3B, 30_532_122_624), (MIXTRAL_8X7B, 46_702_792_704), (DEEPSEEK_V3, 671_026_419_200)],
)
def test_parameters_are_those_of_the_published_checkpoints(config: dict[str, Any], published: int) -> None:
    assert num_parameters(read(config)) == published
    assert weight_bytes(read(config), "bfloat16") == 2 * published


def test_a_token_meets_the_published_part_of_a_mixture_s_parameters() -> None:
    assert active_parameters(read(QWEN3_30B_A3B)) == pytest.approx(3.35e9, rel=0.01)
    assert active_parameters(read(MIXTRAL_8X7B)) == pytest.approx(12.88e9, rel=0.01)
    assert active_parameters(read(LLAMA3_8B)) == num_parameters(read(LLAMA3_8B))


def test_llama3_8b_keeps_128_kib_a_token_and_2_mib_a_block() -> None:
    arch = read(LLAMA3_8B)
    assert kv_bytes_per_token(arch, "float16") == 131_072
    assert pool_block_bytes(kv_layout(arch, Resolved(kv_dtype="float16"), GIB)) == 2 * MIB


def test_a_second_class_of_lengths_costs_its_graphs_and_nothing_else() -> None:
    one, two = (
        resolve(EngineConfig.from_flags(max_num_seqs=256, **flags), LLAMA3_8B, Device.named("h200"))
        for flags in ({}, {"most_model_len": 2048})
    )
    before, after = (plan_memory(read(LLAMA3_8B), settings) for settings in (one, two))
    assert one.kv_bytes - two.kv_bytes == after.costs.graph_bytes - before.costs.graph_bytes == len(one.graph_sizes) * 8 * MIB
    assert after.kv_tokens > 0.998 * before.kv_tokens


def test_deepseek_v3_keeps_one_vector_a_token_and_layer_on_every_rank() -> None:
    arch = read(DEEPSEEK_V3)
    assert kv_bytes_per_token(arch, "bfloat16") == 61 * (512 + 64) * 2
    assert kv_bytes_per_token(one_rank(arch, 8), "bfloat16") == 61 * (512 + 64) * 2


def test_qwen_32b_needs_32_gib_for_one_sequence_of_128k() -> None:
    arch = read(QWEN25_32B)
    assert kv_bytes_per_token(arch, "bfloat16") == 262_144
    layout = kv_layout(arch, BFLOAT16, 64 * GIB)
    assert sequence_blocks(layout, 131_072, 8192) * pool_block_bytes(layout) == 32 * GIB


def test_how_many_sequences_of_128k_fit_on_four_a100_with_tp_4() -> None:
    """90 % of 80 GiB each; a quarter of 65.5 GB of weights and of 32 GiB a sequence: 72 - 15.3 - activations and reserve over 8 GiB."""
    device = Device.named("a100")
    asked = EngineConfig.from_flags(tensor_parallel_size=4, max_num_batched_tokens=8192, max_num_seqs=64)
    settings = resolve(asked, QWEN25_32B, device)
    plan = plan_memory(read(QWEN25_32B), settings)
    assert plan.kv_bytes_per_token == 65_536
    assert plan.fits[-1] == (131_072, 6)
    assert plan.costs.weight_bytes == pytest.approx(2 * 32_763_876_352 / 4, rel=0.01)
    assert (plan.kv_bytes / (8 * GIB)) // 1 == 6


def test_a_window_bounds_what_a_long_sequence_holds() -> None:
    arch = read(GEMMA3_1B)
    layout = kv_layout(arch, BFLOAT16, GIB)
    full_layers, window_layers = 4, 22
    per_layer = 2 * 1 * 256 * 2
    everything = 32_768 * per_layer * (full_layers + window_layers)
    held = sequence_blocks(layout, 32_768, 512) * pool_block_bytes(layout)
    windowed = (512 + 512 + 16) * per_layer * window_layers
    assert held < everything / 4
    assert held >= 32_768 * per_layer * full_layers
    assert held <= 1.2 * (32_768 * per_layer * full_layers + windowed)  # up to the padding of equal groups


@pytest.mark.parametrize("config", [LLAMA3_8B, GEMMA3_1B])
@pytest.mark.parametrize("blocks", [8, 57, 400])
def test_the_longest_fit_fits_and_one_token_more_does_not(config: dict[str, Any], blocks: int) -> None:
    arch = read(config)
    layout = kv_layout(arch, BFLOAT16, blocks * pool_block_bytes(kv_layout(arch, BFLOAT16, GIB)))
    assert layout.num_blocks == blocks
    length = longest_fit(layout, 10**6, 256)
    assert sequence_blocks(layout, length, 256) <= blocks < sequence_blocks(layout, length + 1, 256)


def test_the_plan_adds_up_and_agrees_with_its_parts() -> None:
    device = Device.named("h200")
    settings = resolve(EngineConfig.from_flags(model="m"), LLAMA3_8B, device)
    plan = plan_memory(read(LLAMA3_8B), settings)
    assert plan.budget_bytes == plan.costs.total + plan.kv_bytes == int(0.9 * device.memory_bytes)
    assert plan.kv_tokens == plan.num_blocks * 16 == plan.kv_bytes // plan.block_bytes * 16
    assert plan.max_concurrency == pytest.approx(plan.kv_tokens / 8192)
    assert plan.fits[-1] == (8192, int(plan.max_concurrency))
    counts = [count for _, count in plan.fits]
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize("config", [LLAMA3_8B, QWEN3_06B, GEMMA3_1B], ids=["llama3", "qwen3", "gemma3"])
def test_the_printed_size_gives_the_same_blocks(config: dict[str, Any]) -> None:
    device, arch = Device.named("h200"), read(config)
    first = resolve(EngineConfig.from_flags(model="m"), config, device)
    page = as_table(plan_memory(arch, first), first)
    (printed,) = re.findall(r"this layout again: --kv-cache-memory-bytes (\d+)", page)
    again = resolve(EngineConfig.from_flags(kv_cache_memory_bytes=printed, gpu_memory_utilization=0.5), config, device)
    assert again.kv_bytes_exact
    assert plan_memory(arch, again) == plan_memory(arch, first)


@pytest.mark.parametrize(
    ("config", "least"), [(LLAMA3_8B, 1.96), (QWEN3_06B, 1.96), (HEADS_OF_64, 1.93)], ids=["llama3", "qwen3", "narrow"]
)
def test_compressed_formats_hold_what_the_plan_says(config: dict[str, Any], least: float) -> None:
    """The engine's arena for the planned bytes: within a percent of them, scales counted, and nearly twice the tokens of bfloat16."""
    device, arch = Device.named("h200"), read(config)
    tokens: dict[str, int] = {}
    for kind in ("bfloat16", "fp8", "fp8_e5m2", "int8"):
        settings = resolve(EngineConfig.from_flags(kv_cache_memory_bytes="512M", kv_cache_dtype=kind, max_model_len=256), config, device)
        plan = plan_memory(arch, settings)
        layout = lay_out([layer.kv_spec() for layer in keepers(arch, settings.kv_dtype)], settings.block_size, settings.kv_bytes)
        arena = allocate(layout, torch.device("cpu"))
        layers = keepers(arch, settings.kv_dtype)
        bind(layers, layout, arena)
        assert 0.99 * settings.kv_bytes < arena.numel() <= settings.kv_bytes
        held = {layer.kv.shape[0] * layer.kv.shape[2] for layer in layers}
        assert held == {plan.kv_tokens}
        used = sum(layer.kv.nbytes + (layer.kv_scales.nbytes if kind == "int8" else 0) for layer in layers)
        assert used == arena.numel() == plan.kv_tokens * plan.kv_bytes_per_token
        tokens[settings.kv_dtype] = plan.kv_tokens
    assert tokens["fp8_e4m3"] == tokens["fp8_e5m2"] >= 1.99 * tokens["bfloat16"]
    assert tokens["int8"] >= 0.99 * least * tokens["bfloat16"]
    assert 2 * arch.head_dim / (arch.head_dim + 2) >= least


def keepers(arch: Architecture, kv_dtype: str) -> list[Keeper]:
    return [Keeper(kv_dtype, arch.kv_heads, arch.head_dim) for _ in arch.layers]


def test_smaller_numbers_hold_twice_as_many_tokens() -> None:
    device = Device.named("h200")
    asked = {kind: EngineConfig.from_flags(kv_cache_memory_bytes="16G", kv_cache_dtype=kind) for kind in ("float32", "bfloat16")}
    tokens = {kind: plan_memory(read(QWEN3_06B), resolve(config, QWEN3_06B, device)).kv_tokens for kind, config in asked.items()}
    assert tokens["bfloat16"] == pytest.approx(2 * tokens["float32"], abs=16)


@pytest.mark.parametrize(("config", "found_by_vllm"), [(LLAMA3_8B, 914_672), (QWEN3_06B, 1_182_768)], ids=["llama3-8b", "qwen3-0.6b"])
@pytest.mark.parametrize("offline", [True, False])
def test_an_h200_holds_what_vllm_finds_room_for(config: dict[str, Any], found_by_vllm: int, offline: bool) -> None:
    """vLLM 0.23.0 on one H200, at the same share of the memory and with the same 1,024 sequences: at most 1 % fewer tokens."""
    asked = EngineConfig.from_flags(gpu_memory_utilization=0.92)
    settings = resolve(asked, config, Device.named("h200"), offline=offline)
    assert settings.max_num_seqs == 1024
    assert settings.max_num_batched_tokens == (16384 if offline else 8192)
    assert plan_memory(read(config), settings).kv_tokens >= 0.99 * found_by_vllm


def test_stages_of_a_pipeline_hold_what_the_engine_gives_them() -> None:
    """The first layers of DeepSeek-V3 have no experts: the largest stage decides, and only the ends carry embedding and head."""
    arch, whole = read(DEEPSEEK_V3), num_parameters(read(DEEPSEEK_V3))
    parts = [num_parameters(arch, one) for one in stages(arch.num_layers, 8)]
    assert sum(parts) == whole
    settings = Resolved(device="cuda", dtype="bfloat16", kv_dtype="bfloat16", pipeline_parallel_size=8)
    assert costs(arch, settings).weight_bytes == 2 * max(parts) > 2 * whole / 8
    assert plan_memory(arch, settings).kv_bytes_per_token == 8 * (512 + 64) * 2


@pytest.mark.parametrize("tensor", [2, 8, 16])
def test_ranks_hold_a_part_of_the_heads_or_a_copy(tensor: int) -> None:
    arch = read(LLAMA3_8B)
    settings = Resolved(kv_dtype="bfloat16", tensor_parallel_size=tensor, kv_bytes=GIB)
    heads = max(1, 8 // tensor)
    assert plan_memory(arch, settings).kv_bytes_per_token == 131_072 * heads // 8
    assert plan_memory(read(DEEPSEEK_V3), settings).kv_bytes_per_token == 61 * (512 + 64) * 2


def test_every_rank_of_several_has_room_for_all_logits() -> None:
    settings = Resolved(device="cuda", dtype="bfloat16", max_num_batched_tokens=1024, max_num_seqs=512)
    one, two = (costs(read(LLAMA3_8B), replace(settings, tensor_parallel_size=ranks)) for ranks in (1, 2))
    assert two.logits_bytes + two.activation_bytes == one.logits_bytes + one.activation_bytes

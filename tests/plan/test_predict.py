"""Predictions: steady states against each other and against the simulator, and the worked examples of sizing guides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from octavo.config.architecture import Architecture
from octavo.config.engine import EngineConfig
from octavo.config.fields import ConfigError
from octavo.config.resolve import resolve
from octavo.core.plan import StepShape
from octavo.plan.cost import cost_model
from octavo.plan.devices import GIB, Device
from octavo.plan.memory import kv_layout, num_parameters, one_rank, plan_memory
from octavo.plan.predict import cores_needed, fleet_for, predict
from octavo.simulate.fleet import simulate
from octavo.simulate.load import Kind, Synthetic
from octavo.simulate.result import summarize
from tests.plan.checkpoints import LLAMA3_8B, QWEN3_30B_A3B, QWEN25_32B

H200 = Device.named("h200")


def parts(**flags: Any):
    arch, settings = Architecture.from_config(LLAMA3_8B), resolve(EngineConfig.from_flags(**flags), LLAMA3_8B, H200)
    return cost_model(arch, settings, H200, ()), settings, kv_layout(arch, settings)


def test_alone_is_the_sum_of_its_steps():
    costs, settings, layout = parts()
    alone = predict(costs, settings, layout, 512, 128).alone
    assert alone.ttft_s == costs.seconds(StepShape(512, 1, 1, 512, 512 * 513 // 2, 0))
    assert 1 / alone.requests_per_s == pytest.approx(alone.ttft_s + 127 * alone.itl_s)


def test_states_are_in_order():
    found = predict(*parts(), 512, 128)
    assert found.alone.requests_per_s < found.light.requests_per_s < found.full.requests_per_s
    assert found.light.requests_per_s == pytest.approx(0.7 * found.full.requests_per_s, rel=0.02)
    assert found.alone.itl_s < found.light.itl_s < found.full.itl_s
    assert found.light.ttft_s < found.full.ttft_s


@pytest.mark.parametrize(
    ("flags", "lengths", "bound"),
    [({"max_num_seqs": 64}, (512, 128), "--max-num-seqs"), ({"kv_cache_memory_bytes": 2 * GIB}, (512, 128), "KV memory"),
     ({"max_num_batched_tokens": 1024}, (2048, 16), "--max-num-batched-tokens")],
)  # fmt: skip
def test_what_ends_the_capacity_is_named(flags: dict[str, Any], lengths: tuple[int, int], bound: str):
    assert predict(*parts(**flags), *lengths).bound == bound


@pytest.mark.parametrize("lengths", [(512, 128), (64, 256)])
def test_the_capacity_is_what_the_simulator_reaches(lengths: tuple[int, int]):
    costs, settings, layout = parts(max_num_seqs=64)
    found = predict(costs, settings, layout, *lengths)
    load = Synthetic((Kind(*lengths),), concurrency=64, num_sessions=600)
    simulated = summarize(simulate(load, settings, layout, costs.times)[0])
    assert found.output_tokens_per_s == pytest.approx(simulated["output_tokens_per_s"], rel=0.15)  # the simulated end runs empty


def test_the_light_state_is_what_the_simulator_finds_there():
    costs, settings, layout = parts(max_num_seqs=64)
    found = predict(costs, settings, layout, 512, 128)
    load = Synthetic((Kind(512, 128),), rate=found.light.requests_per_s, duration_s=15)
    simulated = summarize(simulate(load, settings, layout, costs.times)[0])
    assert found.light.itl_s == pytest.approx(simulated["tpot_s"]["mean"], rel=0.15)


def test_devices_for_a_load():
    found = predict(*parts(), 512, 128)
    need = 10 * found.output_tokens_per_s
    fleet = fleet_for(found, need * 4, need, devices_per_replica=2)
    assert fleet.replicas == (12, 15)  # 10 / 0.85 and 10 / 0.7, rounded up
    assert fleet.devices == (24, 30)
    assert fleet_for(found, 1.0, 1.0, 1).devices == (1, 1)


def test_cores_of_the_layouts_in_guides():
    assert cores_needed(tensor=2, pipeline=1, data=4) == 17  # eight GPUs
    assert cores_needed(tensor=1, pipeline=1, data=1) == 3
    assert cores_needed(tensor=4, pipeline=1, data=1) == 6


def test_qwen_32b_of_128k_on_four_a100():
    """On each device of 80 GiB a quarter of the weights and of each sequence's 32 GiB: six fit."""
    arch, device = Architecture.from_config(QWEN25_32B), Device.named("a100")
    settings = resolve(EngineConfig.from_flags(tensor_parallel_size=4, max_num_seqs=16), QWEN25_32B, device)
    plan = plan_memory(arch, settings)
    assert plan.kv_bytes_per_token == 65_536
    assert plan.costs.weight_bytes == pytest.approx(num_parameters(arch) * 2 / 4, rel=0.01)
    assert plan.fits[-1] == (131_072, 6)
    left = int(0.9 * 80 * GIB) - plan.costs.total
    assert 6 * 8 * GIB <= left < 7 * 8 * GIB
    with pytest.raises(ConfigError, match="longest that fits"):
        resolve(EngineConfig.from_flags(max_num_seqs=16), QWEN25_32B, device)


def test_stages_take_turns_with_parts_of_the_sequences():
    costs, settings, layout = parts()
    one = predict(costs, settings, layout, 512, 128)
    two = predict(costs, replace(settings, pipeline_parallel_size=2), layout, 512, 128)
    assert one.full.requests_per_s < two.full.requests_per_s < 2 * one.full.requests_per_s
    assert two.alone == one.alone


def test_a_rank_holds_its_part():
    arch = Architecture.from_config(LLAMA3_8B)
    assert num_parameters(one_rank(arch, 2)) == pytest.approx(num_parameters(arch) / 2, rel=0.001)
    assert one_rank(arch, 16).kv_heads == 1, "copies, where there are fewer heads than ranks"
    assert one_rank(arch, 1) is arch
    moe = Architecture.from_config(QWEN3_30B_A3B)
    whole, half = one_rank(moe, 2, experts=2), one_rank(moe, 2)
    assert num_parameters(whole) == pytest.approx(num_parameters(half), rel=0.001), "whole experts, or a half of each"
    assert one_rank(moe, 1, experts=2).layers[0].experts.num == 64


def test_layouts_that_cannot_be_are_refused_with_numbers():
    with pytest.raises(ConfigError, match="32 attention heads"):
        resolve(EngineConfig.from_flags(tensor_parallel_size=3), LLAMA3_8B, H200)
    with pytest.raises(ConfigError, match="32 layers"):
        resolve(EngineConfig.from_flags(pipeline_parallel_size=40), LLAMA3_8B, H200)

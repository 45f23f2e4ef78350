"""Remarks on a plan: each where its cause is, with figures and flags that exist, and none where all is well."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from octavo.config.architecture import Architecture
from octavo.config.engine import ENGINE_TOPICS, EngineConfig, names_of
from octavo.config.resolve import resolve
from octavo.config.resolved import Resolved
from octavo.plan.cost import cost_model
from octavo.plan.devices import Device
from octavo.plan.memory import kv_layout, plan_memory
from octavo.plan.predict import Prediction, predict
from octavo.plan.remarks import Planned, remarks_on
from tests.plan.checkpoints import DEEPSEEK_V3, LLAMA3_8B, QWEN25_32B


def planned(device: str, config: dict[str, Any] = LLAMA3_8B, lengths: tuple[int, int] = (512, 128), **flags: Any) -> Planned:
    arch, gpu = Architecture.from_config(config), Device.named(device)
    settings = resolve(EngineConfig.from_flags(**flags), config, gpu)

    def again(one: Resolved) -> Prediction:
        return predict(cost_model(arch, one, gpu, ()), one, kv_layout(arch, one), *lengths)

    return Planned(arch, settings, gpu, plan_memory(arch, settings), again(settings), again, 3)


CASES: dict[str, dict[str, Any]] = {
    "few-sequences": {"device": "h100", "config": QWEN25_32B, "max_model_len": 24_000, "gpu_memory_utilization": 0.94},
    "kv-bound": {"device": "l4", "max_num_seqs": 512},
    "fp8-kv": {"device": "l4", "max_num_seqs": 512},
    "links": {"device": "l40s", "tensor_parallel_size": 2},
    "block-size": {"device": "h200", "block_size": 128, "lengths": (20, 10)},
}


@pytest.mark.parametrize("kind", CASES)
def test_each_is_told_with_figures_and_flags(kind: str) -> None:
    (found,) = [remark for remark in remarks_on(planned(**CASES[kind])) if remark.kind == kind]
    assert any(character.isdigit() for character in found.text)
    for flag in found.flags:
        assert flag.removeprefix("--").replace("-", "_") in names_of(ENGINE_TOPICS)


def test_none_where_there_is_nothing_to_move() -> None:
    assert remarks_on(planned("a100", tensor_parallel_size=2, max_num_seqs=64)) == [], "NVLink, and no fp8 there"
    assert remarks_on(planned("h200", DEEPSEEK_V3, tensor_parallel_size=16, max_num_seqs=64)) == [], "latents are kept as they are"


def test_stages_are_named_only_where_they_are_faster() -> None:
    slow = planned("l40s", tensor_parallel_size=2)
    linked = replace(slow, device=replace(slow.device, link_bytes_s=450e9))
    assert "links" not in [remark.kind for remark in remarks_on(linked)]
    faster = replace(slow, again=lambda settings: slow.expected)
    assert "+0%" in next(remark.text for remark in remarks_on(faster) if remark.kind == "links")
    worse = replace(slow.expected, full=replace(slow.expected.full, requests_per_s=slow.expected.full.requests_per_s / 2))
    assert "links" not in [remark.kind for remark in remarks_on(replace(slow, again=lambda settings: worse))]

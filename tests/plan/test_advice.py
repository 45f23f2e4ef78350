"""Advice: each finding where its cause is, with figures and a flag that exists, and none where all is well."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.config.engine import ENGINE_TOPICS, names_of
from octavo.config.resolved import Resolved
from octavo.config.server import ServerConfig
from octavo.plan.advice import Window, advise

GPU = Resolved(device="cuda", kv_dtype="bfloat16", max_num_seqs=64, max_num_batched_tokens=2048, graph_sizes=(1, 2))
WELL = Window(60.0, 40.0, num_steps=4000, predicted_s=36.0, most_kv=0.5, mean_running=20.0)

CASES = {
    "kv-bound": replace(WELL, preemptions=12, kv_full_s=20.0, waiting_s=30.0, most_kv=1.0),
    "sequence-bound": replace(WELL, rows_full_s=30.0, waiting_s=30.0),
    "budget-bound": replace(WELL, full_steps=1500, waiting_s=30.0),
    "host-bound": replace(WELL, predicted_s=20.0),
    "cache-misaligned": replace(WELL, prefix_queries=50_000, prefix_hits=100, prefix_misses={"short": 40, "new": 5}),
    "saturated": replace(WELL, busy_s=59.5, predicted_s=55.0, waiting_s=59.0, mean_waiting=9.0),
    "over-provisioned": replace(WELL, busy_s=3.0, predicted_s=2.9, most_kv=0.02),
}


@pytest.mark.parametrize("kind", CASES)
def test_each_cause_is_named_alone(kind: str) -> None:
    (finding,) = advise(CASES[kind], GPU)
    assert finding.kind == kind
    assert any(character.isdigit() for character in finding.evidence)
    known = names_of((*ENGINE_TOPICS, ServerConfig))
    for flag in finding.flags:
        assert flag.removeprefix("--").removeprefix("no-").replace("-", "_") in known, flag


def test_nothing_is_said_where_all_is_well_or_little_is_known() -> None:
    assert advise(WELL, GPU) == []
    assert advise(replace(CASES["kv-bound"], seconds=2.0), GPU) == []
    assert advise(replace(CASES["kv-bound"], num_steps=3), GPU) == []


def test_the_flag_fits_the_settings() -> None:
    (finding,) = advise(CASES["kv-bound"], replace(GPU, kv_dtype="fp8_e4m3"))
    assert "--kv-cache-dtype" not in finding.flags
    (finding,) = advise(CASES["kv-bound"], replace(GPU, device="cpu"))
    assert finding.flags == ("OCTAVO_CPU_KVCACHE_SPACE", "--kv-cache-dtype", "--max-num-seqs")
    (finding,) = advise(CASES["budget-bound"], replace(GPU, target_itl_s=0.05))
    assert "50 ms" in finding.advice
    (finding,) = advise(CASES["host-bound"], replace(GPU, overlap_depth=0))
    assert finding.flags == ("--async-scheduling",)
    (finding,) = advise(replace(CASES["cache-misaligned"], prefix_misses={"evicted": 9}), GPU)
    assert "memory" in finding.advice

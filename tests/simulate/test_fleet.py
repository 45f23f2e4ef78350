"""Loads over replicas: what arrives is answered, a part speaks for the whole, and the clock obeys arithmetic."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.config.resolved import Resolved
from octavo.core.plan import StepShape
from octavo.core.router import Router
from octavo.simulate.fleet import EXACT_REPLICAS, Fleet, simulate
from octavo.simulate.load import Kind, Synthetic, Trace
from octavo.simulate.replica import Replica
from octavo.simulate.result import summarize
from tests.bench.timed import device_only
from tests.laws.fake import make_layout

SETTINGS = Resolved(max_model_len=256, block_size=8, max_num_seqs=16, max_num_batched_tokens=64)
LAYOUT = make_layout(400, 8)


@device_only
def times(shape: StepShape) -> float:
    return 0.004 + 0.0002 * shape.num_tokens + 1e-7 * shape.decode_context


def run(load: Synthetic | Trace, num_replicas: int = 1, **options: int):
    record, simulated = simulate(load, SETTINGS, LAYOUT, times, num_replicas, **options)
    return summarize(record), simulated


def one_request(prompt: int, output: int, depth: int):
    load = Synthetic((Kind(prompt, output),), concurrency=1, num_sessions=1)
    settings = replace(SETTINGS, overlap_depth=depth)
    record, _ = simulate(load, settings, LAYOUT, device_only(lambda shape: 0.25 if shape.prefill_tokens else 0.125))
    return record


@pytest.mark.parametrize("depth", [0, 1])
def test_one_request_takes_the_sum_of_its_steps(depth: int):
    record = one_request(prompt=100, output=5, depth=depth)  # two chunks of at most 64 tokens
    served = record.served[0]
    assert served.first_s == 0.5
    assert served.last_s == 0.5 + 4 * 0.125
    assert list(record.gaps_s) == [0.125] * 4
    found = summarize(record)
    assert found["ttft_s"]["p99"] == 0.5
    assert found["tpot_s"]["mean"] == 0.125
    assert found["output_tokens_per_s"] == 5


def test_everything_is_answered_once():
    load = Synthetic((Kind((1, 60), (1, 30)),), rate=40, duration_s=5, seed=4)
    arrivals = list(Synthetic((Kind((1, 60), (1, 30)),), rate=40, duration_s=5, seed=4).first())
    record, _ = simulate(load, SETTINGS, LAYOUT, times)
    assert sorted((one.arrival_s, one.num_prompt, one.num_output) for one in record.served) == [
        (arrival.at_s, len(arrival.tokens), arrival.output_len) for arrival in arrivals
    ]
    assert all(one.arrival_s < one.first_s <= one.last_s for one in record.served)


def test_more_load_waits_longer():
    waits = [run(Synthetic((Kind(40, 20),), rate=rate, duration_s=10))[0]["ttft_s"]["p90"] for rate in (5, 40, 120)]
    assert waits == sorted(waits)
    assert waits[2] > 3 * waits[0]


def test_prefix_caching_shortens_what_sessions_wait():
    load = dict(kinds=(Kind(20, 10),), rate=10, duration_s=10, turns=4, shared_len=64)
    cached, _ = run(Synthetic(**load))
    record, _ = simulate(Synthetic(**load), replace(SETTINGS, enable_prefix_caching=False), LAYOUT, times)
    assert cached["prefix_hit_rate"] > 0.5
    assert cached["ttft_s"]["mean"] < summarize(record)["ttft_s"]["mean"]


@pytest.mark.parametrize("num_blocks", [400, 60])
def test_leaving_names_of_prefixes_out_changes_nothing(num_blocks: int):
    """`simulate` does so where no prompt begins like another, and takes it back when a sequence was preempted."""
    load = dict(kinds=(Kind((10, 90), (5, 60)),), rate=20, duration_s=4)
    layout = make_layout(num_blocks, 8)
    record, _ = simulate(Synthetic(**load), SETTINGS, layout, times)
    whole = Fleet(Synthetic(**load), [Replica(SETTINGS, layout, times)], Router(1)).run()
    assert (record.counts["preemptions"] > 0) == (num_blocks == 60)
    assert summarize(record) == summarize(whole)


def test_replicas_share_the_load():
    load = dict(kinds=(Kind(40, 20),), duration_s=8)
    alone, _ = run(Synthetic(rate=40, **load))
    four, simulated = run(Synthetic(rate=160, **load), num_replicas=4)
    assert simulated == 4
    assert four["ttft_s"]["p50"] == pytest.approx(alone["ttft_s"]["p50"], rel=0.25)
    assert four["output_tokens_per_s"] == pytest.approx(4 * alone["output_tokens_per_s"], rel=0.1)
    assert four["running"]["mean"] == pytest.approx(alone["running"]["mean"], rel=0.25)


def test_affinity_raises_the_hits_of_a_fleet():
    load = dict(kinds=(Kind(10, 10),), rate=60, duration_s=5, turns=3, think_s=0.2)
    scattered, _ = run(Synthetic(**load), num_replicas=4)
    at_home, _ = run(Synthetic(**load), num_replicas=4, affinity=4)
    assert at_home["prefix_hit_rate"] > scattered["prefix_hit_rate"] + 0.1


@pytest.mark.parametrize("kind", ["open", "closed"])
def test_a_part_speaks_for_a_large_fleet(kind: str):
    load = dict(kinds=(Kind(40, 20),), duration_s=6)
    load |= dict(rate=16 * 30) if kind == "open" else dict(concurrency=16 * 8, num_sessions=16 * 150)
    whole, all_of_them = run(Synthetic(**load), num_replicas=16)
    part, simulated = run(Synthetic(**load), num_replicas=16, exact=8)
    assert (all_of_them, simulated) == (16, 8)
    assert part["requests"] == pytest.approx(whole["requests"] / 2, rel=0.02)
    for name in ("ttft_s", "itl_s", "e2e_s"):
        assert part[name]["p50"] == pytest.approx(whole[name]["p50"], rel=0.1), name
        assert part[name]["p90"] == pytest.approx(whole[name]["p90"], rel=0.15), name
    assert 2 * part["output_tokens_per_s"] == pytest.approx(whole["output_tokens_per_s"], rel=0.05)


def test_above_64_replicas_a_sample_of_64_says_what_all_would():
    load = dict(kinds=(Kind(40, 10, 0.8), Kind(120, 4, 0.2)), duration_s=0.6, rate=128 * 20, burstiness=0.2)
    whole, all_of_them = run(Synthetic(**load), num_replicas=128, exact=128)
    sample, simulated = run(Synthetic(**load), num_replicas=128)
    assert (all_of_them, simulated) == (128, EXACT_REPLICAS) == (128, 64)
    for name in ("ttft_s", "itl_s", "e2e_s"):
        for part in ("mean", "p50", "p90"):
            assert sample[name][part] == pytest.approx(whole[name][part], rel=0.1), (name, part)
    assert 2 * sample["output_tokens_per_s"] == pytest.approx(whole["output_tokens_per_s"], rel=0.05)


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
def test_a_trace_says_who_goes_first(policy: str, tmp_path: Path):
    """Ten long requests of one tenant wait when a short one comes that is urgent, and of another tenant."""
    lines: list[dict[str, object]] = [{"arrival_s": 0.0, "prompt_tokens": 60, "output_tokens": 40, "tenant": "a"}] * 10
    lines.append({"arrival_s": 0.01, "prompt_tokens": 20, "output_tokens": 4, "tenant": "b", "priority": -9})
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    record, _ = simulate(Trace.read(path), replace(SETTINGS, max_num_seqs=1, scheduling_policy=policy), LAYOUT, times)
    ended = [one.num_prompt for one in record.served]
    assert ended.index(20) == (10 if policy == "fcfs" else 1), "the one that runs is not interrupted"


def test_a_target_is_aimed_at_by_what_the_engine_foresees():
    """An engine that takes steps to last half as long as they do reads twice as much in each."""
    settings = replace(SETTINGS, target_itl_s=0.05, max_num_batched_tokens=2048, max_model_len=4096)
    layout = make_layout(4096, 16)

    def seconds(shape: StepShape) -> float:
        return 0.01 + 1e-4 * shape.num_tokens

    def gap_s(share: float) -> float:
        load = Synthetic((Kind(1500, 100),), rate=1.0, duration_s=60.0)
        record, _ = simulate(load, settings, layout, device_only(seconds), foreseen=lambda shape: share * seconds(shape))
        return summarize(record)["itl_s"]["p99"]

    assert gap_s(1.0) == pytest.approx(0.045, rel=0.1)
    assert gap_s(0.5) == pytest.approx(0.09, rel=0.1)


def test_what_can_never_run_is_counted_as_refused():
    record, _ = simulate(Synthetic((Kind(300, 4, 0.5), Kind(30, 4, 0.5)), rate=20, duration_s=3), SETTINGS, LAYOUT, times)
    found = summarize(record)
    assert found["refused"] > 0
    assert found["requests"] > 0

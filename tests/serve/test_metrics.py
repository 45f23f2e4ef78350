"""Metrics: every name, under either namespace, and counts that add up."""

import asyncio
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from octavo.engine.client import EngineStats
from tests.scripted_engine import Script
from tests.serve.serving import Client, client

NAMES = {
    "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions", "prefix_cache_queries",
    "prefix_cache_hits", "prompt_tokens", "generation_tokens", "time_to_first_token_seconds", "inter_token_latency_seconds",
    "time_per_output_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds",
    "request_decode_time_seconds", "request_inference_time_seconds", "request_success", "request_prompt_tokens",
    "request_generation_tokens", "request_params_n", "request_params_max_tokens", "oom_events", "cache_evictions",
    "spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens", "prompt_tokens_cached",
    "request_time_per_output_token_seconds", "gpu_cache_usage_perc", "cpu_cache_usage_perc", "num_requests_swapped",
    "prefix_cache_misses",
}  # fmt: skip


async def read(api: Client) -> dict[str, Any]:
    response = await api.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    return {family.name: family for family in text_string_to_metric_families(response.text)}


def value(families: dict[str, Any], name: str, **labels: str) -> float:
    family, _, suffix = name.partition("/")
    found = [s.value for s in families[family].samples if s.name == family + suffix and labels.items() <= s.labels.items()]
    assert len(found) == 1, (name, labels, families[family].samples)
    return found[0]


@pytest.mark.parametrize("namespace", ["octavo", "vllm"])
async def test_every_name(namespace: str) -> None:
    async with client(metrics_namespace=namespace) as api:
        families = await read(api)
        assert {f"{namespace}:{name}" for name in NAMES} <= set(families)
        for name, family in families.items():
            if name.startswith(namespace):
                assert all(s.labels["model_name"] == "tiny" and s.labels["engine"] == "0" for s in family.samples), name


async def test_started_is_finished_by_reason_and_first_tokens_are_counted_once() -> None:
    """Ten requests: four aborted after their first token, one before, two stopped, one cut by length, one failed, one refused at once."""
    tags = {
        "slow": Script(["a"], step_s=0.05, forever=True),
        "late": Script(prefill_s=5.0),
        "stop": Script(),
        "fail": Script(["a"], fail_after=1),
    }

    def script(request, index):
        text = bytes(request.prompt_token_ids[1:]).decode()
        return tags[text]

    async with client(script) as api:

        async def leave_after(seconds: float, prompt: str) -> None:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(api.post("/v1/completions", {"prompt": prompt, "max_tokens": 100}), seconds)

        await asyncio.gather(*(leave_after(0.2, "slow") for _ in range(4)), leave_after(0.2, "late"))
        for prompt, max_tokens in (("stop", 16), ("stop", 16), ("stop", 2), ("fail", 16)):
            await api.post("/v1/completions", {"prompt": prompt, "max_tokens": max_tokens})
        assert (await api.post("/v1/completions", {"prompt": "stop", "temperature": -1})).status_code == 400
        families = await read(api)
        counts = {
            reason: value(families, "octavo:request_success/_total", finished_reason=reason)
            for reason in ("stop", "length", "abort", "error")
        }
        assert counts == {"stop": 2, "length": 1, "abort": 5, "error": 1}
        assert value(families, "octavo:requests_started/_total") == 9
        assert value(families, "octavo:time_to_first_token_seconds/_count") == 8
        assert value(families, "octavo:e2e_request_latency_seconds/_count") == 9
        assert api.front.queue.num_requests == 0


async def test_tokens_and_times() -> None:
    async with client(Script(num_cached_tokens=2)) as api:
        await api.post("/v1/completions", {"prompt": "abc", "stop": "world", "n": 2})
        families = await read(api)
        assert value(families, "octavo:prompt_tokens/_total") == 4
        assert value(families, "octavo:prompt_tokens_cached/_total") == 2
        assert value(families, "octavo:generation_tokens/_total") == 8, "four to the end of the stop string, twice"
        assert value(families, "octavo:request_params_n/_bucket", le="1.0") == 0
        assert value(families, "octavo:request_params_n/_bucket", le="2.0") == 1
        assert value(families, "octavo:inter_token_latency_seconds/_count") == 6, "of each text"
        assert value(families, "octavo:time_per_output_token_seconds/_count") == 1


async def test_the_engines_own_readings() -> None:
    reading = EngineStats(
        num_requests_running=3,
        num_requests_waiting=2,
        kv_cache_usage=0.5,
        num_preemptions=7,
        prefix_cache_queries=100,
        prefix_cache_hits=40,
        counters={
            "kv_evictions": 9.0,
            "something_else": 1.0,
            "prefix_misses_evicted": 4.0,
            "kv_cached_blocks": 5.0,
            "prefix_match_tokens": 16.0,
        },
        histograms={"iteration_tokens_total": [(8.0, 1), (64.0, 2), (float("inf"), 1)]},
    )
    async with client() as api:

        async def stats() -> list[EngineStats]:
            return [reading]

        api.engine.stats = stats  # pyright: ignore
        families = await read(api)
        assert value(families, "octavo:num_requests_running") == 3
        assert value(families, "octavo:num_requests_waiting") == 2
        assert value(families, "octavo:gpu_cache_usage_perc") == value(families, "octavo:kv_cache_usage_perc") == 0.5
        assert value(families, "octavo:num_preemptions/_total") == 7
        assert value(families, "octavo:prefix_cache_hits/_total") == 40
        assert value(families, "octavo:cache_evictions/_total") == 9
        assert value(families, "octavo:something_else/_total") == 1
        assert value(families, "octavo:prefix_cache_misses/_total", reason="evicted") == 4
        assert value(families, "octavo:kv_cached_blocks") == 5
        assert value(families, "octavo:prefix_match_tokens") == 16
        assert value(families, "octavo:iteration_tokens_total/_bucket", le="64.0") == 3
        assert value(families, "octavo:iteration_tokens_total/_bucket", le="+Inf") == 4


async def test_metrics_outlive_the_engine() -> None:
    async with client() as api:
        api.engine.dead = "gone"
        assert (await api.http.get("/metrics")).status_code == 200

"""Tokens per expert: from the router of a real model to /metrics."""

import httpx
from prometheus_client.parser import text_string_to_metric_families

from octavo.config.engine import EngineConfig
from octavo.config.server import ServerConfig
from octavo.engine.client import EngineStats, together
from octavo.expert_metrics import expert_families, imbalance
from octavo.serve.app import create_app
from octavo.serve.start import start_front
from tests.parity.conftest import make_pair  # noqa: F401  (a fixture)

MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1, "mlp_only_layers": []}
NUM_LAYERS, PER_TOKEN = 2, 2


def test_an_even_layer_has_imbalance_one():
    assert imbalance({0: 3, 1: 3}) == 1.0
    assert imbalance({0: 6, 1: 0, 2: 0}) == 3.0
    assert imbalance({0: 0, 1: 0}) == 0.0
    assert imbalance({}) == 0.0


def test_series_are_those_of_layers_and_experts_for_each_engine():
    engines = [{0: {0: 1, 1: 3}, 1: {0: 2, 1: 2}}, {0: {0: 5, 1: 0}, 1: {0: 0, 1: 5}}]
    tokens, uneven = expert_families("octavo", ("model_name", "engine"), "m", engines)
    assert [(s.labels["engine"], s.labels["expert"], s.value) for s in tokens.samples] == [
        ("0", "0", 3), ("0", "1", 5), ("1", "0", 5), ("1", "1", 5),
    ]  # fmt: skip
    assert [s.value for s in uneven.samples] == [1.5, 1.0, 2.0, 2.0]
    assert not any(family.samples for family in expert_families("octavo", ("model_name", "engine"), "m", [{}, {}]))
    assert together([EngineStats(expert_tokens=one) for one in engines]).expert_tokens == {0: {0: 6, 1: 3}, 1: {0: 2, 1: 7}}


async def test_a_served_mixture_tells_how_its_experts_are_used(make_pair, tmp_path):  # noqa: F811
    make_pair("qwen3_moe", num_hidden_layers=NUM_LAYERS, **MOE)
    flags = {"max_model_len": 64, "max_num_seqs": 2, "kv_cache_memory_bytes": 1 << 20, "tokenizer": "smollm2-135m"}
    front = await start_front(EngineConfig.from_flags(model=str(tmp_path), **flags), ServerConfig())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(create_app(front)), base_url="http://octavo") as http:
        asked = {"prompt": list(range(3, 23)), "max_tokens": 20, "temperature": 0, "ignore_eos": True}
        assert (await http.post("/v1/completions", json=asked)).status_code == 200
        text = (await http.get("/metrics")).text
    await front.engine.close()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    counts = {sample.labels["expert"]: sample.value for sample in families["octavo:expert_tokens"].samples}
    assert set(counts) == {"0", "1", "2", "3"}
    seen = sum(counts.values()) / NUM_LAYERS / PER_TOKEN
    assert 20 + 15 <= seen <= 20 + 20, "the prompt, and what came before the last reading"
    assert {sample.labels["layer"] for sample in families["octavo:expert_load_imbalance"].samples} == {"0", "1"}
    assert all(1.0 <= sample.value <= 4.0 for sample in families["octavo:expert_load_imbalance"].samples)

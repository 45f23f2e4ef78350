"""Settings by topic: types, own invariants, unknown names."""

import pytest

from octavo.config.engine import ENGINE_TOPICS, EngineConfig, names_of
from octavo.config.fields import ConfigError, UnknownSetting, human_int, settings_of
from octavo.config.server import ServerConfig


@pytest.mark.parametrize(
    ("text", "number"),
    [("4096", 4096), ("32k", 32_000), ("32K", 32_768), ("1.5k", 1500), ("2m", 2_000_000), ("2G", 2 << 30), ("1t", 10**12), ("1_000", 1000),
     ("-1", -1)],
)
def test_human_numbers(text: str, number: int) -> None:
    assert human_int(text) == number


@pytest.mark.parametrize("text", ["1.5K", "k", "", "12x", "1.0001k", "0x10", "infk"])
def test_what_is_no_number(text: str) -> None:
    with pytest.raises((ValueError, OverflowError)):
        human_int(text)


def test_flat_names_reach_their_topics() -> None:
    flags = {"model": "m", "max_model_len": "32K", "tensor_parallel_size": "2", "dtype": "BFloat16", "hf_overrides": '{"a": {"b": 1}}'}
    asked = EngineConfig.from_flags(**flags)
    assert (asked.model.model, asked.model.max_model_len, asked.parallel.tensor_parallel_size) == ("m", 32768, 2)
    assert asked.model.dtype == "bfloat16"
    assert asked.model.hf_overrides == {"a": {"b": 1}}


def test_second_names_and_compound_values() -> None:
    asked = EngineConfig.from_flags(device_memory_utilization=0.5, compilation_config={"cudagraph_mode": "full", "level": 3})
    assert asked.cache.gpu_memory_utilization == 0.5
    assert (asked.compilation.cudagraph_mode, asked.compilation.optimization_level) == ("FULL", 3)
    assert EngineConfig.from_flags(compilation_config=1).compilation.optimization_level == 1


def test_a_value_given_under_two_names_is_refused() -> None:
    with pytest.raises(ConfigError, match="given twice"):
        EngineConfig.from_flags(attention_backend="a", attention_config={"backend": "b"})


@pytest.mark.parametrize(
    ("name", "close"), [("max_num_sqs", "max_num_seqs"), ("tensor_paralel_size", "tensor_parallel_size"), ("dtyp", "dtype")]
)
def test_unknown_names_are_type_errors_that_name_close_ones(name: str, close: str) -> None:
    with pytest.raises(TypeError, match=close) as caught:
        EngineConfig.from_flags(**{name: 1})
    assert isinstance(caught.value, UnknownSetting)
    assert close in caught.value.close


BAD = [
    ({"max_num_seqs": 0}, "--max-num-seqs = 0 is not possible: it must be at least 1"),
    ({"max_num_seqs": "many"}, "whole number"),
    ({"max_num_seqs": True}, "whole number"),
    ({"block_size": 17}, "nearest: 16"),
    ({"gpu_memory_utilization": 1.2}, "for example 1.0"),
    ({"gpu_memory_utilization": float("nan")}, "finite"),
    ({"dtype": "bf16"}, "nearest: bfloat16"),
    ({"kv_cache_memory_bytes": 0}, "at least 1"),
    ({"kv_cache_memory_bytes": "1G", "num_gpu_blocks_override": 3}, "give one of them"),
    ({"max_num_batched_tokens": 8, "max_num_seqs": 16}, "use at least 16"),
    ({"max_num_partial_prefills": 2, "enable_chunked_prefill": False}, "--enable-chunked-prefill"),
    ({"max_long_partial_prefills": 2}, "--max-num-partial-prefills = 1"),
    ({"optimization_level": 7}, "nearest: 3"),
    ({"enforce_eager": True, "cudagraph_mode": "FULL"}, "leave one of them out"),
    ({"max_model_len": 1}, "at least 2"),
    ({"max_model_len": "long"}, "auto"),
    ({"seed": 2**64}, "64 bits"),
    ({"enable_prefix_caching": "maybe"}, "true or false"),
    ({"hf_overrides": "{a"}, "JSON"),
    ({"hf_overrides": 3}, "JSON object"),
    ({"tensor_parallel_size": 0}, "at least 1"),
    ({"model": ""}, "folder"),
]


@pytest.mark.parametrize(("flags", "says"), BAD, ids=[str(flags) for flags, _ in BAD])
def test_values_that_cannot_work_name_the_flag_the_value_and_what_does(flags: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig.from_flags(**flags)
    assert says in str(caught.value)
    assert caught.value.name in flags or f"--{caught.value.name.replace('_', '-')}" in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "says"),
    [({"port": 70000}, "nearest: 65535"), ({"ssl_keyfile": "k"}, "--ssl-certfile"), ({"ssl_certfile": "c"}, "--ssl-keyfile"),
     ({"api_key": ("",)}, "one character"), ({"ssl_cert_reqs": 3}, "0, 1 or 2"), ({"max_num_queued_reqs": 0}, "at least 1")],
)  # fmt: skip
def test_server_invariants(flags: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ServerConfig(**flags)  # type: ignore[arg-type]


def test_none_and_its_texts_mean_auto_for_optional_settings() -> None:
    for nothing in (None, "None", "none", ""):
        assert EngineConfig.from_flags(max_num_seqs=nothing, tokenizer=nothing) == EngineConfig()


def test_every_default_is_a_value_of_its_type() -> None:
    for topic in (*ENGINE_TOPICS, ServerConfig):
        for setting in settings_of(topic):
            assert setting.parse(setting.default) == setting.default


def test_names_are_unique_over_all_topics() -> None:
    names_of((*ENGINE_TOPICS, ServerConfig))  # raises where two topics declare one name


def test_server_settings_are_noted_by_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    assert EngineConfig.from_flags(disable_log_stats=True) == EngineConfig()
    assert "--disable-log-stats concerns the server only" in caplog.text

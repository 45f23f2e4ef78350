"""Reading a command line: conventions of flags, and which source wins."""

from pathlib import Path

import pytest

from octavo.cli import serve
from octavo.cli.flags import CommandLineError, Settings, parse
from octavo.config.engine import ENGINE_TOPICS
from octavo.config.fields import ConfigError, settings_of
from octavo.config.server import ServerConfig
from octavo.env import BadEnvironment

TOPICS = (serve.OPTIONS, *serve.TOPICS)


def read(line: str) -> Settings:
    return parse(line.split(), TOPICS)


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("--max-model-len 32k", "max_model_len", 32_000),
        ("--max_model_len 32K", "max_model_len", 32_768),
        ("--max_model-len=4096", "max_model_len", 4096),
        ("--max-model-len auto", "max_model_len", "auto"),
        ("--max-model-len -1", "max_model_len", -1),
        ("-O3", "optimization_level", 3),
        ("-O 0", "optimization_level", 0),
        ("-O=1", "optimization_level", 1),
        ("-tp 2", "tensor_parallel_size", 2),
        ("-tp=2", "tensor_parallel_size", 2),
        ("-pp 2", "pipeline_parallel_size", 2),
        ("-dp 2", "data_parallel_size", 2),
        ("--enable-prefix-caching", "enable_prefix_caching", True),
        ("--no-enable-prefix-caching", "enable_prefix_caching", False),
        ("--no_enable_prefix_caching", "enable_prefix_caching", False),
        ("--device-memory-utilization 0.5", "gpu_memory_utilization", 0.5),
        ("--kv-cache-memory 2G", "kv_cache_memory_bytes", 2 << 30),
        ("--tokenizer None", "tokenizer", None),
        ("--served-model-name a b", "served_model_name", ("a", "b")),
        ("--api-key a --api-key b", "api_key", ("a", "b")),
        ("some/model", "model", "some/model"),
        ("--model some/model", "model", "some/model"),
        ("positional --model other", "model", "positional"),
        ('--hf-overrides {"a":{"b":1}}', "hf_overrides", {"a": {"b": 1}}),
        ("--hf-overrides.rope_theta 5e5", "hf_overrides", {"rope_theta": 5e5}),
        ("--hf_overrides.rope_scaling.rope_type=yarn", "hf_overrides", {"rope_scaling": {"rope_type": "yarn"}}),
        ("--hf-overrides.layer_types+ full --hf-overrides.layer_types+=[1]", "hf_overrides", {"layer_types": ["full", [1]]}),
        ('--hf-overrides {"a":1,"b":2} --hf-overrides.b 3', "hf_overrides", {"a": 1, "b": 3}),
        ("-cc.cudagraph_mode=FULL", "cudagraph_mode", "FULL"),
        ('--compilation-config {"cudagraph_mode":"piecewise"}', "cudagraph_mode", "PIECEWISE"),
        ("-cc 3", "optimization_level", 3),
        ("-ac.backend reference", "attention_backend", "reference"),
        ("-O.cudagraph_mode NONE", "cudagraph_mode", "NONE"),
        ("--cudagraph-capture-sizes 1 2 4", "cudagraph_capture_sizes", (1, 2, 4)),
        ("--cudagraph-capture-sizes [1,2,4]", "cudagraph_capture_sizes", (1, 2, 4)),
        ('--allowed-origins ["http://a","http://b"]', "allowed_origins", ("http://a", "http://b")),
        ("--allowed-origins [a", "allowed_origins", ("[a",)),
        ("--enable-prefix-caching=false", "enable_prefix_caching", False),
        ("--enable_prefix_caching=True", "enable_prefix_caching", True),
        ("--no-enable-prefix-caching=1", "enable_prefix_caching", False),
        ("--no-enable-prefix-caching=off", "enable_prefix_caching", True),
    ],
)
def test_ways_to_write_a_flag(line: str, name: str, value: object) -> None:
    settings = read(line)
    assert settings.values[name] == value
    assert settings.sources[name] == "command line"


def test_every_setting_has_its_flag() -> None:
    for setting in (setting for topic in (*ENGINE_TOPICS, ServerConfig) for setting in settings_of(topic)):
        flag = "--" + setting.name.replace("_", "-")
        words = [flag]
        if not setting.is_switch:
            words.append('{"k": 1}' if setting.is_mapping else str((setting.choices or ("7",))[-1]))
        assert setting.name in parse(words, TOPICS).values


@pytest.mark.parametrize(
    ("line", "error", "says"),
    [
        ("--max-num-sqs 4", CommandLineError, "did you mean --max-num-seqs"),
        ("--max-num-seqs", CommandLineError, "--max-num-seqs"),
        ("a b", CommandLineError, "too many words: b"),
        ("--block-size 17", ConfigError, "nearest: 16"),
        ("--max-model-len 1.5K", ConfigError, "whole number"),
        ("--enable-lora", ConfigError, "merge the adapter"),
        ("--config", CommandLineError, "needs a file"),
        ("--config nothing.yaml", CommandLineError, "nothing.yaml cannot be read"),
        ("--hf-overrides.a", CommandLineError, "needs a value"),
        ("--enforce-eager False", CommandLineError, "write .* --no-enforce-eager"),
        ("--enforce-eager=perhaps", ConfigError, "--enforce-eager = 'perhaps' .* true or false"),
    ],
)
def test_wrong_lines_say_what_is_wrong(line: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        read(line).engine()


@pytest.fixture
def yaml_file(tmp_path: Path) -> str:
    path = tmp_path / "settings.yaml"
    path.write_text(
        "max-num-seqs: 8\nblock_size: 32\nhf-overrides: {a: {b: 1}}\nenable-prefix-caching: false\nmax_model_len: 4k\nmodel: filed\n"
    )
    return str(path)


@pytest.mark.parametrize(
    "line", ["--config {} --block-size 8", "--config={} --block-size 8", "--block-size 8 --config {}", "--block-size 8 --config={}"]
)
def test_the_file_counts_wherever_it_is_named_and_the_command_line_wins(line: str, yaml_file: str) -> None:
    settings = read(line.format(yaml_file))
    assert settings.values["block_size"] == 8
    assert settings.sources["block_size"] == "command line"
    assert settings.values["max_num_seqs"] == 8
    assert settings.sources["max_num_seqs"] == yaml_file
    asked = settings.engine()
    assert (asked.cache.block_size, asked.model.max_model_len, asked.cache.enable_prefix_caching) == (8, 4000, False)
    assert asked.model.hf_overrides == {"a": {"b": 1}}


def test_file_over_environment_over_default(yaml_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read("").engine().model.model == "smollm2-135m"
    monkeypatch.setenv("OCTAVO_MODEL", "from-the-environment")
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    settings = read("")
    assert settings.values["model"] == "from-the-environment"
    assert settings.sources == {"model": "OCTAVO_MODEL", "api_key": "VLLM_API_KEY"}
    assert read(f"--config {yaml_file}").values["model"] == "filed"
    assert read(f"--config {yaml_file} typed").values["model"] == "typed"


def test_what_is_printed_at_start_names_the_source_and_hides_secrets(yaml_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_API_KEY", "very-secret")
    text = read(f"--config {yaml_file} --block-size 8").describe()
    assert "block_size = 8 (command line)" in text
    assert f"max_num_seqs = 8 ({yaml_file})" in text
    assert "api_key = *** (OCTAVO_API_KEY)" in text
    assert "very-secret" not in text


def test_a_later_file_wins_over_an_earlier_one(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"{number}.yaml").write_text(f"max_num_seqs: {number}\n")
    assert read(f"--config {tmp_path}/1.yaml --config {tmp_path}/2.yaml").values["max_num_seqs"] == 2


@pytest.mark.parametrize(
    ("text", "says"), [("- a\n- b\n", "one `name: value` a line"), ("a: [", "is not YAML"), ("max_num_sqs: 3", "max_num_seqs")]
)
def test_bad_files(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises((CommandLineError, TypeError), match=says):
        read(f"--config {path}")


def test_an_empty_file_asks_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("# nothing\n")
    assert read(f"--config {path}").values == {}


def test_a_foreign_flag_is_noted_once_and_only_where_it_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "file.yaml"
    path.write_text("swap-space: 4\ntrust-remote-code: true\n")
    settings = read(f"--config {path} --swap-space 8 --no-trust-remote-code")
    settings.engine()
    assert [record.message.split()[0] for record in caplog.records] == ["--swap-space"]


def test_a_bad_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from octavo.env import CPU_KVCACHE_SPACE

    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "lots")
    with pytest.raises(BadEnvironment, match="VLLM_CPU_KVCACHE_SPACE = 'lots'"):
        CPU_KVCACHE_SPACE.get()

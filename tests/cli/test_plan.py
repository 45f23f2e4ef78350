"""`octavo plan`: from a config.json to a page and to JSON."""

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.attention.registry import BACKENDS
from octavo.cli.main import main
from tests.plan.checkpoints import DEEPSEEK_V3, GEMMA3_1B, LLAMA3_8B, QWEN25_32B


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA3_8B))
    return str(tmp_path)


def test_json_has_the_sizes(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", folder, "--device", "h200", "--json", "--kv-cache-memory-bytes", "16G"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["weight_bytes"] == 16_060_522_496
    assert plan["kv_bytes_per_token"] == 131_072
    assert plan["kv_tokens"] == (16 << 30) // 131_072
    assert plan["max_concurrency"] == plan["kv_tokens"] / 8192
    assert plan["settings"]["max_model_len"] == 8192


def test_attention_backends_are_listed_with_reasons(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", folder, "--device", "h200", "--json"]) == 0
    attention = json.loads(capsys.readouterr().out)["attention"]
    assert attention.pop("triton") == "chosen"
    assert set(attention) == set(BACKENDS.names()) - {"triton"}
    assert all(attention.values())
    assert main(["plan", folder, "--device", "h200", "--attention-backend", "reference", "-cc.cudagraph_mode", "NONE"]) == 0
    assert "attention: reference\n" in capsys.readouterr().out
    assert main(["plan", folder, "--device", "h200", "--attention-backend", "nosuch"]) == 2
    assert "triton, triton_mla, cpu, triton_invariant, cpu_invariant, reference" in capsys.readouterr().err


def test_overrides_count(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", folder, "--device", "h200", "--json", "--hf-overrides.num_hidden_layers", "16"]) == 0
    assert json.loads(capsys.readouterr().out)["kv_bytes_per_token"] == 65_536


def test_the_page_is_one_screen_and_says_how_to_repeat_it(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", folder, "--device", "h100"]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) < 40
    size = text.split("--kv-cache-memory-bytes ")[1].split()[0]
    assert main(["plan", folder, "--device", "h100", "--json", "--kv-cache-memory-bytes", size]) == 0
    again = json.loads(capsys.readouterr().out)
    assert f"{again['kv_tokens']:,} tokens" in text


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--device", "h300"], 2, "h200"),
        (["--device", "l4", "--gpu-memory-utilization", "0.78"], 2, "longest that fits"),
        (["--device", "t4"], 2, "weights take"),
    ],
)
def test_what_does_not_fit_is_told_with_numbers(
    folder: str, words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", folder, *words, "--max-num-seqs", "900"]) == code
    assert says in capsys.readouterr().err


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "/no/such/folder"]) == 1
    assert "/no/such/folder" in capsys.readouterr().err


def test_an_architecture_that_is_not_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["StrangeForCausalLM"]}')
    assert main(["plan", str(tmp_path)]) == 1
    assert "LlamaForCausalLM" in capsys.readouterr().err


def test_predictions_and_what_a_load_needs(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", folder, "--device", "h200", "--json", "--load-output", "100000", "--input-len", "256", "--output-len", "256"]) == 0
    plan = json.loads(capsys.readouterr().out)
    capacity = plan["predicted"]["output_tokens_per_s"]
    assert plan["load"]["prompt_tokens_per_s"] == 100_000
    assert plan["load"]["devices"][0] == -(-100_000 // (0.85 * capacity))
    assert plan["cpu_cores"] == 3


def test_layouts_in_a_table(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", folder, "--device", "h200", "--compare", "tp1", "tp2", "dp4tp2", "tp3", "--json"]) == 0
    one, two, many, wrong = json.loads(capsys.readouterr().out)["layouts"]
    assert (one["devices"], two["devices"], many["devices"], many["cpu_cores"]) == (1, 2, 8, 17)
    assert one["output_tokens_per_s"] < two["output_tokens_per_s"] < 2 * one["output_tokens_per_s"]
    assert two["kv_tokens"] > 2 * one["kv_tokens"], "the weights are shared"
    assert many["kv_tokens"] == 4 * two["kv_tokens"]
    assert "32 attention heads" in wrong["refused"]
    assert main(["plan", folder, "--device", "h200", "--compare", "tp1", "tp3"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert main(["plan", folder, "--compare", "xp1"]) == 2


def read(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out)


def test_a_number_of_devices_gets_a_layout(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", folder, "--device", "h200", "--devices", "4", "--json"]) == 0
    plan = read(capsys)
    assert (plan["devices"], plan["settings"]["data_parallel_size"], plan["settings"]["tensor_parallel_size"]) == (4, 4, 1)
    (Path(folder) / "config.json").write_text(json.dumps(QWEN25_32B))
    assert main(["plan", folder, "--device", "l40s", "--devices", "8", "--max-model-len", "8192", "--json"]) == 0
    plan = read(capsys)
    assert plan["settings"]["tensor_parallel_size"] == 2, "one rank has no room for the weights"
    assert plan["cpu_cores"] == 4 + 4 + 8 + 1
    assert main(["plan", folder, "--device", "h200", "--devices", "2", "-tp", "4"]) == 2
    assert "takes 4" in capsys.readouterr().err


def test_what_has_no_room_is_told_with_the_ranks_that_have(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", folder, "--device", "t4"]) == 2
    assert "--tensor-parallel-size 2, with which it fits on 2 x t4" in capsys.readouterr().err


def test_media_count_in_prompts_and_in_what_fits(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", folder, "--device", "h200", "--json", "--lengths", "1024", "2048"]
    assert main(words) == 0
    plain = read(capsys)
    assert main([*words, "--media-tokens", "1000"]) == 0
    media = read(capsys)
    assert [fit["length"] for fit in plain["fits"]] == [1024, 2048, 8192]
    assert [fit["length"] for fit in media["fits"]] == [2024, 3048, 8192]
    assert media["fits"][0]["sequences"] == media["kv_tokens"] // (127 * 16)
    assert media["predicted"]["input_len"] == 1512
    assert media["predicted"]["alone"]["ttft_s"] > plain["predicted"]["alone"]["ttft_s"]


def test_sizes_by_format_and_kind_of_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GEMMA3_1B))
    assert main(["plan", str(tmp_path / "config.json"), "--device", "h200", "--json"]) == 0, "the file itself may be named"
    plan = read(capsys)
    assert plan["weights_by_format"] == {"bfloat16": 2 * 999_885_952, "float32": 4 * 999_885_952}
    window, full = plan["kv_kinds"]
    assert (window["num_layers"], window["name"], full["num_layers"]) == (22, "window of 512", 4)
    assert full["bytes_per_token"] == {"bfloat16": 4 * 1024, "float32": 4 * 2048, "fp8_e4m3": 4 * 512, "int8": 4 * 516}
    (tmp_path / "config.json").write_text(json.dumps(DEEPSEEK_V3))
    assert main(["plan", str(tmp_path), "--device", "b200", "-tp", "16", "--json"]) == 0
    (latent,) = read(capsys)["kv_kinds"]
    assert latent["bytes_per_token"] == {"bfloat16": 61 * 576 * 2}, "no rank has less"


def test_a_gguf_header_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "smollm2-135m", "--device", "cpu", "--json"]) == 0
    plan = read(capsys)
    packed = plan["weights_by_format"]["Q4_1"] + plan["weights_by_format"]["Q8_0"]
    assert packed <= plan["weight_bytes"] <= 1.01 * packed


def test_all_layouts_of_some_devices(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", folder, "--device", "l40s", "--devices", "4", "--compare", "all", "--json"]) == 0
    rows = {row["layout"]: row for row in read(capsys)["layouts"]}
    assert set(rows) == {"dp4", "dp2tp2", "tp4", "dp2pp2", "tp2pp2", "pp4"}
    assert all(row["devices"] == 4 for row in rows.values())
    assert "links" in rows["tp4"]["warnings"]
    assert rows["dp2pp2"]["output_tokens_per_s"] > rows["dp2tp2"]["output_tokens_per_s"]


def test_remarks_are_on_the_page(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", folder, "--device", "l4"]) == 0
    assert "! KV-bound: memory ends the capacity" in capsys.readouterr().out

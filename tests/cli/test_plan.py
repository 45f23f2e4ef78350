"""`octavo plan`: from a config.json to a page and to JSON."""

import json
from pathlib import Path

import pytest

from octavo.cli.main import main
from tests.plan.checkpoints import LLAMA3_8B


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
    assert set(attention) == {"triton_mla", "cpu", "triton_invariant", "cpu_invariant", "reference"}
    assert main(["plan", folder, "--device", "h200", "--attention-backend", "reference", "-cc.cudagraph_mode", "NONE"]) == 0
    assert "reference: chosen" in capsys.readouterr().out
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
        (["--device", "l4", "--gpu-memory-utilization", "0.81"], 2, "longest that fits"),
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
    assert two["itl_s"] < one["itl_s"]
    assert two["kv_tokens"] > 2 * one["kv_tokens"], "the weights are shared"
    assert many["kv_tokens"] == 4 * two["kv_tokens"]
    assert "32 attention heads" in wrong["refused"]
    assert main(["plan", folder, "--device", "h200", "--compare", "tp1", "tp3"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert main(["plan", folder, "--compare", "xp1"]) == 2

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer as Core
from tokenizers import models

from octavo.config.engine import EngineConfig
from octavo.engine.build import open_model
from octavo.models.checkpoint import open_checkpoint
from octavo.models.tensors import CheckpointError
from octavo.text.tokenizer import TokenizerError
from tests.models.gguf_files import hyperparameters, llama_tensors, write_gguf

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "eos_token_id": [5, 6],
          "rope_scaling": {"rope_type": "linear", "factor": 2.0}}  # fmt: skip
WORDS = {"<s>": 0, "</s>": 1, "a": 2, "b": 3}


def write_folder(folder, *, tokenizer: bool = True, weights: bool = True, **files):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    if weights:
        save_file({"model.norm.weight": torch.ones(32)}, folder / "model.safetensors")
    if tokenizer:
        core = Core(models.WordLevel(WORDS, unk_token="a"))
        core.add_special_tokens(["<s>", "</s>"])
        core.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", "bos_token": "<s>", "chat_template": "hi"}))
    return folder


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "model", generation_config={"temperature": 0.5, "eos_token_id": [6, 7]})


def test_a_folder_is_opened(folder):
    checkpoint = open_checkpoint(str(folder))
    assert (checkpoint.load_format, checkpoint.source, checkpoint.name) == ("safetensors", folder, str(folder))
    assert checkpoint.config == CONFIG
    assert checkpoint.generation_config["temperature"] == 0.5
    assert torch.equal(checkpoint.tensors()["model.norm.weight"].load(), torch.ones(32))
    assert checkpoint.chat_template == "hi"
    assert checkpoint.tokenizer() is checkpoint.tokenizer()


def test_end_ids_are_gathered_from_everywhere(folder):
    assert open_checkpoint(str(folder)).eos_token_ids == (6, 7, 5, 1)
    assert open_checkpoint(str(folder), generation_config="vllm").eos_token_ids == (5, 6, 1)


@pytest.mark.parametrize(("value", "ids"), [(None, ()), (3, (3,)), ([3, True, "x", 4], (3, 4)), (False, ())])
def test_end_ids_of_any_form(value, ids, tmp_path):
    folder = write_folder(tmp_path / "model", tokenizer=False)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "eos_token_id": value}))
    assert open_checkpoint(str(folder)).eos_token_ids == ids


def test_overrides_go_over_the_generation_config(folder):
    checkpoint = open_model(EngineConfig.from_flags(model=str(folder), override_generation_config={"temperature": 0.25, "eos_token_id": 9}))
    assert checkpoint.generation_config == {"temperature": 0.25, "eos_token_id": 9}
    assert checkpoint.eos_token_ids[0] == 9
    assert 7 not in checkpoint.eos_token_ids, "only the generation config names it"


def test_generation_config_from_elsewhere(folder, tmp_path):
    other = write_folder(tmp_path / "other", generation_config={"top_k": 7})
    for place in (other, other / "generation_config.json"):
        assert open_checkpoint(str(folder), generation_config=str(place)).generation_config == {"top_k": 7}
    with pytest.raises(CheckpointError, match="generation_config = '/nowhere'"):
        open_checkpoint(str(folder), generation_config="/nowhere")


def test_overrides_are_put_over_the_config(folder):
    overrides = {"hidden_size": 64, "rope_scaling": {"factor": 4.0}, "new": [1]}
    config = open_checkpoint(str(folder), hf_overrides=overrides).config
    assert config["hidden_size"] == 64
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    assert config["new"] == [1]
    assert config["model_type"] == "llama"


def test_another_tokeniser_may_be_named(folder, tmp_path):
    bare = write_folder(tmp_path / "bare", tokenizer=False)
    with pytest.raises(TokenizerError, match=r"bare: there is no tokenizer\.json.*--tokenizer"):
        open_checkpoint(str(bare)).tokenizer()
    assert open_checkpoint(str(bare), tokenizer=str(folder)).tokenizer().encode("a") == [2]
    with pytest.raises(CheckpointError, match="tokenizer = '/no/such'"):
        open_checkpoint(str(bare), tokenizer="/no/such")
    assert open_checkpoint(str(bare), tokenizer="smollm2-135m").tokenizer().vocab_size == 49152


def test_dummy_weights_need_a_config_only(tmp_path):
    checkpoint = open_checkpoint(str(write_folder(tmp_path / "m", tokenizer=False, weights=False)), load_format="dummy")
    assert (checkpoint.load_format, checkpoint.eos_token_ids) == ("dummy", (5, 6))
    with pytest.raises(CheckpointError, match="dummy"):
        checkpoint.tensors()


def test_formats_that_do_not_fit_are_refused(folder, tmp_path):
    gguf = write_gguf(tmp_path / "m.gguf", "llama", hyperparameters("llama"), llama_tensors())
    for model, load_format in ((folder, "gguf"), (gguf, "safetensors"), (folder, "pt")):
        with pytest.raises(CheckpointError, match=f"load_format = '{load_format}'"):
            open_checkpoint(str(model), load_format=load_format)
    assert open_checkpoint(str(gguf), load_format="gguf").load_format == "gguf"


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", "llama", hyperparameters("llama"), llama_tensors())
    assert open_checkpoint(str(tmp_path)).source == path
    (tmp_path / "n.gguf").touch()
    with pytest.raises(CheckpointError, match=r"name one of m\.gguf, n\.gguf"):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize("text", ["", "{", "[1]", "{}", "\ufeff", "[" * 100_000])
def test_a_damaged_config_is_refused(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_checkpoint(str(tmp_path))


def test_an_empty_folder_says_what_is_missing(tmp_path):
    with pytest.raises(CheckpointError, match=r"no config\.json nor a \.gguf file"):
        open_checkpoint(str(tmp_path))


def test_a_gguf_file_tells_whether_its_head_is_tied(tmp_path):
    tied = write_gguf(tmp_path / "t.gguf", "llama", hyperparameters("llama"), llama_tensors())
    head = {"output.weight": np.zeros((48, 32), np.float32)}
    untied = write_gguf(tmp_path / "u.gguf", "llama", hyperparameters("llama"), llama_tensors() | head)
    assert open_checkpoint(str(tied)).config["tie_word_embeddings"] is True
    assert open_checkpoint(str(untied)).config["tie_word_embeddings"] is False
    assert "lm_head.weight" in open_checkpoint(str(untied)).tensors()


def test_opening_does_not_import_torch():
    code = "import sys; from octavo.models.checkpoint import open_checkpoint as o; c = o('smollm2-135m'); c.tokenizer(); c.tensors(); "
    code += "print([name for name in ('torch', 'transformers', 'gguf', 'huggingface_hub') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"

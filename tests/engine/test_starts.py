"""A cache folder serves where nothing may be compiled, wherever it lies; what it is not made for is refused by name."""

import pytest

from octavo import LLM, SamplingParams, env
from octavo.config.engine import ENGINE_TOPICS, names_of
from octavo.config.resolved import Resolved
from octavo.engine import starts
from octavo.miss import CacheMiss
from tests.parity.tiny import tiny

GREEDY = SamplingParams(temperature=0, max_tokens=4)
FLAGS = {"max_model_len": 64, "kv_cache_memory_bytes": 8 << 20, "max_num_seqs": 2, "dtype": "float32"}


def text(**changed) -> list[int]:
    llm = LLM("smollm2-135m", **FLAGS | changed)
    try:
        return llm.generate("The sky", GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    finally:
        llm.close()


def test_a_moved_folder_serves_the_same_start_and_no_other(tmp_path, monkeypatch):
    monkeypatch.setenv("OCTAVO_CACHE_ROOT", str(tmp_path / "made"))
    expected = text()
    (tmp_path / "made").rename(tmp_path / "moved")
    monkeypatch.setenv("OCTAVO_CACHE_ROOT", str(tmp_path / "moved"))
    monkeypatch.setenv("OCTAVO_FORCE_AOT_LOAD", "1")
    assert text() == expected
    with pytest.raises(CacheMiss, match=r"differs in --block-size \(32 here, 16 there\)\. Use"):
        text(block_size=32)


def test_the_nearest_start_is_the_one_that_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("OCTAVO_FORCE_AOT_LOAD", "1")
    model = tiny()
    with pytest.raises(CacheMiss, match="no start has filled it"):
        starts.require(starts.note_of(Resolved(), model, "H200"), tmp_path)
    starts.keep(starts.note_of(Resolved(block_size=32, kv_dtype="int8"), model, "H200"), tmp_path)
    starts.keep(starts.note_of(Resolved(block_size=32), model, "H200"), tmp_path)
    starts.require(starts.note_of(Resolved(block_size=32, seed=7), model, "H200"), tmp_path)  # no kernel hangs on the seed
    with pytest.raises(CacheMiss) as miss:
        starts.require(starts.note_of(Resolved(block_size=8), model, "H100"), tmp_path)
    assert "--block-size (8 here, 32 there); machine" in str(miss.value)
    assert "--kv-cache-dtype" not in str(miss.value)


def test_what_is_long_is_cut():
    one, other = ({"--cudagraph-capture-sizes": str(tuple(range(1, most)))} for most in (33, 201))
    (told,) = starts.differences(one, other)
    assert told == "--cudagraph-capture-sizes ((1, 2, 3, 4, ... 30, 31, 32) here, (1, 2, 3, 4, ... 8, 199, 200) there)"


def test_what_is_named_are_flags():
    assert set(starts.FLAGS.values()) <= set(names_of(ENGINE_TOPICS))
    assert set(starts.FLAGS) <= set(Resolved.__dataclass_fields__)


def test_the_variable_has_vllm_s_name_too(monkeypatch):
    monkeypatch.setenv("VLLM_FORCE_AOT_LOAD", "1")
    assert env.FORCE_AOT_LOAD.get()

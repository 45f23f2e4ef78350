"""Profiles of steps, by order."""

import gzip
import json

import pytest

from octavo import LLM, SamplingParams
from octavo.config.fields import ConfigError
from octavo.types import InvalidRequest

GREEDY = SamplingParams(temperature=0, max_tokens=3)


def start(**flags) -> LLM:
    return LLM("smollm2-135m", max_model_len=64, kv_cache_memory_bytes=16 << 20, dtype="bfloat16", optimization_level=0, **flags)


def test_a_profile_shows_what_ran_between_the_orders(tmp_path):
    llm = start(profiler_config={"profiler": "torch", "torch_profiler_dir": str(tmp_path / "traces")})
    with pytest.raises(InvalidRequest, match="no profile is being taken"):
        llm.stop_profile()
    llm.start_profile()
    with pytest.raises(InvalidRequest, match="already"):
        llm.start_profile()
    llm.generate(["Hi"], GREEDY, use_tqdm=False)
    llm.stop_profile()
    (path,) = (tmp_path / "traces").iterdir()
    names = {event.get("name") for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]}
    assert any("mm" in str(name) or "linear" in str(name) for name in names)
    llm.close()


def test_without_a_folder_it_says_what_to_do():
    llm = start()
    with pytest.raises(InvalidRequest, match="torch_profiler_dir"):
        llm.start_profile()
    llm.close()
    with pytest.raises(ConfigError, match="torch_profiler_dir"):
        start(profiler_config={"profiler": "cuda"})

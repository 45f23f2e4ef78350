"""Sampling stages of the user's own, named in the settings."""

from __future__ import annotations

import pytest

from octavo import LLM, SamplingParams
from octavo.config.fields import ConfigError
from octavo.config.resolved import Resolved
from octavo.worker.build import slot_need
from tests.own_stage import WORD

NAME = "tests.own_stage:OneWord"
SMALL = {"load_format": "dummy", "hf_overrides": {"num_hidden_layers": 1}, "max_model_len": 64, "kv_cache_memory_bytes": 1 << 22}


def test_a_stage_acts_on_the_requests_that_want_it() -> None:
    llm = LLM("smollm2-135m", logits_processors=[NAME], **SMALL)
    params = [SamplingParams(seed=seed, max_tokens=4, ignore_eos=True) for seed in (77, 1)]
    bound, free = (output.outputs[0].token_ids for output in llm.generate([[5, 6], [5, 6]], params, use_tqdm=False))
    llm.close()
    assert bound == [WORD] * 4
    assert free != bound


def test_rows_that_want_it_are_counted_by_the_scheduler() -> None:
    need = slot_need(Resolved(logits_processors=(NAME,)), vocab_size=500)
    assert need(SamplingParams(seed=77))
    assert not need(SamplingParams(seed=1))
    assert need(SamplingParams(seed=1, presence_penalty=1))
    assert not slot_need(Resolved(), vocab_size=500)(SamplingParams(seed=77))


def test_a_name_that_leads_nowhere_is_told_as_a_flag() -> None:
    with pytest.raises(ConfigError, match=r"--logits-processors.*nowhere:Stage"):
        LLM("smollm2-135m", logits_processors=["nowhere:Stage"], **SMALL)

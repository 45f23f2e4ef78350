from __future__ import annotations

import pytest

from octavo.config.resolved import Resolved
from octavo.core.limits import SlotPool, needs_vocabulary_slot
from octavo.types import Request, SamplingParams
from tests.laws.drive import Engine
from tests.laws.fake import FakeModel, make_layout


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(presence_penalty=0.1),
        SamplingParams(frequency_penalty=-0.1),
        SamplingParams(repetition_penalty=1.1),
        SamplingParams(logit_bias={1: 1.0}),
        SamplingParams(allowed_token_ids=[1]),
        SamplingParams(bad_words=["x"]),
        SamplingParams(bad_token_ids=((1,),)),
        SamplingParams(min_tokens=1),
    ],
)
def test_what_needs_columns_as_wide_as_the_vocabulary(params: SamplingParams) -> None:
    assert needs_vocabulary_slot(params)


def test_plain_sampling_needs_none() -> None:
    assert not needs_vocabulary_slot(SamplingParams(temperature=0.3, top_p=0.5, top_k=3, min_p=0.1, seed=1, logprobs=2, max_tokens=5))


def test_a_pool_without_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="num_slots = 0"):
        SlotPool(0)


def test_no_more_rows_than_slots_and_others_pass() -> None:
    slots = SlotPool(1)
    engine = Engine(Resolved(max_model_len=32, block_size=4, max_num_seqs=8), make_layout(64, 4), FakeModel(), limits=(slots,))
    dear = SamplingParams(presence_penalty=0.5, seed=0, max_tokens=6)
    engine.add(*(Request(f"dear{i}", (1, 2, 3), dear) for i in range(3)), Request("plain", (4, 5), SamplingParams(seed=0, max_tokens=6)))
    engine.step()
    assert {seq.request_id for seq in engine.scheduler.running} == {"dear0", "plain"}
    while engine.scheduler.has_work or engine.flight:
        engine.step()
        assert slots.num_used == sum(seq.request_id != "plain" for seq in engine.scheduler.running) <= 1
    engine.check_texts()
    assert slots.num_used == 0

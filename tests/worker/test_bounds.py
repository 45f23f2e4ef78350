"""The host's bounds of contexts hold, whichever way a step runs."""

from __future__ import annotations

from octavo import LLM, SamplingParams
from octavo.core.plan import Admission, Plan, Slice
from octavo.types import SamplingParams as Params
from octavo.worker.bounds import Bounds


def test_counts_add_up_from_what_the_cache_held():
    bounds = Bounds(4)
    steady = (Slice(0, 1, 1, 0, True), Slice(2, 2, 1, 0, True))
    admitted = tuple(Admission(row, 1, Params(), 0, (7,) * 20, 20, computed, ()) for row, computed in ((0, 0), (2, 16)))
    bounds.follow(Plan(1, (Slice(0, 1, 20, 0, True, (7,) * 20), Slice(2, 2, 4, 0, True, (7,) * 4)), admitted))
    assert (bounds.of(0), bounds.of(2), bounds.longest) == (20, 20, 20)
    for step in range(2, 7):
        bounds.follow(Plan(step, steady))
    assert (bounds.of(0), bounds.of(2), bounds.longest) == (25, 25, 25)
    bounds.follow(Plan(7))
    assert bounds.longest == 0, "a step without slices"
    bounds.follow(Plan(8, steady[:1], (Admission(0, 3, Params(), 0, (7,), 1, 0, ()),)))
    assert bounds.longest == 1, "a row begins anew"


def test_steps_that_were_replayed_count_too():
    """Attention cuts contexts into as many pieces as there is room for by these bounds: one too low, and some would be left out."""
    llm = LLM("smollm2-135m", max_model_len=256, kv_cache_memory_bytes=48 << 20, max_num_seqs=2)
    runner = llm._engine.executor.worker
    wrong: list[int] = []
    build = runner.batches.build

    def checked(plan, rows, *others):
        batch = build(plan, rows, *others)
        wrong.extend(length for length in batch.lengths.tolist() if length > batch.max_length)
        return batch

    runner.batches.build = checked
    params = [SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False) for count in (40, 20)]
    scored = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, detokenize=False, logprobs=1)
    # The third begins when the second has ended, and with it steps run op by op.
    llm.generate([{"prompt_token_ids": [number] * 4} for number in range(1, 4)], [*params, scored], use_tqdm=False)
    llm.close()
    assert not wrong

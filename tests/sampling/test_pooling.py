"""The vector of a prompt is the same whatever the chunks; only rows that ask give one, once."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.plan import Admission, Plan, Slice
from octavo.sampling.pooling import Pooling
from octavo.sampling.sampled import Sampled
from octavo.types import InvalidRequest, SamplingParams

HIDDEN = torch.randn(9, 6, generator=torch.Generator().manual_seed(0))  # [tokens, hidden] of one prompt
NOTHING = Sampled(torch.zeros(0).long(), torch.zeros(0, 1).long(), torch.zeros(0))


def admit(pooling: str | None, row: int = 1) -> tuple[Admission, ...]:
    return (Admission(row, 0, SamplingParams(pooling=pooling), 0, tuple(range(9)), 9, 0, ()),)  # pyright: ignore[reportArgumentType]


def read(pooling: Pooling, counts: list[int], admitted: tuple[Admission, ...], first: int = 0) -> list[np.ndarray]:
    """Read a prompt in chunks, each after a neighbour of two tokens."""
    given = []
    at = first
    for count in counts:
        end = at + count
        plan = Plan(0, (Slice(0, 0, 2, 0, False), Slice(1, 0, count, 0, end == 9)), admitted=admitted)
        hidden = torch.cat((torch.full((2, 6), 99.0), HIDDEN[at:end]))
        found = NOTHING.fetch(plan, [pooling.read(plan, hidden, lambda hidden: hidden)]).result().pooled or {}
        assert set(found) <= {1}, "only the row that asked"
        given += [np.frombuffer(data, "<f4") for data in found.values()]
        at, admitted = end, ()
    return given


@settings(deadline=None)
@given(cuts=st.sets(st.integers(1, 8)), kind=st.sampled_from(["last", "mean"]))
def test_the_vector_does_not_depend_on_the_chunks(cuts: set[int], kind: str) -> None:
    ends = [*sorted(cuts), 9]
    counts = [end - start for start, end in zip([0, *ends], ends)]
    pooling = Pooling()
    (vector,) = read(pooling, counts, admit(kind))
    expected = HIDDEN[-1] if kind == "last" else HIDDEN.mean(0)
    assert vector == pytest.approx(expected.numpy(), abs=1e-6)
    assert read(pooling, [9], ()) == [], "once"


def test_rows_that_do_not_ask_give_nothing() -> None:
    assert read(Pooling(), [4, 5], admit(None)) == []


def test_a_preempted_prompt_begins_anew() -> None:
    pooling = Pooling()
    assert read(pooling, [4], admit("mean")) == []
    pooling.follow(Plan(1, retired=(1,)))
    assert read(pooling, [5], (), first=4) == [], "the row belongs to another now"
    (vector,) = read(pooling, [9], admit("mean"))
    assert vector == pytest.approx(HIDDEN.mean(0).numpy(), abs=1e-6)


def test_only_the_mean_needs_every_token_computed() -> None:
    assert SamplingParams(pooling="mean").skip_reading_prefix_cache
    assert not SamplingParams(pooling="last").skip_reading_prefix_cache
    with pytest.raises(InvalidRequest, match="last or mean"):
        SamplingParams(pooling="cls")  # pyright: ignore[reportArgumentType]

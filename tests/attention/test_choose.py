from dataclasses import replace

import pytest

from octavo.attention.backend import Needs, Supports, choose, refusal
from octavo.attention.registry import BACKENDS, backend_for

NEEDS = Needs(device="cuda", kinds=frozenset({"paged"}), head_dims=frozenset({64}), dtype="bfloat16", kv_dtype="bfloat16", sm=80)


class Fake:
    def __init__(self, name, **supports):
        self.name = name
        self.supports = Supports(**supports)


@pytest.mark.parametrize(
    ("supports", "needs", "said"),
    [
        ({"devices": frozenset({"cpu"})}, {}, ["cuda", "cpu"]),
        ({"kinds": frozenset({"paged"})}, {"kinds": frozenset({"paged", "window"})}, ["window"]),
        ({"head_dims": frozenset({64, 128})}, {"head_dims": frozenset({64, 96})}, ["96", "64, 128"]),
        ({"dtypes": frozenset({"float16"})}, {}, ["bfloat16", "float16"]),
        ({"kv_dtypes": frozenset({"bfloat16"})}, {"kv_dtype": "fp8"}, ["fp8"]),
        ({"kv_min_sm": {"fp8_e4m3": 89}}, {"kv_dtype": "fp8_e4m3"}, ["fp8_e4m3", "8.9", "8.0"]),
        ({"softcap": False}, {"softcap": True}, ["soft caps"]),
        ({}, {"sinks": True}, ["sinks"]),
        ({"min_sm": 90}, {}, ["9.0", "8.0"]),
        ({"reads_lengths": True}, {"graphs": True}, ["graphs"]),
        ({"reads_lengths": True}, {"drafts_with_overlap": True}, ["speculation"]),
    ],
)
def test_a_refusal_says_why(supports, needs, said):
    reason = refusal(Supports(**supports), replace(NEEDS, **needs))
    assert reason is not None
    for text in said:
        assert text in reason
    assert refusal(Supports(), NEEDS) is None


def test_the_first_that_fits_is_taken_and_the_others_reasons_are_kept():
    a, b, c = Fake("a", min_sm=90), Fake("b"), Fake("c")
    choice = choose([a, b, c], NEEDS)
    assert choice.backend is b
    assert list(choice.refused) == ["a"]
    assert str(choice) == f"b; not a: {choice.refused['a']}"


def test_when_none_fits_every_reason_is_told():
    with pytest.raises(ValueError, match=r"a: .*9\.0.*; b: .*soft") as error:
        choose([Fake("a", min_sm=90), Fake("b", softcap=False)], replace(NEEDS, softcap=True))
    assert "no attention backend" in str(error.value)


def test_what_is_absent_here_may_be_there_on_another_machine():
    absent = Supports(absent="it is not installed")
    assert refusal(absent, NEEDS) == "it is not installed"
    assert refusal(absent, replace(NEEDS, elsewhere=True)) is None


def test_every_candidate_is_told():
    needs = Needs("cpu", frozenset({"paged"}), frozenset({12}), "float32", "float32")
    choice = backend_for("auto", needs)
    assert {choice.backend.name, *choice.refused} == set(BACKENDS.names())
    assert "cuda" in choice.refused["triton"]


def test_by_name():
    needs = Needs("cpu", frozenset({"paged", "window"}), frozenset({12}), "float32", "float32", softcap=True)
    assert backend_for("reference", needs).backend.name == "reference"
    assert backend_for("auto", needs).backend.name in BACKENDS.names()
    with pytest.raises(KeyError, match=r"there are: .*reference"):
        backend_for("nosuch", needs)
    with pytest.raises(ValueError, match="graphs"):
        backend_for("reference", replace(needs, graphs=True))

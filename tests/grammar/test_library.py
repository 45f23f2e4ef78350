"""What constraints can be, and that none that cannot be kept is let through."""

import json
import re
from typing import Any

import pytest

from octavo.grammar.following import Follower
from octavo.grammar.library import MAX_SPACES, GrammarError, Vocabulary, check, grammar_of
from octavo.types import InvalidRequest, SamplingParams, StructuredOutputs, Thinking
from tests.scripted_engine import EOS, PieceTokenizer

TOKENIZER = PieceTokenizer()
PIECES = [TOKENIZER.token(piece) for piece in ("<think>", "</th", "ink>", '"a"', "yes", '{"', "no, ", "<")]
VOCABULARY = Vocabulary(TOKENIZER, 330, (EOS,))
OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


def follower(constraint: StructuredOutputs, **params: Any) -> Follower:
    check(constraint)
    given = SamplingParams(structured_outputs=constraint, eos_token_ids=(EOS,), max_tokens=100, **params)
    return Follower(VOCABULARY, VOCABULARY.matcher(grammar_of(constraint)), given)


def allowed(mask: bytes | None) -> set[int]:
    assert mask is not None
    return {i for i in range(len(mask) * 8) if mask[i // 8] >> i % 8 & 1}


def write(follower_: Follower, text: str) -> None:
    follower_.advance(text.encode())


@pytest.mark.parametrize(
    ("constraint", "good", "bad"),
    [
        (StructuredOutputs(json=OBJECT), '{"a": 12}', '{"b'),
        (StructuredOutputs(json=json.dumps(OBJECT)), '{"a":-1}', "["),
        (StructuredOutputs(json_object=True), '{"x": [1, {"y": null}]}', "1"),
        (StructuredOutputs(regex="[0-9]{2}-x"), "12-x", "1-"),
        (StructuredOutputs(choice=["yes", 'no, "é"\n']), 'no, "é"\n', "n0"),
        (StructuredOutputs(grammar='start: "a" start | "b"'), "aab", "ac"),
        (StructuredOutputs(grammar='root ::= "a" root | "b"'), "aab", "ac"),
        (StructuredOutputs(json=OBJECT, disable_any_whitespace=True), '{"a":1}', '{ "'),
    ],
)
def test_each_kind_allows_what_it_says_and_nothing_else(constraint: StructuredOutputs, good: str, bad: str) -> None:
    text = follower(constraint)
    for byte in good.encode():
        assert not text.ended
        assert byte in allowed(text.mask())
        text.advance([byte])
    assert text.ended
    assert allowed(text.mask()) <= {EOS}
    other = follower(constraint)
    with pytest.raises(GrammarError):
        write(other, bad)
    with pytest.raises(GrammarError):
        other.mask()


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        ({"json": {"type": "foo"}}, "foo"),
        ({"json": {"type": "integer", "minimum": 5, "maximum": 3}}, "minimum"),
        ({"json": {"not": {}}}, "not"),
        ({"json": {"$ref": "http://example.com/schema"}}, "not fetch|Resource"),
        ({"json": {"$ref": "#"}}, "."),
        ({"json": {"type": "string", "pattern": "(?!a)b"}}, "look-around"),
        ({"json": "{broken"}, "."),
        ({"json": "[1]"}, "object"),
        ({"json": {"enum": ["x" * 300_000]}}, "at most"),
        ({"regex": "(?=x)a"}, "look-around"),
        ({"regex": "("}, "."),
        ({"regex": "a" * 300_000}, "at most"),
        ({"grammar": "start: missing"}, "missing"),
        ({"grammar": "start: start"}, "."),
        ({"grammar": "root ::= other"}, "."),
        ({"choice": ["a"] * 10_001}, "up to"),
        ({"choice": ["a", ""]}, "at least one character"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_the_reason(constraint: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        check(StructuredOutputs(**constraint))
    assert refusal.value.field == f"structured_outputs.{next(iter(constraint))}"
    assert re.search(reason, refusal.value.allowed)


def test_deep_schemas_are_refused_or_compiled_and_nothing_crashes() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(300):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    with pytest.raises(InvalidRequest, match="recursion"):
        check(StructuredOutputs(json=schema))


def test_a_run_of_white_space_is_bounded() -> None:
    text = follower(StructuredOutputs(json=OBJECT))
    write(text, "{" + " " * MAX_SPACES)
    assert ord(" ") not in allowed(text.mask())
    assert ord('"') in allowed(text.mask())


def test_with_ignore_eos_a_text_ends_only_where_nothing_else_can_follow() -> None:
    text = follower(StructuredOutputs(regex="a{1,2}"), ignore_eos=True)
    write(text, "a")
    assert EOS not in allowed(text.mask())
    write(text, "a")
    assert text.ended


def thinker(opened: bool) -> Follower:
    return follower(StructuredOutputs(choice=["yes", "<no>"], thinking=Thinking("<think>", "</think>", opened)))


@pytest.mark.parametrize("pieces", [["<think>"], list("<think>"), ["<", *"think>"]])
def test_the_constraint_begins_behind_the_thoughts(pieces: list[str]) -> None:
    """The markers may be several tokens long."""
    text = thinker(opened=False)
    for piece in pieces:
        assert TOKENIZER.token(piece) in allowed(text.mask())
        text.advance([TOKENIZER.token(piece)])
    assert text.mask() is None, "thoughts are free"
    write(text, "no </th no")
    text.advance([TOKENIZER.token("</th"), TOKENIZER.token("ink>")])
    assert allowed(text.mask()) == {ord("y"), ord("<"), TOKENIZER.token("yes"), TOKENIZER.token("<")}
    text.advance([TOKENIZER.token("yes")])
    assert text.ended


def test_without_thoughts_the_constraint_holds_from_the_first_token_on() -> None:
    text = thinker(opened=False)
    assert ord("n") not in allowed(text.mask())
    write(text, "<no")
    assert allowed(text.mask()) == {ord(">")}
    with pytest.raises(GrammarError):
        write(thinker(opened=False), "x")
    assert thinker(opened=True).mask() is None

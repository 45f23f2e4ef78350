"""Laws of stop strings: the same answer for every way of cutting a text into pieces, and nothing held back without need."""

from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from octavo.text.stops import StopScanner, StopStrings

LETTERS = st.text(alphabet="abc", max_size=14)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=5), min_size=1, max_size=4)


def first_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The rule, said plainly: the stop string complete first; among those complete at one character, the longest."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


def cut(text: str, cuts: list[int]) -> list[str]:
    at = sorted({0, len(text), *(c for c in cuts if c < len(text))})
    return [text[a:b] for a, b in pairwise(at)]


@settings(deadline=None)
@given(text=LETTERS, stops=STOPS, cuts=st.lists(st.integers(0, 13)))
@example(text="Observation: x", stops=["Observation:"], cuts=[2, 6, 11, 12])
def test_the_answer_does_not_depend_on_the_pieces(text: str, stops: list[str], cuts: list[int]) -> None:
    scanner = StopScanner(StopStrings(stops))
    given_out, found = "", None
    for piece in cut(text, cuts):
        certain, found = scanner.push(piece)
        given_out += certain
        if found:
            break
    else:
        given_out += scanner.flush()
    assert (given_out, found) == first_stop(text, stops)


@settings(deadline=None)
@given(text=LETTERS, stops=STOPS)
def test_only_what_could_become_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    scanner = StopScanner(StopStrings(stops))
    given_out = ""
    for at, character in enumerate(text, start=1):
        certain, found = scanner.push(character)
        if found:
            return
        given_out += certain
        held = text[len(given_out) : at]
        beginnings = [text[i:at] for i in range(at) if any(stop.startswith(text[i:at]) for stop in stops)]
        assert held == (max(beginnings, key=len) if beginnings else "")


@settings(deadline=None)
@given(text=LETTERS, stops=STOPS, cuts=st.lists(st.integers(0, 13)))
def test_an_included_stop_string_is_part_of_the_text_and_nothing_is_held(text: str, stops: list[str], cuts: list[int]) -> None:
    scanner = StopScanner(StopStrings(stops), include=True)
    given_out = ""
    expected, stop = first_stop(text, stops)
    for piece in cut(text, cuts):
        certain, found = scanner.push(piece)
        given_out += certain
        if found:
            break
        assert certain == piece
    assert given_out == expected + (stop or "")


def test_unarmed_text_passes() -> None:
    scanner = StopScanner(StopStrings(["ab"]))
    assert scanner.push("xab", armed=False) == ("x", None)
    assert scanner.push("ab") == ("ab", "ab")

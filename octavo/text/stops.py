"""Stop strings in a text that arrives in pieces, whatever the pieces.

The automaton of Aho and Corasick ("Efficient string matching", 1975) walks the text once, character by character. The depth of its state
is the length of the longest end of the text that could still become a stop string: exactly what must be held back, and no more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache

SHARED_CHARACTERS = 256


class StopStrings:
    """The stop strings of a request, compiled once for all its continuations. Build cost is linear in their total length."""

    __slots__ = ("beginnings", "children", "depth", "fallback", "match")

    def __init__(self, strings: Sequence[str]) -> None:
        self.children: list[dict[str, int]] = [{}]
        self.depth = [0]
        self.match: list[str | None] = [None]  # the longest stop string that ends in this state
        for string in strings:
            self._insert(string)
        self.fallback = self._link()
        self.beginnings = frozenset(self.children[0])

    def _insert(self, string: str) -> None:
        state = 0
        for character in string:
            following = self.children[state].get(character)
            if following is None:
                following = len(self.children)
                self.children[state][character] = following
                self.children.append({})
                self.depth.append(self.depth[state] + 1)
                self.match.append(None)
            state = following
        self.match[state] = string

    def _link(self) -> list[int]:
        """For each state, the state of its longest proper end; breadth first, since that one is always shallower."""
        fallback = [0] * len(self.children)
        queue = deque(self.children[0].values())
        while queue:
            state = queue.popleft()
            for character, following in self.children[state].items():
                queue.append(following)
                end = self._step(fallback[state], character, fallback)
                fallback[following] = end
                self.match[following] = self.match[following] or self.match[end]
        return fallback

    def _step(self, state: int, character: str, fallback: Sequence[int]) -> int:
        while state and character not in self.children[state]:
            state = fallback[state]
        return self.children[state].get(character, 0)

    def step(self, state: int, character: str) -> int:
        return self._step(state, character, self.fallback)


def stop_strings(strings: Sequence[str]) -> StopStrings:
    """Compiled; requests with the same few share them."""
    return _shared(tuple(strings)) if sum(map(len, strings)) <= SHARED_CHARACTERS else StopStrings(strings)


@lru_cache(maxsize=64)
def _shared(strings: tuple[str, ...]) -> StopStrings:
    return StopStrings(strings)


class StopScanner:
    """Lets a text through piece by piece up to the first stop string, holding back only what could still become one.

    The first stop string is the one that is complete first; of several complete at the same character, the longest.
    """

    __slots__ = ("_beginnings", "_held", "_include", "_state", "_stops")

    def __init__(self, stops: StopStrings, *, include: bool = False) -> None:
        self._stops = stops
        self._beginnings = stops.beginnings
        self._include = include  # the stop string belongs to the text, so nothing need be held back
        self._state = 0
        self._held = ""

    def passes(self, piece: str) -> bool:
        """Whether nothing is held back and the piece begins no stop string, so that `push` would let it through and change nothing."""
        return self._state == 0 and self._beginnings.isdisjoint(piece)

    def stops_in(self, piece: str) -> bool:
        """Whether a stop string would be complete within the piece."""
        stops, state = self._stops, self._state
        for character in piece:
            state = stops.step(state, character)
            if stops.match[state] is not None:
                return True
        return False

    def push(self, piece: str, *, armed: bool = True) -> tuple[str, str | None]:
        """The text that is certain now, and the stop string that ended it, if any. Not `armed`: stop strings that end here do not count."""
        stops, state = self._stops, self._state
        if state == 0 and stops.beginnings.isdisjoint(piece):
            return piece, None
        text = self._held + piece
        for at, character in enumerate(piece, start=len(self._held) + 1):
            state = stops.step(state, character)
            if armed and (found := stops.match[state]) is not None:
                self._state, self._held = 0, ""
                return text[: at if self._include else at - len(found)], found
        self._state = state
        if self._include:
            return piece, None
        certain = len(text) - stops.depth[state]
        self._held = text[certain:]
        return text[:certain], None

    def flush(self) -> str:
        """The text has ended: what was held back is no stop string."""
        held, self._held, self._state = self._held, "", 0
        return held

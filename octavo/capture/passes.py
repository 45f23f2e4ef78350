"""The model's pass over steps of any kind as CUDA graphs: what the host spends hundreds of launches on becomes one.

A graph is captured for a room: a padded number of tokens and of slices. Attention finds its work on the device, in the batch's own buffers,
so one graph serves every mix of prompts and decodes that fits; sampling follows op by op. An engine that waits for requests has rooms
captured one after the other. What is needed before that is captured when it comes for the second time: the first step there runs op by op,
and what comes only once costs nothing more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

import torch

from octavo.capture.record import Record, Replay
from octavo.context import UNPADDED, Batch, Room

Pass = Callable[[Batch], torch.Tensor]  # -> hidden [T, hidden]


class PassGraphs:
    """Captured passes by room, `most` of them at the most. The sizes ascend; larger steps run op by op."""

    def __init__(self, run: Pass, token_sizes: Sequence[int], slice_sizes: Sequence[int], most: int, record: Record[torch.Tensor]) -> None:
        self._run, self._record, self._most = run, record, most
        self._token_sizes, self._slice_sizes = list(token_sizes), list(slice_sizes)
        self._captured: dict[Room, tuple[Replay, torch.Tensor]] = {}
        self._met: set[Room] = set()

    def room(self, num_tokens: int, num_slices: int) -> Room:
        if num_tokens > self._token_sizes[-1] or num_slices > self._slice_sizes[-1]:
            return UNPADDED
        room = Room(_at_least(self._token_sizes, num_tokens), _at_least(self._slice_sizes, num_slices))
        known = room in self._captured or len(self._captured) < self._most
        return room if known else UNPADDED

    def run(self, batch: Batch, room: Room) -> torch.Tensor:
        """`batch` was padded to `room` in buffers that are the same for each step of that room; an unpadded one runs op by op."""
        if room == UNPADDED:
            return self._run(batch)
        captured = self._captured.get(room)
        if captured is None:
            if room not in self._met:
                self._met.add(room)
                return self._run(batch)
            captured = self._capture(batch, room)
        replay, hidden = captured
        replay()
        return hidden

    def record(self, batch: Batch, room: Room) -> None:
        """Record a room before it is needed, with a batch that may hold nothing but padding."""
        if room not in self._captured and len(self._captured) < self._most:
            self._capture(batch, room)

    def _capture(self, batch: Batch, room: Room) -> tuple[Replay, torch.Tensor]:
        captured = self._captured[room] = self._record(lambda: self._run(batch))
        return captured


def _at_least(sizes: list[int], number: int) -> int:
    return sizes[bisect_left(sizes, number)]

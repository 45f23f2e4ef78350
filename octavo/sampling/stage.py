"""What a sampling stage is: it declares columns, fills them when a row is taken, edits logits, and hears of sampled tokens.

A stage is one object shared by all rows. What differs between rows lives in columns, which `worker/rows.py` allocates, so a stage holds
no state of its own and a row that is filled anew after preemption equals one that was never interrupted.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import torch

from octavo.config.fields import ConfigError
from octavo.core.plan import Admission
from octavo.types import SamplingParams


class Place(Enum):
    """Where the values of a column live."""

    ROW = "row"  # one value per row; a row whose stage is not wanted holds the default
    SLOT = "slot"  # wide as the vocabulary: one per slot of a pool; slot 0 holds the default for all rows without a slot
    RAGGED = "ragged"  # a tensor of any size per row that wants it; the stage cannot be captured in a graph


@dataclass(frozen=True)
class Column:
    """One value a stage keeps for each row. `shape` is that of one row's value; ragged columns leave it out."""

    name: str
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    default: float = 0
    place: Place = Place.ROW


class Filler(Protocol):
    """Whatever keeps columns for rows."""

    columns: tuple[Column, ...]

    def wants(self, params: SamplingParams) -> bool:
        """Whether a sequence with these parameters needs this stage. A pure function."""
        ...

    def fill(self, admission: Admission) -> Mapping[str, Any]:
        """The columns' values for a sequence that takes a row; called if it `wants` the stage. A pure function of prompt and output."""
        ...


class Stage(Filler, Protocol):
    """A step between the model's logits and the sampled token."""

    def apply(self, logits: torch.Tensor, view: View) -> torch.Tensor:
        """Edit `logits` [N, vocab] float32, in place or not; with the default columns a row must come out as it went in."""
        ...

    def update(self, view: View, tokens: torch.Tensor) -> None:
        """Note the `tokens` [N] int64 that were sampled for the rows of `view`."""
        ...


class Columns(Protocol):
    """Where a view reads: the part of `Rows` that stages see."""

    @property
    def columns(self) -> Mapping[str, torch.Tensor]: ...  # [R, *shape] each
    @property
    def pools(self) -> Mapping[str, torch.Tensor]: ...  # [num_slots + 1, *shape] each
    @property
    def ragged(self) -> Mapping[str, Mapping[int, torch.Tensor]]: ...  # by row
    @property
    def slots(self) -> torch.Tensor: ...  # [R] int64: the slot of each row, 0 for none


@dataclass(frozen=True)
class View:
    """The columns as seen by N sampled positions. Gathered when asked for, so a stage pays for what it uses."""

    source: Columns
    rows: torch.Tensor  # [N] int64
    positions: torch.Tensor  # [N] int64: index in the sequence of the token that is sampled
    host_rows: tuple[int, ...]  # the same as `rows`, known to the host

    def column(self, name: str) -> torch.Tensor:
        """[N, *shape]: a copy."""
        return self.source.columns[name][self.rows]

    @property
    def slots(self) -> torch.Tensor:
        """[N] int64: 0 for rows that hold no slot."""
        return self.source.slots[self.rows]

    def pool(self, name: str) -> torch.Tensor:
        """[N, *shape]: a copy, of the default for rows that hold no slot."""
        return self.source.pools[name][self.slots]

    def ragged(self, name: str) -> list[torch.Tensor]:
        """One tensor for each of the N positions: the stored ones, which may be updated in place."""
        return [self.source.ragged[name][row] for row in self.host_rows]

    def select(self, at: Sequence[int], index: torch.Tensor) -> View:
        """The same view for the positions `at` only; `index` is `at` on the device."""
        return View(self.source, self.rows[index], self.positions[index], tuple(self.host_rows[i] for i in at))


def load_stage(name: str, vocab_size: int) -> Stage:
    """The user's own stage, given as `package.module:Class` or `package.module.Class`; called with the vocabulary's size.

    Raises `ConfigError` if it cannot be imported or lacks a part of the protocol.
    """
    module, _, attribute = name.replace(":", ".").rpartition(".")
    try:
        stage = getattr(importlib.import_module(module), attribute)(vocab_size)
        hash(stage)  # stages are members of sets
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ConfigError("logits_processors", name, f"it could not be made: {error}") from error
    missing = [part for part in ("columns", "wants", "fill", "apply", "update") if not hasattr(stage, part)]
    if missing:
        raise ConfigError("logits_processors", name, f"it has no {', '.join(missing)}: see octavo.sampling.stage.Stage")
    return stage

"""The sampler: logits in, tokens out, in one written order.

1. Raw log-probabilities are those of the logits as the model gave them.
2. Masks: allowed ids, bad words, the grammar, and all end and stop ids before `min_tokens`. A mask sets -inf and no later step can
   undo that, so the order among masks does not matter.
3. `logit_bias` is added.
4. The user's own stages.
5. Penalties: repetition over prompt and output, then frequency and presence over the output alone.
6. Greedy rows take the largest logit here, the lowest id of equals.
7. The others: temperature, then min_p, top_k and top_p, each on what the former left, and the draw.

What a step needs of this is decided on the host from the parameters of its rows (`Recipe`), never by reading the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from octavo.context import Batch
from octavo.core.plan import Admission, Plan, Slice
from octavo.ops.select import REFERENCES, Ops
from octavo.sampling.bad_words import BadWords
from octavo.sampling.bias import Bias
from octavo.sampling.draw import NO_TRUNCATION, Draw, Truncation
from octavo.sampling.grammar import Masks, mask_tokens
from octavo.sampling.logprobs import score
from octavo.sampling.min_tokens import MinTokens
from octavo.sampling.penalties import Penalties
from octavo.sampling.sampled import Sampled, joined
from octavo.sampling.stage import Columns, Filler, Place, Stage, View

At = tuple[int, ...] | None  # which of the N sampled positions; None: all


@dataclass(frozen=True)
class Recipe:
    """What one step's sampling consists of. A value: equal recipes are equal work, up to the positions in `at`."""

    rows: tuple[int, ...]  # of the N sampled positions
    stages: tuple[tuple[Stage, At], ...] = ()
    random: bool = False
    random_at: At = None
    truncation: Truncation = NO_TRUNCATION
    logprobs: tuple[tuple[int, tuple[int, ...]], ...] = ()  # (k, positions)

    @property
    def plain(self) -> bool:
        """Whether all there is to do is to take the largest logit of each row."""
        return not (self.stages or self.random or self.logprobs)

    @property
    def only_random(self) -> bool:
        """Whether all there is to do is to draw a token for some rows and to take the largest logit of the others."""
        return self.random and self.random_at is None and not (self.stages or self.logprobs)

    def part(self, begin: int, end: int) -> Recipe:
        """The same for the sampled positions from `begin` to `end`, counted from there."""

        def within(at: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(i - begin for i in at if begin <= i < end)

        stages = [(stage, at if at is None else within(at)) for stage, at in self.stages]
        random_at = self.random_at if self.random_at is None else within(self.random_at)
        return Recipe(
            self.rows[begin:end], tuple((stage, at) for stage, at in stages if at != ()), self.random and random_at != (),
            random_at or None, self.truncation, tuple((k, at) for k, all_at in self.logprobs if (at := within(all_at))),
        )  # fmt: skip

    def everywhere(self) -> Recipe | None:
        """The same work at all positions alike, the default columns leaving rows as they are: what a graph can capture once and replay
        for any rows, and its key. None if this recipe cannot be captured."""
        if self.logprobs or any(column.place is Place.RAGGED for stage, _ in self.stages for column in stage.columns):
            return None
        return Recipe((), tuple((stage, None) for stage, _ in self.stages), self.random, None, self.truncation)


class HeldRow(Protocol):
    """What the host knows of a row in use."""

    @property
    def admission(self) -> Admission: ...
    @property
    def wanted(self) -> tuple[Filler, ...]: ...


class Head(Protocol):
    """The part of a model that says which token has the largest logit."""

    def best(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]: ...  # [N, hidden] -> tokens [N] int64, logits [N] float32


def as_drawn(tokens: torch.Tensor) -> torch.Tensor:
    return tokens


class Sampler:
    """Built for a vocabulary, the user's own stages and a device's operations; `fillers` is what rows must keep columns for."""

    def __init__(
        self, vocab_size: int, own: Sequence[Stage] = (), ops: Ops = REFERENCES, agreed: Callable[[torch.Tensor], torch.Tensor] = as_drawn,
        at_once: int = 1 << 30,
    ) -> None:  # fmt: skip
        """`agreed` gives the ranks that all sample from the same logits one of their draws: the sums that a draw is made of may be rounded
        otherwise on another device, though logits, masks and the largest logit are the same to the bit. At most `at_once` positions go
        through stages together, which bounds the memory for that."""
        self._agreed, self._at_once = agreed, at_once
        self.vocab_size = vocab_size  # logits beyond it are padding and never sampled
        self.stages: tuple[Stage, ...] = (MinTokens(vocab_size), BadWords(vocab_size), Bias(vocab_size), *own, Penalties(vocab_size))
        self._draw = Draw(ops.draw)
        self._draw_rows = ops.draw_rows
        self._best = ops.best
        self._last: tuple[tuple[Slice, ...], Recipe] = ((), Recipe(()))  # the slices of the last plan and what they came to

    @property
    def fillers(self) -> tuple[Filler, ...]:
        return (*self.stages, self._draw)

    def recipe(self, plan: Plan, held: Mapping[int, HeldRow]) -> Recipe:
        """What the step of `plan` has to do, from the parameters of the rows it samples."""
        if plan.slices != self._last[0]:  # a decoding sequence has the same slice in every step, so this is quick to see
            self._last = plan.slices, self._recipe(plan, held)
        return self._last[1]

    def _recipe(self, plan: Plan, held: Mapping[int, HeldRow]) -> Recipe:
        sampled: list[HeldRow] = []
        wanted: set[Filler] = set()
        for piece in plan.slices:
            if piece.sample:
                h = held[piece.row]
                sampled += (h,) * (1 + piece.drafts)
                wanted.update(h.wanted)
        rows = tuple(h.admission.row for h in sampled)
        asked: dict[int, list[int]] = {}
        for i, h in enumerate(sampled):
            k = h.admission.params.logprobs
            if k is not None:
                asked.setdefault(k, []).append(i)
        logprobs = tuple((k, tuple(at)) for k, at in asked.items())
        if not wanted:
            return Recipe(rows, logprobs=logprobs)

        def at(filler: Filler) -> At:
            found = tuple(i for i, h in enumerate(sampled) if filler in h.wanted)
            return None if len(found) == len(sampled) else found

        random = [h.admission.params for h in sampled if self._draw in h.wanted]
        truncation = Truncation(any(p.top_k > 0 for p in random), any(p.top_p < 1 for p in random), any(p.min_p > 0 for p in random))
        return Recipe(
            rows, tuple((stage, at(stage)) for stage in self.stages if stage in wanted),
            bool(random), at(self._draw) if random else None, truncation, logprobs,
        )

    def plain(self, model: Head, hidden: torch.Tensor, batch: Batch) -> Sampled:
        """What a plain recipe without masks comes to, from the hidden state of the sampled positions, which may be padded."""
        tokens, peaks = model.best(hidden)
        num = len(batch.sample_rows)
        return Sampled(batch.sample_rows, tokens[:num, None], peaks[:num])

    def __call__(
        self, logits: torch.Tensor, batch: Batch, rows: Columns, recipe: Recipe, masks: Masks | None = None
    ) -> Sampled:
        """Sample from `logits` [N, width >= vocab_size], which may be overwritten. `masks` are those of grammars."""
        logits = logits[:, : self.vocab_size]  # [N, vocab]
        if recipe.only_random and masks is None:
            settings = self._draw.settings(rows, recipe.truncation)
            tokens, peaks = self._draw_rows(logits, batch.sample_rows, batch.positions, batch.sample_at[: len(logits)], settings)
            return Sampled(batch.sample_rows, self._agreed(tokens)[:, None], peaks)
        if len(logits) <= self._at_once:
            return self._sampled(logits, batch, rows, recipe, masks)
        ends = [(begin, begin + self._at_once) for begin in range(0, len(logits), self._at_once)]
        return joined([
            self._sampled(logits[begin:end], _part_of(batch, begin, end), rows, recipe.part(begin, end), masks and masks.part(begin, end))
            for begin, end in ends
        ])  # fmt: skip

    def _sampled(self, logits: torch.Tensor, batch: Batch, rows: Columns, recipe: Recipe, masks: Masks | None) -> Sampled:
        """Through all steps, by the stages one after the other."""
        logits = logits.float()
        raw = [(k, at, logits[_index(at, logits)]) for k, at in recipe.logprobs]  # copies
        if masks is not None:
            logits = mask_tokens(logits, masks)
        if recipe.stages or recipe.random:
            positions = batch.positions[batch.sample_at[: len(batch.sample_rows)]] + 1
            tokens, peaks = self._process(logits, View(rows, batch.sample_rows, positions, recipe.rows), recipe)
        else:
            tokens, peaks = self._best(logits)
        scores = tuple((at, score(part, tokens[_index(at, part)], k)) for k, at, part in raw)
        return Sampled(batch.sample_rows, tokens[:, None], peaks, scores=scores)

    def _process(self, logits: torch.Tensor, view: View, recipe: Recipe) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens [N] and largest processed logits [N], through the stages of the recipe."""
        parts = [(stage, *_part(view, at)) for stage, at in recipe.stages]
        for stage, index, part in parts:
            if index is None:
                logits = stage.apply(logits, part)
            else:
                logits = logits.index_copy(0, index, stage.apply(logits[index], part))
        tokens, peaks = self._best(logits)
        if recipe.random:
            tokens = self._draw_random(logits, tokens, peaks, view, recipe)
        for stage, index, part in parts:
            stage.update(part, tokens if index is None else tokens[index])
        return tokens, peaks

    def _draw_random(
        self, logits: torch.Tensor, tokens: torch.Tensor, peaks: torch.Tensor, view: View, recipe: Recipe
    ) -> torch.Tensor:
        """The tokens with those of the random rows drawn."""
        index, part = _part(view, recipe.random_at)
        if index is None:
            drawn = self._agreed(self._draw(logits, peaks, view, recipe.truncation))
            return torch.where(view.column("temperature") > 0, drawn, tokens)
        return tokens.index_copy(0, index, self._agreed(self._draw(logits[index], peaks[index], part, recipe.truncation)))


def _part_of(batch: Batch, begin: int, end: int) -> Batch:
    """The same step with some of its sampled positions."""
    return replace(batch, sample_at=batch.sample_at[begin:end], sample_rows=batch.sample_rows[begin:end])


def _part(view: View, at: At) -> tuple[torch.Tensor | None, View]:
    """What a part of the positions sees, and where they are; the index of all of them is None."""
    if at is None:
        return None, view
    index = _index(at, view.rows)
    return index, view.select(at, index)


def _index(at: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(at, dtype=torch.int64, device=like.device)

"""A miniature of the runner that feeds a model from paged memory."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise

import torch

from octavo.context import Batch, ForwardContext

VOCAB = 97  # of random texts


def random_tokens(n, seed=0):
    rng = random.Random(seed)
    return [rng.randrange(3, VOCAB) for _ in range(n)]


@dataclass
class Memory:
    """Paged memory for a model, one group a layer, with blocks handed out in random order; and steps that run through it.

    Memory starts as NaN, so that reading anything not written shows.
    """

    model: torch.nn.Module
    block_tokens: int
    num_rows: int = 4
    max_length: int = 512
    computed: dict[int, int] = field(default_factory=dict)

    def __post_init__(self):
        per_row = -(-self.max_length // self.block_tokens)
        layers = self.model.attention_layers
        order = torch.Generator().manual_seed(1)
        self.tables = []
        for group, layer in enumerate(layers):
            spec = layer.kv_spec()
            shape = (self.num_rows * per_row, *spec.block_shape(self.block_tokens))
            layer.kv = torch.full(shape, float("nan"), dtype=getattr(torch, spec.dtype))
            layer.group = group
            self.tables.append(torch.randperm(shape[0], generator=order).view(self.num_rows, per_row).int())

    @torch.inference_mode()
    def step(self, work, padding=0):
        """Run `work`, a list of (row, tokens), as one batch; gives the logits of every token, per slice. `padding` adds that many tokens
        without slots and slices without tokens."""
        tokens, positions, starts, lengths, rows, slots = [], [], [0], [], [], [[] for _ in self.tables]
        for row, new in work:
            first = self.computed.get(row, 0)
            tokens += new
            positions += range(first, first + len(new))
            starts.append(len(tokens))
            lengths.append(first + len(new))
            rows.append(row)
            for group, table in enumerate(self.tables):
                blocks = table[row].tolist()
                slots[group] += [
                    blocks[p // self.block_tokens] * self.block_tokens + p % self.block_tokens for p in range(first, lengths[-1])
                ]
            self.computed[row] = lengths[-1]
        num_tokens = len(tokens)
        long = torch.int64
        batch = Batch(
            tokens=torch.tensor(tokens + [0] * padding), positions=torch.tensor(positions + [0] * padding),
            starts=torch.tensor(starts + [num_tokens] * padding, dtype=torch.int32),
            lengths=torch.tensor(lengths + [0] * padding, dtype=torch.int32),
            rows=torch.tensor(rows + [0] * padding, dtype=torch.int32), slots=torch.tensor([s + [-1] * padding for s in slots]),
            sample_at=torch.arange(num_tokens), sample_rows=torch.zeros(num_tokens, dtype=long),
            num_tokens=num_tokens, num_slices=len(rows), max_count=max(len(new) for _, new in work), max_length=max(lengths),
        )  # fmt: skip
        backend = self.model.attention_layers[0].backend
        plans = tuple(backend.plan(batch, group, table, self.block_tokens) for group, table in enumerate(self.tables))
        hidden = self.model(ForwardContext(batch, plans))
        assert hidden.isfinite().all()
        logits = self.model.logits(hidden[batch.sample_at])
        return [logits[start:end] for start, end in pairwise(starts)]

    def run(self, tokens, chunks, row=0):
        """All of `tokens` in chunks of the given sizes, then one by one; gives the logits of every token."""
        logits, sizes = [], list(chunks)
        while self.computed.get(row, 0) < len(tokens):
            done = self.computed.get(row, 0)
            logits += self.step([(row, tokens[done : done + (sizes.pop(0) if sizes else 1)])])
        return torch.cat(logits)

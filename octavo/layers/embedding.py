"""The token embedding, cut over ranks by vocabulary, and a head that shares its table."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from octavo.layers.env import Env
from octavo.layers.layer import Layer, Weight, parameter
from octavo.parallel.shard import Extent, ParamSpec, Shard, cut


class Embedding(Layer):
    """tokens [T] -> [T, hidden], multiplied by `scale` as rounded to the model's dtype."""

    def __init__(self, vocab: int, hidden: int, scale: float = 1.0) -> None:
        super().__init__()
        self.vocab, self.hidden, self.scale = Extent(vocab, name="vocab", padded=True), hidden, scale

    def bind(self, path: str, env: Env) -> None:
        self.path, self.ops, self.group = path, env.ops, env.mesh.tp
        self.first, rows = self.vocab.share(self.group)
        self.factor = torch.tensor(self.scale, dtype=env.dtype).item()
        self.weight = parameter((rows, self.hidden), env.dtype, env.device)

    def weights(self) -> list[Weight]:
        name = f"{self.path}.weight"
        spec = ParamSpec((self.vocab.size, self.hidden), self.weight.dtype, ("out", "in"))
        return [
            Weight(name, spec.shape, frozenset({name}), lambda t: self.weight.data.copy_(cut(t, spec, Shard.OUT, self.vocab, self.group)))
        ]

    def table(self) -> nn.Parameter:
        """This rank's rows [rows, hidden]."""
        return self.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.group.all_reduce(self.ops.embedding(tokens, self.weight, self.first))
        return x if self.factor == 1.0 else x * self.factor


class TiedHead(Layer):
    """x [N, hidden] -> [N, vocabulary rows of this rank], with the embedding's own table."""

    def __init__(self, table: Callable[[], nn.Parameter]) -> None:
        super().__init__()
        self.table = table

    def bind(self, path: str, env: Env) -> None:
        self.ops = env.ops

    def finish(self) -> None:
        self.weight = self.table()
        self.weight.data = self.ops.pack_linear(self.weight.data)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.ops.linear(x, self.weight, None)

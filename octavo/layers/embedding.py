"""The token embedding, cut over ranks by vocabulary, and a head that shares its table."""

from __future__ import annotations

import torch

from octavo.layers.env import Env
from octavo.layers.layer import Layer, Weight, parameter, whole
from octavo.parallel.shard import Extent, ParamSpec, Shard, cut


class Embedding(Layer):
    """tokens [T] -> [T, hidden], multiplied by `multiplier` as rounded to the model's dtype."""

    bias, scale = None, 1.0  # of the product that a shared table takes part in

    def __init__(self, vocab: int, hidden: int, multiplier: float = 1.0) -> None:
        super().__init__()
        self.vocab, self.hidden, self.multiplier = Extent(vocab, name="vocab", padded=True), hidden, multiplier

    def bind(self, path: str, env: Env) -> None:
        self.path, self.ops, self.group, self.dtype, self.scheme = path, env.ops, env.mesh.tp, env.dtype, env.scheme((path,))
        self.first, rows = self.vocab.share(self.group)
        self.factor = torch.tensor(self.multiplier, dtype=env.dtype).item()
        spec = self._spec(rows)
        self.weight = parameter(spec.shape, spec.dtype, env.device)

    def _spec(self, rows: int) -> ParamSpec:
        return self.scheme.params(self.hidden, rows, self.dtype)["weight"]

    def weights(self) -> list[Weight]:
        name, spec = f"{self.path}.weight", self._spec(self.vocab.size)
        return [Weight(name, spec.shape, frozenset({name}), self._put, place=whole(self.weight.data, spec))]

    def _put(self, tensor: torch.Tensor) -> None:
        self.weight.data.copy_(cut(tensor, self._spec(self.vocab.size), Shard.OUT, self.vocab, self.group))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.group.all_reduce(self.scheme.rows(self, tokens, self.first))
        return x if self.factor == 1.0 else x * self.factor


class TiedHead(Layer):
    """x [N, hidden] -> [N, vocabulary rows of this rank], with the embedding's own table."""

    def __init__(self, embedding: Embedding) -> None:
        super().__init__()
        self.embedding = embedding

    def finish(self) -> None:
        self.embedding.scheme.finish(self.embedding)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.embedding.scheme.apply(self.embedding, x, None, None, None)

"""Whole experts on several ranks: who holds which, and how tokens reach those that hold theirs, and results come back.

Experts lie over the ranks of `Mesh.ep`, which are those that cut layers (`tp`, whose tokens are the same) of all copies (`dp`, each with
tokens of its own, as many as the others in every step).

    local                      tokens are the same on all ranks: each adds what its experts give, and the sums are added up
    allgather_reducescatter    each rank is given the tokens of all copies, and gets the sums of its own back
    alltoall                   each token goes only to ranks that hold an expert of it. Ranks tell each other how many there are, which
                               the host waits for; worth it where a token's experts are on few of many ranks
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from octavo.parallel.mesh import Mesh
from octavo.registry import Registry

Experts = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]  # x, chosen, weights, residual

DISPATCHES = Registry(
    "dispatch of tokens to experts",
    {
        "local": "octavo.parallel.dispatch:Local",
        "allgather_reducescatter": "octavo.parallel.dispatch:AllGather",
        "alltoall": "octavo.parallel.dispatch:AllToAll",
    },
)


def first_experts(num: int, size: int) -> list[int]:
    """The first expert of each of `size` ranks, and `num` at the end: where they do not come out even, the first ranks have one more."""
    return [rank * (num // size) + min(rank, num % size) for rank in range(size + 1)]


class Dispatch(Protocol):
    """Made for the experts of one layer."""

    def __init__(self, mesh: Mesh, num_experts: int) -> None: ...

    def __call__(
        self, experts: Experts, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, residual: torch.Tensor | None
    ) -> torch.Tensor:
        """residual + what all experts of each token give, on every rank.

        experts   what the experts of this rank add up to, with a residual: rows of any tokens [N, hidden], and the next two for them
        x         [T, hidden], this rank's tokens; residual likewise
        chosen    [T, per_token] int32, counted over all ranks; a token whose numbers are all -1 goes nowhere
        weights   [T, per_token] float32
        """
        ...


@dataclass(frozen=True)
class Local:
    """Nothing to bring: also where each expert is cut over the ranks that have the same tokens."""

    mesh: Mesh
    num_experts: int

    def __call__(
        self, experts: Experts, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, residual: torch.Tensor | None
    ) -> torch.Tensor:
        group = self.mesh.tp
        return group.all_reduce(experts(x, chosen, weights, residual if group.rank == 0 else None))


@dataclass(frozen=True)
class AllGather:
    mesh: Mesh
    num_experts: int

    def __call__(
        self, experts: Experts, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, residual: torch.Tensor | None
    ) -> torch.Tensor:
        copies = self.mesh.dp
        all_chosen, all_weights = _apart(copies.gather_rows(_together(chosen, weights)))
        y = copies.sum_rows(experts(copies.gather_rows(x), all_chosen, all_weights, None))  # [T, hidden]
        y = self.mesh.tp.all_reduce(y)
        return y if residual is None else residual + y


@dataclass(frozen=True)
class AllToAll:
    """Ranks with the same tokens take a stretch of them each."""

    mesh: Mesh
    num_experts: int

    def __call__(
        self, experts: Experts, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, residual: torch.Tensor | None
    ) -> torch.Tensor:
        group, num_tokens = self.mesh.tp, x.shape[0]
        part = -(-num_tokens // group.size)
        padding, mine = part * group.size - num_tokens, slice(part * group.rank, part * (group.rank + 1))
        rows, own = F.pad(x, (0, 0, 0, padding))[mine], F.pad(chosen, (0, 0, 0, padding), value=-1)[mine]
        y = group.gather_rows(self._exchanged(experts, rows, own, F.pad(weights, (0, 0, 0, padding))[mine]))[:num_tokens]
        return y if residual is None else residual + y

    def _exchanged(self, experts: Experts, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """What the experts of tokens that only this rank has give, [T, hidden]."""
        group = self.mesh.ep
        ends = torch.tensor(first_experts(self.num_experts, group.size)[1:], dtype=torch.int32, device=chosen.device)
        ranks = torch.bucketize(chosen.clamp(min=0), ends, right=True)  # [T, per_token]
        goes = torch.zeros(x.shape[0], group.size, dtype=torch.bool, device=x.device).scatter_(1, ranks, True) & (chosen[:, :1] >= 0)
        tokens = goes.T.nonzero()[:, 1]  # of the first rank first
        given = goes.sum(0)
        given, taken = torch.stack((given, group.exchange(given))).tolist()
        there, (its_chosen, its_weights) = (
            group.exchange(x[tokens], given, taken),
            _apart(group.exchange(_together(chosen, weights)[tokens], given, taken)),
        )
        y = experts(there, its_chosen, its_weights, None) if sum(taken) else there
        back = group.exchange(y, taken, given)  # as `tokens`
        return torch.zeros(x.shape, dtype=torch.float32, device=x.device).index_add_(0, tokens, back.float()).to(x.dtype)


def _together(chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Both in one tensor [T, 2 * per_token], to travel at once."""
    return torch.cat((chosen, weights.view(torch.int32)), dim=1)


def _apart(both: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    chosen, weights = (half.contiguous() for half in both.chunk(2, dim=1))
    return chosen, weights.view(torch.float32)

"""Products whose rows do not depend on one another: each row's sum is made in one order, whatever else is in the batch.

Libraries choose their kernel, and with it the order of a sum, by the number of rows. Here the number never changes: rows go in tiles of a
fixed size, the last one filled up with zeros.
"""

from __future__ import annotations

from typing import TypeVar

import torch

from octavo.ops.linear import Product

W = TypeVar("W")

TILE_ROWS = 16


def in_tiles(product: Product[W], tile_rows: int = TILE_ROWS) -> Product[W]:
    """`product`, called with `tile_rows` rows each time."""

    def tiled(
        x: torch.Tensor, weight: W, bias: torch.Tensor | None, residual: torch.Tensor | None, scale: float
    ) -> torch.Tensor:
        rows = x.shape[0]
        missing = -rows % tile_rows
        if missing:
            x = torch.cat((x, x.new_zeros((missing, x.shape[1]))))
            residual = None if residual is None else torch.cat((residual, residual.new_zeros((missing, residual.shape[1]))))
        rests = [None] * (len(x) // tile_rows) if residual is None else residual.split(tile_rows)
        pieces = [product(piece, weight, bias, rest, scale) for piece, rest in zip(x.split(tile_rows), rests)]
        return torch.cat(pieces)[:rows] if pieces else product(x, weight, bias, residual, scale)

    return tiled

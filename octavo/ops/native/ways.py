"""Which kernel a product takes, by instruction set and rows of x: vectors, which serve any number, or from some number on AMX's tiles.

Tuned by `bench/cpu_ops.py --ways`, which measures each way, and torch's (oneDNN) besides, at a model's shapes. oneDNN is not among the
ways: it was behind tiles wherever there are any, and it wants plain bfloat16 weights, a second copy beside those laid out for decoding.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.ops.native.binding import Op

NEVER = 1 << 30


@dataclass(frozen=True)
class TileRows:
    """Rows of x from which on tiles are faster, by what the weights are."""

    panels: int = NEVER  # bfloat16, and x likewise: other types take vectors anyway
    packed: int = NEVER  # 4 or 8 bits with a scale for each group, which must become bfloat16 first

    def panels_op(self, rows: int) -> Op:
        return Op.PANEL_TILES if rows >= self.panels else Op.PANELS

    def packed_op(self, rows: int) -> Op:
        return Op.PACKED_TILES if rows >= self.packed else Op.PACKED


TUNED = {"amx": TileRows(panels=1, packed=12)}

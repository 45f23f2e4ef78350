"""How large steps were."""

from __future__ import annotations

import math
from bisect import bisect_left

STEP_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Sizes:
    """How often a step was of a size up to each of `STEP_SIZES`, or larger."""

    def __init__(self) -> None:
        self._counts = [0] * (len(STEP_SIZES) + 1)

    def add(self, size: int) -> None:
        self._counts[bisect_left(STEP_SIZES, size)] += 1

    def by_bound(self) -> list[tuple[float, int]]:
        return list(zip((*map(float, STEP_SIZES), math.inf), self._counts))

"""How far steps go beyond what was foreseen of them: what a budget that aims at a target has to leave room for."""

from __future__ import annotations

from collections import deque

from octavo.core.budget import AIM

KEPT = 256  # steps
QUANTILE = 0.98  # of steps that shall stay within the target; a target is for 99 of 100 gaps, of which most are of steps with no prompt
MOST = 2.0


class Caution:
    """Learns from the steps that a target has cut. `factor` is what the foreseen time of a step is to be multiplied by: at least 1."""

    def __init__(self) -> None:
        self.factor = 1.0
        self._ratios: deque[float] = deque(maxlen=KEPT)

    def saw(self, foreseen_s: float, seconds: float, target_s: float) -> None:
        """A step took so long that was to take `foreseen_s`. Those far below the target, or beyond it, say nothing of it."""
        if not target_s / 2 < self.factor * foreseen_s <= target_s:
            return
        self._ratios.append(seconds / foreseen_s)
        ordered = sorted(self._ratios)
        self.factor = min(MOST, max(1.0, AIM * ordered[int(QUANTILE * len(ordered))]))

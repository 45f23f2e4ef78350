"""How long captured work takes."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch


def graph_time(body: Callable[[], None], side: torch.cuda.Stream, replays: int = 7) -> float:
    """Seconds of one replay of what `body` launches, the median."""
    torch.cuda.synchronize()  # what the inputs were drawn on is another stream
    with torch.cuda.stream(side):
        body()
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        try:
            body()
        finally:
            graph.capture_end()
        times = []
        graph.replay()
        for _ in range(replays):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record(side)
            graph.replay()
            end.record(side)
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(times)

"""What makes of a step something that can be repeated with one launch: on a GPU a CUDA graph (on a CPU: octavo/ops/native/record.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")
Replay = Callable[[], None]
Record = Callable[[Callable[[], T]], tuple[Replay, T]]  # a step -> what repeats it, and the memory that a replay fills


class CudaRecorder:
    """Runs a step once, which a step that is only recorded may do twice, then captures it.

    Not by `torch.cuda.graph`, which before each capture waits for the device and gives all free memory back to the driver: memory that the
    next steps need.
    """

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def __call__(self, step: Callable[[], T]) -> tuple[Replay, T]:
        self._stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            step()
            graph.capture_begin(pool=self._pool)
            try:
                made = step()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._stream)
        return graph.replay, made

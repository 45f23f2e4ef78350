"""Profiles of steps: what PyTorch's profiler sees of a worker between two orders, as a trace for Perfetto or chrome://tracing."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import torch

log = logging.getLogger(__name__)


class Profiler:
    """One worker's. Both orders come in the thread that launches its steps, which is the one whose operations are seen."""

    def __init__(self, folder: str) -> None:
        """`folder` is empty where nobody may take profiles."""
        self._folder = folder
        self._profile: torch.profiler.profile | None = None

    def start(self) -> None:
        """Begin. Raises `ValueError` while a profile is being taken, or where there is no folder for it."""
        if not self._folder:
            raise ValueError("start with --profiler-config '{\"torch_profiler_dir\": FOLDER}'")
        if self._profile is not None:
            raise ValueError("a profile is being taken already")
        Path(self._folder).mkdir(parents=True, exist_ok=True)
        kinds = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            kinds.append(torch.profiler.ProfilerActivity.CUDA)
        self._profile = torch.profiler.profile(activities=kinds, record_shapes=True)
        self._profile.start()

    def stop(self) -> None:
        """End, and write the trace. Raises `ValueError` where none was begun."""
        if self._profile is None:
            raise ValueError("no profile is being taken")
        profile, self._profile = self._profile, None
        profile.stop()
        path = Path(self._folder) / f"octavo-{os.getpid()}-{time.time_ns()}.pt.trace.json.gz"
        profile.export_chrome_trace(str(path))
        log.info("profile: %s", path)

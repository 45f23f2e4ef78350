"""A worker that opens the team of threads of the CPU's operations and tells how many there are."""

from __future__ import annotations

import os

from octavo.ops.native.binding import shared_native
from tests.engine.fake_worker import FakeWorker


def build(rank: int):
    native = shared_native()
    assert native is not None
    return FakeWorker(rank), {"pid": os.getpid(), "threads": native.num_threads}

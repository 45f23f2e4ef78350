"""A collective in which a rank is missing ends with the rank that waited, its host and the operation."""

from __future__ import annotations

import platform

import pytest

from octavo.engine.process import spawn
from octavo.parallel.collectives import Host
from octavo.parallel.meeting import Layout


@pytest.mark.parametrize("operation", ["all_reduce", "gather_rows"])
def test_a_rank_that_waits_too_long_is_named_with_host_and_operation(operation):
    host = Host.open(Layout(tensor=2), timeout_s=15)
    ranks = [spawn("tests.parallel.late:run", rank, host.meeting, operation) for rank in range(2)]
    try:
        word = ranks[0].last_word()
        assert word.text.startswith(f"rank 0 of 2 on host {platform.node()} was in {operation}: ")
        assert word.consequence, "the other one says why"
    finally:
        for rank in ranks:
            rank.kill()

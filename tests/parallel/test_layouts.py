"""Several ranks over gloo compute what one process does: every architecture in every layout, in one start of four processes."""

from __future__ import annotations

import json
import os

import pytest

from octavo.engine.process import spawn
from octavo.parallel.collectives import Host
from octavo.parallel.meeting import Layout
from tests.parallel.ranks import ARCHITECTURES, EXPERT_LAYOUTS, EXPERTS, LAYOUTS

CASES = [(layout, architecture) for layout in LAYOUTS for architecture in ARCHITECTURES]
CASES += [(layout, architecture) for layout in EXPERT_LAYOUTS for architecture in EXPERTS]
SHAPES = LAYOUTS | {name: layout for name, (layout, _) in EXPERT_LAYOUTS.items()}


@pytest.fixture(scope="module")
def told():
    """(layout, architecture) -> what each rank said, by rank."""
    host = Host.open(Layout(tensor=4), timeout_s=120)
    children = [spawn("tests.parallel.ranks:run", rank, host.meeting) for rank in range(4)]
    found = {}
    try:
        for rank, child in enumerate(children):
            with os.fdopen(child.status_fd, "rb") as pipe:
                for line in pipe:
                    said = json.loads(line)
                    assert said["kind"] == "case", f"rank {rank}: {said}"
                    found.setdefault((said["layout"], said["architecture"]), {})[rank] = said
            assert child.end() == "code 0"
    finally:
        for child in children:
            child.kill()
    return found


@pytest.mark.parametrize(("layout", "architecture"), CASES)
def test_parts_together_are_the_whole(told, layout, architecture):
    said = told[layout, architecture]
    assert set(said) == set(range(SHAPES[layout].num_ranks))
    last = [one for one in said.values() if "distance" in one]
    assert len(last) == SHAPES[layout].num_ranks // SHAPES[layout].pipeline
    for one in last:
        assert one["size"] > 0.1, "logits of a model that is not degenerate"
        assert one["distance"] < 1e-4
        assert one["greedy"], "the text of one process"
        assert one["same_tokens"]
        assert one["same_peaks"]
        assert one["drawn"] == [0.0, 0.0, 0.0], "all ranks hold what rank 0 drew"


def test_ten_layers_on_three_stages(told):
    said = told["PP 3", "llama of 10 layers, vocab 1003"]
    assert [layer for rank in range(3) for layer in said[rank]["layers"]] == list(range(10))
    assert max(len(one["layers"]) for one in said.values()) == 4


def test_ranks_are_numbered_along_tensors_first():
    layout = Layout(tensor=2, pipeline=3, data=2)
    assert [layout.place(rank) for rank in (0, 1, 2, 5, 6, 11)] == [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 2, 0), (0, 0, 1), (1, 2, 1)]
    assert layout.groups(0)[:2] == [[0, 1], [2, 3]]
    assert layout.groups(1)[:2] == [[0, 2, 4], [1, 3, 5]]
    assert layout.groups(0, 2)[0] == [0, 1, 6, 7]

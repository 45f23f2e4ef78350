from __future__ import annotations

from octavo.core.lockstep import Agreement, Intent, agree


def test_the_largest_size_and_a_graph_only_if_all_can() -> None:
    assert agree([Intent(8), Intent(32), Intent(0)]) == Agreement(32, graph=True)
    assert agree([Intent(8), Intent(32, graph=False)]) == Agreement(32, graph=False)
    assert agree([Intent(8), Intent(0, graph=False)]) == Agreement(8, graph=True)
    assert agree([Intent(0), Intent(0)]) is None

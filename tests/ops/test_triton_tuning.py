"""What -O3 tries: every candidate gives the product, the fastest is taken and kept, and what the table has is left alone."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not on this machine")

from octavo.ops.table import TUNED, Skinny, product_cut
from octavo.ops.triton.linear import TritonLinear
from octavo.ops.triton.tuning import Tuner, candidates
from tests.ops.test_triton_skinny import DEPENDENT, DEVICE, DTYPES, assert_same, draw, wanted

N, K = 96, 128


class Stopwatch:
    """Gives the launches of a key the seconds that a test names, by their order, and keeps what they gave."""

    def __init__(self, *seconds: float) -> None:
        self.seconds, self.results = list(seconds), []

    def __call__(self, launch) -> float:
        self.results.append(launch())
        return self.seconds.pop(0) if self.seconds else 1.0


def made(tuner: Tuner) -> TritonLinear:
    return TritonLinear(torch.device(DEVICE), "a card that nobody tuned", 2, DEPENDENT, tuner=tuner)


@pytest.mark.parametrize("rows", [1, 7, 40, 100])
@pytest.mark.parametrize(("norm", "gate", "add"), [(0, None, 1), (1, "silu", 0), (1, None, 0)])
def test_all_candidates_give_the_product(rows, norm, gate, add, tmp_path):
    torch.manual_seed(0)
    dtype = DTYPES[0]
    x, weight = draw(rows, K, dtype=dtype), draw(N, K, dtype=dtype) * K**-0.5
    norms, residual = draw(K) if norm else None, draw(rows, N, dtype=dtype) if add else None
    right = wanted(x, weight, None, norms, gate, residual, 0.5)
    watch = Stopwatch()
    found = made(Tuner(tmp_path / "t.json", watch))(
        x, weight, None, None if norms is None else (norms, 1e-5), gate, None if residual is None else residual.clone(), 0.5
    )
    assert len(watch.results) > 2
    for result in (found, *(one for one in watch.results if one.shape == found.shape)):
        assert (result.double() - right).norm() < 5e-3 * right.norm()


def test_the_fastest_is_taken_and_found_again(tmp_path, monkeypatch):
    x, weight = draw(7, K, dtype=DTYPES[0]), draw(N, K, dtype=DTYPES[0])
    key = ("linear", 8, N, K)
    watch = Stopwatch(3.0, 2.0, 1.0)
    tuner = Tuner(tmp_path / "deep" / "t.json", watch)
    made(tuner)(x, weight)
    tried = len(watch.results)
    best = [*dict.fromkeys((product_cut("a card that nobody tuned", *key, 2), *candidates(key)))][2]
    assert made(tuner)(x[:3], weight).shape == (3, N)
    again = Tuner(tmp_path / "deep" / "t.json", watch)
    made(again)(x, weight)
    assert len(watch.results) == tried, "once for a key, whatever comes after"
    assert again.cut(key, None, lambda cut: pytest.fail("tried again")) == best
    monkeypatch.setitem(TUNED, "a card that nobody tuned", {("linear", 16, N, K): Skinny(16, 16, 32)})
    made(again)(draw(12, K, dtype=DTYPES[0]), weight)
    assert len(watch.results) == tried, "the table has it"


def test_nothing_is_tried_while_a_graph_is_captured(tmp_path):
    watch = Stopwatch()
    x, weight = draw(7, K, dtype=DTYPES[0]), draw(N, K, dtype=DTYPES[0])
    assert_same(made(Tuner(tmp_path / "t.json", watch, lambda: True))(x, weight), wanted(x, weight, None, None, None, None, 1.0))
    assert not watch.results
    assert not (tmp_path / "t.json").exists()


def test_what_a_card_cannot_run_is_not_taken(tmp_path):
    from triton.runtime.errors import OutOfResources

    def seconds(launch):
        launch()
        return 1.0

    tuner = Tuner(tmp_path / "t.json", seconds)

    def run(cut):
        if cut is not None:
            raise OutOfResources(200_000, 100_000, "shared memory")

    assert tuner.cut(("linear", 64, N, K), None, run) is None

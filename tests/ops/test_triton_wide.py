"""The product for some hundred rows with what may be fused behind it, against float64; in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not on this machine")

from octavo.ops.table import TUNED, Wide
from octavo.ops.triton.linear import TritonLinear
from octavo.ops.triton.wide import wide
from tests.ops.test_triton_skinny import DEPENDENT, DEVICE, DTYPES, GPU, assert_same, draw, wanted

CUTS = [
    pytest.param(35, 64, 96, Wide(16, 16, 32), id="even"),
    pytest.param(17, 40, 80, Wide(32, 32, 32), id="ragged"),
] + [
    pytest.param(252, 6144, 1024, Wide(128, 64, 64, 8, 4), id="real"),
    pytest.param(100, 1024, 3072, Wide(64, 32, 128, 4, 5), id="real, few weight rows"),
] * GPU


@pytest.mark.parametrize("dtype", DTYPES[:1])
@pytest.mark.parametrize(("gate", "add"), [(None, 0), (None, 1), ("silu", 0), ("gelu_tanh", 1)])
@pytest.mark.parametrize(("rows", "n", "k", "cut"), CUTS)
def test_every_form(rows, n, k, cut, gate, add, dtype):
    torch.manual_seed(0)
    x, weight = draw(rows, k, dtype=dtype), draw(n, k, dtype=dtype) * k**-0.5
    residual = draw(rows, n // 2 if gate else n, dtype=dtype) if add else None
    right = wanted(x, weight, None, None, gate, residual, 0.5)
    found = wide(x, weight, cut, gate, residual, 0.5, DEPENDENT)
    assert_same(found, right)
    assert residual is None or found is residual


def test_the_operation_takes_it_where_it_is_tuned(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setitem(TUNED, "here", {("linear+gate", 128, 64, 32): Wide(16, 16, 32), ("linear", 128, 64, 32): Wide(16, 16, 32)})
    taken = []
    monkeypatch.setattr("octavo.ops.triton.linear.wide", lambda *args: taken.append(args[3]) or wide(*args))
    linear = TritonLinear(torch.device(DEVICE), "here", 132, DEPENDENT)
    dtype = DTYPES[0]
    x, weight, norm, bias = draw(70, 32, dtype=dtype), draw(64, 32, dtype=dtype) * 0.2, draw(32), draw(64, dtype=dtype)
    assert_same(linear(x, weight, norm=(norm, 1e-5), gate="silu"), wanted(x, weight, None, norm, "silu", None, 1.0))
    assert_same(linear(x, weight), wanted(x, weight, None, None, None, None, 1.0))
    assert taken == ["silu", None]
    assert_same(linear(x, weight, bias), wanted(x, weight, bias, None, None, None, 1.0))
    assert len(taken) == 2

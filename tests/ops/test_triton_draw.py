"""The draw without sorting against its reference: in Triton's interpreter where there is no GPU."""

import pytest
import torch

from octavo.ops.draw import Settings
from octavo.ops.draw import draw as reference
from octavo.ops.draw import draw_rows as reference_rows
from tests.interpreter import interpret

INTERPRETED = interpret()
triton_draw = pytest.importorskip("octavo.ops.triton.draw", reason="Triton is not on this machine")
DEVICE = "cpu" if INTERPRETED else "cuda"
COLUMNS = {
    "none": (None, None, None),
    "top_k": ([0, 1, 7, 300, 2**31 - 1, 3], None, None),
    "top_p": (None, [1.0, 0.5, 0.9, 1e-6, 0.999, 0.1], None),
    "min_p": (None, None, [0.0, 0.3, 1.0, 0.01, 0.0, 0.5]),
    "all": ([0, 5, 2, 40, 3, 1], [1.0, 0.5, 0.9, 0.95, 0.7, 0.1], [0.0, 0.3, 0.0, 0.01, 0.0, 0.5]),
}


def columns(name):
    types = (torch.int32, torch.float32, torch.float32)
    return [None if column is None else torch.tensor(column, dtype=kind) for column, kind in zip(COLUMNS[name], types)]


def on_device(values):
    return [value if value is None else value.to(DEVICE) for value in values]


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize(("n", "block", "ties"), [(300, 128, False), (256, 256, True), (5, 8192, False)])
def test_the_tokens_are_those_of_the_reference(name, n, block, ties, monkeypatch):
    monkeypatch.setattr(triton_draw, "_BLOCK", block)
    torch.manual_seed(0)
    logits = torch.randn(6, n + 3)[:, :n] * 3  # padded beside
    logits = logits.round() if ties else logits
    logits[1, 2:4] = -torch.inf
    temperature = torch.tensor([1.0, 0.7, 2.0, 0.0, 0.1, 1.0])
    given = (logits.amax(-1), torch.rand(6, dtype=torch.float64), temperature, *columns(name))
    assert triton_draw.draw(*on_device((logits, *given))).tolist() == reference(logits, *given).tolist()


@pytest.mark.parametrize("name", ["none", "all"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_looked_up_and_greedy_ones_stay(name, dtype):
    if INTERPRETED and dtype is torch.bfloat16:
        dtype = torch.float16
    torch.manual_seed(1)
    many = Settings(torch.tensor([0.0, 0.5, 1.0, 0.0, 2.0, 1.0]), torch.randint(-(2**63), 2**63 - 1, (6,)), *columns(name))
    rows, positions, at = torch.tensor([4, 0, 5, 1]), torch.randint(0, 1000, (9,)), torch.tensor([8, 2, 3, 1])
    logits = (torch.randn(4, 200) * 3).to(dtype)
    tokens, peaks = triton_draw.draw_rows(*on_device((logits, rows, positions, at)), Settings(*on_device(many)))
    expected, largest = reference_rows(logits, rows, positions, at, many)
    assert tokens.tolist() == expected.tolist()
    assert peaks.tolist() == largest.tolist()


def test_a_row_without_a_finite_peak_gets_some_token():
    logits = torch.randn(3, 40)
    logits[0], logits[1, 3], logits[2, 5] = -torch.inf, torch.nan, torch.inf
    given = (logits.amax(-1), torch.rand(3, dtype=torch.float64), torch.ones(3), *(column[:3] for column in columns("all")))
    assert all(0 <= token < 40 for token in triton_draw.draw(*on_device((logits, *given))).tolist())


def test_no_rows():
    assert triton_draw.draw(*on_device((torch.randn(0, 40), torch.randn(0), torch.rand(0), torch.ones(0), None, None, None))).shape == (0,)


@pytest.mark.gpu
@pytest.mark.skipif(INTERPRETED, reason="no CUDA device")
@pytest.mark.parametrize(("top_k", "top_p"), [(None, None), (None, 0.9), (50, 0.9), (1000, None)])
def test_a_real_vocabulary_on_the_device(top_k, top_p):
    """Exponentials and sums of the two are rounded otherwise, which decides for one of many thousand draws."""
    torch.manual_seed(0)
    logits = (torch.randn(200, 151_936, device="cuda") * 2.5).to(torch.bfloat16)
    each = torch.arange(200, device="cuda")
    settings = Settings(
        torch.rand(200, device="cuda"),
        torch.randint(-(2**62), 2**62, (200,), device="cuda"),
        None if top_k is None else torch.full((200,), top_k, dtype=torch.int32, device="cuda"),
        None if top_p is None else torch.full((200,), top_p, device="cuda"),
        None,
    )
    found, expected = (call(logits, each, each, each, settings)[0] for call in (triton_draw.draw_rows, reference_rows))
    assert (found != expected).sum() <= 1

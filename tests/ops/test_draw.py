"""The random choice keeps the tokens that the definitions name, and draws each with its share."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.ops.draw import draw, thresholds


def kept_by_definition(weights, top_k, top_p, min_p):
    kept = weights >= min_p
    if 0 < top_k < weights.size:
        kept &= weights >= np.sort(weights)[-top_k]
    if top_p < 1:
        live = np.sort(weights[kept])[::-1].astype(np.float64)
        mass = np.cumsum(live)
        kept &= weights >= live[np.flatnonzero(mass >= top_p * mass[-1])[0]]
    return kept


def settings_of(rows, top_k, top_p, min_p):
    return torch.full((rows,), top_k, dtype=torch.int32), torch.full((rows,), top_p), torch.full((rows,), min_p)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([1, 2, 33, 300]),
    st.sampled_from([0, 1, 2, 7, 300, 301, 2**31 - 1]),
    st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.1, 1e-6]),
    st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    st.sampled_from([0.01, 1.0, 30.0]),
    st.booleans(),
)
def test_thresholds_keep_what_the_definition_names(seed, n, top_k, top_p, min_p, scale, ties):
    logits = np.random.default_rng(seed).normal(size=(3, n)).astype(np.float32) * scale
    logits = np.round(logits) if ties else logits
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    least = thresholds(torch.from_numpy(weights), *settings_of(3, top_k, top_p, min_p)).numpy()
    for row, lowest in zip(weights, least):
        kept = kept_by_definition(row, top_k, float(np.float32(top_p)), float(np.float32(min_p)))
        assert (((row >= lowest) == kept) | (row == 0)).all()  # tokens without weight are never drawn


def test_rows_without_a_truncation_are_untouched_by_those_with():
    weights = torch.rand(4, 100) + 1e-3
    weights /= weights.amax(-1, keepdim=True)
    least = thresholds(weights, torch.tensor([0, 5, 0, 0], dtype=torch.int32), torch.tensor([1, 1, 0.5, 1]), torch.tensor([0, 0, 0, 0.4]))
    kept = (weights >= least[:, None]).sum(-1).tolist()
    assert kept[:2] == [100, 5]
    assert kept[3] == (weights[3] >= 0.4).sum()
    assert 0 < kept[2] < 100


def test_numbers_in_equal_steps_give_each_token_its_share():
    logits = torch.tensor([2.0, -torch.inf, 1.0, 0.0, 3.0]).repeat(10000, 1)
    numbers = (torch.arange(10000, dtype=torch.float64) + 0.5) / 10000
    temperature = torch.full((10000,), 2.0)
    share = torch.bincount(draw(logits, logits.amax(-1), numbers, temperature, None, None, None), minlength=5) / 10000
    torch.testing.assert_close(share, (logits[0] / 2).softmax(-1), rtol=0, atol=2e-4)
    drawn = draw(logits, logits.amax(-1), numbers, temperature, *settings_of(10000, 3, 0.7, 0.0))
    left = torch.tensor([2.0, -torch.inf, -torch.inf, -torch.inf, 3.0])  # the two likeliest of three have 0.81 of their mass, one 0.51
    torch.testing.assert_close(torch.bincount(drawn, minlength=5) / 10000, (left / 2).softmax(-1), rtol=0, atol=2e-4)

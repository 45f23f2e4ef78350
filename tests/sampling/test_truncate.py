"""The host's thresholds and the device's keep the same tokens, and those that the definition names."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.plan import Admission
from octavo.sampling.draw import Draw, Truncation, _draw_on_device, _draw_on_host, _weights
from octavo.sampling.stage import View
from octavo.sampling.truncate import threshold_of, thresholds
from octavo.types import SamplingParams


def kept_by_definition(weights, top_k, top_p, min_p):
    kept = weights >= min_p
    if 0 < top_k < weights.size:
        kept &= weights >= np.sort(weights)[-top_k]
    if top_p < 1:
        live = np.sort(weights[kept])[::-1].astype(np.float64)
        mass = np.cumsum(live)
        kept &= weights >= live[np.flatnonzero(mass >= top_p * mass[-1])[0]]
    return kept


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
def test_host_and_device_keep_what_the_definition_names(seed, vocab, top_k, top_p, min_p, scale, ties):
    logits = np.random.default_rng(seed).normal(size=(3, vocab)).astype(np.float32) * scale
    logits = np.round(logits) if ties else logits
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    top_p, min_p = float(np.float32(top_p)), float(np.float32(min_p))
    device = thresholds(
        torch.from_numpy(weights), torch.full((3,), top_k, dtype=torch.int32), torch.full((3,), top_p), torch.full((3,), min_p)
    )
    for row, on_device in zip(weights, device.numpy()):
        on_host = threshold_of(row, top_k, top_p, min_p)
        kept = row >= on_host
        assert kept.any()
        assert (kept == kept_by_definition(row, top_k, top_p, min_p)).all()
        live = row >= on_device
        assert ((kept == live) | (row == 0)).all()  # a threshold of zero keeps weightless tokens too


def test_rows_without_a_truncation_are_untouched_by_those_with():
    weights = torch.rand(4, 100) + 1e-3
    weights /= weights.amax(-1, keepdim=True)
    least = thresholds(
        weights, torch.tensor([0, 5, 0, 0], dtype=torch.int32), torch.tensor([1, 1, 0.5, 1]), torch.tensor([0, 0, 0, 0.4])
    )
    kept = (weights >= least[:, None]).sum(-1).tolist()
    assert kept[:2] == [100, 5]
    assert kept[3] == (weights[3] >= 0.4).sum()
    assert 0 < kept[2] < 100


class Store:
    def __init__(self, many):
        draw = Draw()
        filled = [draw.fill(Admission(0, 0, params, i, (1,), 1, 0, ())) for i, params in enumerate(many)]
        self.columns = {c.name: torch.tensor([f[c.name] for f in filled], dtype=c.dtype) for c in draw.columns}
        self.pools, self.ragged, self.slots = {}, {}, torch.zeros(0)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 5, 256, 700, 1024]))
def test_host_and_device_draw_the_same_tokens(seed, vocab):
    rng = np.random.default_rng(seed)
    many = [
        SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m)
        for t, k, p, m in ((1, 0, 1, 0), (0.7, 20, 1, 0), (1.5, 0, 0.9, 0), (1, 0, 1, 0.05), (0.5, 9, 0.8, 0.01))
    ]
    logits = torch.from_numpy(rng.normal(size=(5, vocab)).astype(np.float32) * 3)
    logits[:, rng.integers(0, vocab, vocab // 3)] = -torch.inf
    logits[:, int(rng.integers(0, vocab))] = 1.0
    view = View(Store(many), torch.arange(5), torch.arange(5), tuple(range(5)))
    weights = _weights(logits, logits.amax(-1), view)
    for numbers in (torch.from_numpy(rng.random(5)), torch.zeros(5).double(), torch.full((5,), 1 - 2.0**-52, dtype=torch.float64)):
        host = _draw_on_host(weights, view, numbers)
        device = _draw_on_device(weights, view, numbers, Truncation(True, True, True))
        assert host.tolist() == device.tolist()
        assert torch.isfinite(logits[torch.arange(5), host]).all()

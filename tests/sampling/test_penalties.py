"""The sparse way on the host and the dense way of devices give the same logits."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.sampling.penalties import Penalties, apply_dense
from octavo.sampling.stage import View
from octavo.types import SamplingParams
from tests.sampling.oracle import VOCAB, Bench, processed

token = st.integers(0, VOCAB + 1)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(token, min_size=1, max_size=9), st.lists(token, max_size=9),
    st.floats(0.1, 3), st.floats(-2, 2), st.floats(-2, 2), st.integers(0, 999),
)  # fmt: skip
def test_both_ways_agree_with_the_definition(prompt, output, repetition, frequency, presence, seed):
    params = SamplingParams(repetition_penalty=repetition, frequency_penalty=frequency, presence_penalty=presence)
    bench = Bench()
    bench.admit(2, params, prompt, output)
    bench.admit(0, SamplingParams())
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(size=(2, VOCAB)).astype(np.float32) * 4)
    logits[:, 3] = -torch.inf
    view = View(bench.rows, torch.tensor([0, 2]), torch.tensor([9, 9]), (0, 2))
    sparse, dense = Penalties(VOCAB).apply(logits.clone(), view), apply_dense(logits.clone(), view)
    assert torch.equal(sparse[0], logits[0])
    assert torch.equal(dense[0], logits[0])
    exact = torch.from_numpy(processed(logits[1].numpy(), params, prompt, output)).float()
    torch.testing.assert_close(sparse[1], exact, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(dense[1], exact, rtol=1e-5, atol=1e-5)


def test_a_padding_row_leaves_the_default_clean():
    bench = Bench()
    padding = bench.rows.padding
    bench.admit(0, SamplingParams(presence_penalty=1))
    rows = torch.tensor([0, padding, padding])
    Penalties(VOCAB).update(View(bench.rows, rows, rows, (0, padding, padding)), torch.tensor([5, 5, 5]))
    assert bench.rows.pools["seen"][0].sum() == 0
    assert bench.rows.pools["seen"][bench.rows.slots[0]][5] == 2

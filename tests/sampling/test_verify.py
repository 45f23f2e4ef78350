"""Drafts change how many tokens a step gives, never which."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from octavo.sampling.verify import verify


@given(st.integers(1, 4), st.integers(0, 4), st.integers(0, 2**32))
def test_accepted_is_the_agreeing_beginning_and_one_more(n, k, seed):
    rng = np.random.default_rng(seed)
    sampled, drafts = rng.integers(0, 2, (n, k + 1)), rng.integers(0, 2, (n, k))
    real = rng.integers(0, k + 1, n)
    accepted = verify(torch.from_numpy(sampled), torch.from_numpy(drafts), torch.from_numpy(real)).tolist()
    for i in range(n):
        expected = 0
        while expected < real[i] and sampled[i, expected] == drafts[i, expected]:
            expected += 1
        assert accepted[i] == expected + 1


def test_acceptance_has_the_probability_of_the_draft_and_keeps_the_distribution():
    rng = np.random.default_rng(0)
    p, n = np.array([0.1, 0.6, 0.3]), 20000
    sampled = torch.from_numpy(rng.choice(3, (n, 2), p=p))
    drafts = torch.full((n, 1), 1)
    accepted = verify(sampled, drafts, torch.ones(n, dtype=torch.int64))
    assert abs((accepted == 2).float().mean() - p[1]) < 0.02
    assert np.abs(np.bincount(sampled[:, 0], minlength=3) / n - p).max() < 0.02
    refused = sampled[accepted == 1, 0]  # the residual distribution: p without the draft
    assert np.abs(np.bincount(refused, minlength=3) / len(refused) - np.array([0.25, 0, 0.75])).max() < 0.02

import torch

from octavo.ops.count_experts import count_experts


def test_totals_grow_by_every_choice():
    totals = torch.zeros(5, dtype=torch.int64)
    chosen = [torch.randint(0, 5, (tokens, 2), dtype=torch.int32) for tokens in (0, 1, 7)]
    for one in chosen:
        count_experts(totals, one)
    assert torch.equal(totals, torch.cat(chosen).flatten().bincount(minlength=5))
    assert totals.sum() == 16

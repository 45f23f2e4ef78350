"""Tapes: a replay gives what running gives, with the values of the moment; what no tape can hold is refused."""

import pytest
import torch

from octavo.ops.decode_batch import decode_batch
from octavo.ops.native.record import NotHeld, Pool, _OnlyHeld, record
from octavo.ops.native.twins import Twins
from octavo.ops.note_step import note_step


def test_a_replay_computes_with_the_values_of_the_moment(twins: Twins) -> None:
    x, weight, norm = torch.randn(3, 64), torch.randn(32, 64), torch.rand(64)

    def step() -> torch.Tensor:
        y = twins.linear(twins.rms_norm(x, norm, 1e-5), weight, None)
        return twins.rms_norm(twins.silu_mul(y), norm[:16], 1e-5)

    replay, given = record(twins.native, Pool(), step)
    for _ in range(3):
        x.copy_(torch.randn(3, 64))
        replay()
        assert torch.equal(given, step())


def test_memory_that_a_step_has_let_go_of_is_lent_again(twins: Twins) -> None:
    x, norm, pool = torch.randn(2, 64), torch.ones(64), Pool()

    def step(times: int) -> torch.Tensor:
        y = x
        for _ in range(times):
            y = twins.rms_norm(y, norm, 1e-5).view(1, 2, 64)[0]
        return y

    replay, given = record(twins.native, pool, lambda: step(20))
    assert len(pool._blocks) == 2
    replay()
    torch.testing.assert_close(given, step(1), rtol=1e-4, atol=1e-4)


def test_what_a_tape_cannot_repeat_is_refused_and_leaves_nothing_behind(twins: Twins) -> None:
    x, norm = torch.randn(2, 64), torch.ones(64)
    with pytest.raises(NotHeld, match=r"aten\.add"):
        record(twins.native, Pool(), lambda: twins.rms_norm(x, norm, 1e-5) + 1)
    assert twins.rms_norm(x, norm, 0.0).square().mean(1).tolist() == pytest.approx([1, 1])


def test_the_ends_of_a_step(twins: Twins) -> None:
    computed, last = torch.tensor([5, 0, 17, 3, 0], dtype=torch.int32), torch.arange(5) * 11
    table, row_ids = torch.randint(0, 90, (5, 6), dtype=torch.int32), torch.tensor([2, 0, 4, 3])
    results = []
    for op in (decode_batch, twins.decode_batch):
        out = (*(torch.zeros(4, dtype=torch.int64) for _ in range(2)), *(torch.zeros(4, dtype=torch.int32) for _ in range(2)))
        slots = torch.zeros(4, dtype=torch.int64)
        op(row_ids, computed, last, table, 4, 4, out, slots, True)
        results.append([*(x.tolist() for x in out), slots.tolist()])
    assert results[0] == results[1]
    noted = []
    for op in (note_step, twins.note_step):
        columns = computed.clone(), last.clone()
        starts, newest = torch.tensor([0, 1, 4, 5, 6], dtype=torch.int32), torch.tensor([[7, 1], [8, 2], [9, 3]])
        op(*columns, row_ids.int(), starts, torch.tensor([2, 0, 4]), newest[:, 0], 4)
        noted.append([x.tolist() for x in columns])
    assert noted[0] == noted[1]


def test_recording_does_not_import_torchs_compiler() -> None:
    """A dispatch mode is wrapped so that its first call does, seconds long, unless it says that it needs no wrapping."""
    assert not hasattr(_OnlyHeld.__torch_dispatch__, "__wrapped__")

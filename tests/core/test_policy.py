from __future__ import annotations

from random import Random

from octavo.core.policy import AGING_S, Queue, fcfs, priority
from octavo.core.sequence import Sequence
from octavo.types import Request, SamplingParams


def sequence(number: int, level: int = 0, arrival_s: float = 0.0, index: int = 0) -> Sequence:
    request = Request(f"r{number}", (1,), SamplingParams(), arrival_s, level)
    return Sequence(request, index, number, priority(request, number, index), 16, 1)


def test_a_better_priority_goes_first_and_ties_go_by_arrival() -> None:
    queue = Queue()
    queue.extend([sequence(3, 1), sequence(2, 0, index=1), sequence(2, 0), sequence(1, 0), sequence(4, -5)])
    assert [(seq.number, seq.index) for seq in queue] == [(4, 0), (1, 0), (2, 0), (2, 1), (3, 0)]


def test_waiting_makes_up_for_priority() -> None:
    low = sequence(1, level=2, arrival_s=0.0)
    soon, late = sequence(2, level=0, arrival_s=2 * AGING_S - 1), sequence(3, level=0, arrival_s=2 * AGING_S + 1)
    assert soon.order < low.order < late.order


def test_first_come_first_served_looks_at_nothing_else() -> None:
    request = Request("r", (1,), SamplingParams(), arrival_s=9.0, priority=-9)
    assert fcfs(request, 1, 0) < fcfs(request, 1, 1) < fcfs(request, 2, 0)


def test_a_queue_stays_sorted() -> None:
    draw, queue = Random(0), Queue()
    held: list[Sequence] = []
    for number in range(500):
        if held and draw.random() < 0.4:
            queue.remove(held.pop(draw.randrange(len(held))))
        else:
            held.append(sequence(number, draw.randint(-2, 2), draw.random()))
            queue.push(held[-1])
        assert [seq.order for seq in queue] == sorted(seq.order for seq in held)
        assert all(queue.items[queue.place(seq)] is seq for seq in held)

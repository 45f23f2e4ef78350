from __future__ import annotations

from random import Random

from octavo.core.lockstep import Agreement, Intent, Wave, agree


def test_the_largest_size_and_a_graph_only_if_all_can() -> None:
    assert agree([Intent(8), Intent(32), Intent(0)]) == Agreement(32, graph=True)
    assert agree([Intent(8), Intent(32, graph=False)]) == Agreement(32, graph=False)
    assert agree([Intent(8), Intent(0, graph=False)]) == Agreement(8, graph=True)
    assert agree([Intent(0), Intent(0)]) is None


def test_ranks_with_random_work_step_together_and_finish() -> None:
    draw = Random(3)
    for _ in range(300):
        ranks = draw.randint(1, 4)
        waves = [Wave() for _ in range(ranks)]
        work = [[draw.randint(1, 9) for _ in range(draw.randint(0, 6))] for _ in range(ranks)]
        late = [(draw.randrange(ranks), draw.randint(0, 12)) for _ in range(3)]  # work that arrives at a time
        steps = done = 0
        total = sum(map(len, work)) + len(late)
        for now in range(60):
            for rank, at in late:
                if at == now:
                    work[rank].append(5)
            for rank in range(ranks):
                if work[rank]:
                    number = waves[rank].start()
                    assert all(wave.join(number) for wave in waves)
            assert len({wave.running for wave in waves}) == 1
            if not waves[0].running:
                continue
            intents = [Intent(queue[0] if queue else 0, graph=bool(draw.randrange(4))) for queue in work]
            agreements = {wave.step(intents) for wave in waves}
            assert len(agreements) == 1
            agreement = agreements.pop()
            if agreement is None:
                assert not any(work)
                continue
            steps += 1
            for queue in work:
                if queue:
                    assert queue.pop(0) <= agreement.num_tokens
                    done += 1
        assert done == total
        assert not any(wave.running for wave in waves)
        assert steps <= total


def test_a_call_to_a_wave_that_is_over_starts_nothing() -> None:
    caller, other = Wave(), Wave()
    number = caller.start()
    assert other.join(number)
    assert other.step([Intent(0), Intent(0)]) is None
    assert not other.join(number)
    assert not other.running
    assert other.start() == number + 1

"""What `python -m bench.overload` makes of its runs, and a short one, of which no time is judged."""

from __future__ import annotations

import asyncio
import json

from bench.overload import RAMP_S, Load, at_rate, judged
from bench.process import server
from octavo.bench.serving.client import Outcome


def taken(at_s: float, ttft_s: float) -> Outcome:
    return Outcome(at_s, at_s, at_s + ttft_s + 0.1, 200, [at_s + ttft_s, at_s + ttft_s + 0.1])


def refused(at_s: float, seconds: float = 0.001) -> Outcome:
    return Outcome(at_s, at_s, at_s + seconds, 429, error="status 429: come again")


def test_each_promise_that_does_not_hold_is_told() -> None:
    peak = Load([taken(0.1 * number, 0.05) for number in range(100)], 0.0, 10.0)
    good = [*peak.outcomes, *(refused(0.05 * number) for number in range(200))]
    assert judged(peak, Load(good, 0.0, 10.0), 1.0)["wrong"] == []
    for outcomes, word in (
        ([*good, *(taken(5.0, 2.0) for _ in range(5))], "first token"),
        ([*good, *(refused(5.0, 0.2) for _ in range(5))], "refusal"),
        (good[10:], "of the peak"),
        ([*good, Outcome(5.0, 5.0, 5.0, 500, error="status 500")], "went wrong"),
    ):
        (wrong,) = judged(peak, Load(outcomes, 0.0, 10.0), 1.0)["wrong"]
        assert word in wrong


def test_a_server_that_is_offered_more_than_it_can_do_serves_some_and_refuses_some() -> None:
    pace = {"step_s": 0.002, "token_s": 0.0, "max_num_seqs": 4, "max_num_batched_tokens": 256}
    with server(["-m", "bench.paced", json.dumps(pace), json.dumps({"admission_ttft_ms": 200})]) as running:
        over = asyncio.run(at_rate(running.url, 1.6 - RAMP_S, 200.0))
        assert {one.status for one in over.outcomes} == {200, 429}
        assert all(one.error is None for one in over.outcomes if one.status == 200)
        assert running.stop() == 0

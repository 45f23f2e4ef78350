"""Arrivals: rates, bursts, conversations, traces."""

from __future__ import annotations

import json
import statistics
from itertools import pairwise
from pathlib import Path

import pytest

from octavo.simulate.load import Kind, Synthetic, Thinned, Trace
from octavo.types import InvalidRequest


def gaps(load: Synthetic) -> list[float]:
    times = [arrival.at_s for arrival in load.first()]
    return [b - a for a, b in pairwise(times)]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_rate_and_the_spread_that_were_asked(burstiness: float):
    found = gaps(Synthetic(rate=50, duration_s=200, burstiness=burstiness))
    assert statistics.fmean(found) == pytest.approx(1 / 50, rel=0.05)
    assert statistics.stdev(found) == pytest.approx(1 / 50 * burstiness**-0.5, rel=0.05)


def test_a_seed_gives_one_load():
    one, two, other = (list(Synthetic((Kind((1, 90), (1, 9)),), seed=seed).first()) for seed in (1, 1, 2))
    assert one == two != other


def test_kinds_have_their_shares():
    arrivals = list(Synthetic((Kind(4096, 256, 1), Kind(128, 256, 3)), rate=100, duration_s=40).first())
    assert sum(len(arrival.tokens) == 128 for arrival in arrivals) / len(arrivals) == pytest.approx(0.75, abs=0.03)


def test_prompts_begin_alike_only_where_they_should():
    arrivals = list(Synthetic((Kind(8, 2),), rate=10, duration_s=9, shared_len=5, num_shared=2).first())
    beginnings = {arrival.tokens[:5] for arrival in arrivals}
    assert len(beginnings) == 2
    assert len({arrival.tokens[5:] for arrival in arrivals}) == len(arrivals)
    assert {arrival.prefix for arrival in arrivals} == {tokens[0] for tokens in beginnings}
    assert not {arrival.tokens[5] for arrival in arrivals} & {tokens[0] for tokens in beginnings}


def test_a_turn_repeats_the_conversation_and_the_answer():
    load = Synthetic((Kind(10, 4),), turns=2, think_s=1.5)
    first = next(load.first())
    second = load.after(first, 7.0)
    assert second is not None
    assert second.at_s == 8.5
    assert second.tokens == first.tokens + (first.tokens[-1],) * (4 + 10)
    assert load.after(second, 9.0) is None


def test_users_send_as_many_as_asked():
    load = Synthetic(concurrency=3, num_sessions=8)
    open_ = list(load.first())
    assert len(open_) == 3
    sent = 3
    while open_:
        following = load.after(open_.pop(), 1.0)
        if following is not None:
            open_.append(following)
            sent += 1
    assert sent == 8


def test_a_part_has_one_of_each_stretch():
    kept = [arrival.session for arrival in Thinned(Synthetic(rate=50, duration_s=20), 2, 10).first()]
    assert [number // 5 for number in kept] == list(range(len(kept)))
    assert len({number % 5 for number in kept}) == 5


def test_a_trace_is_read(tmp_path: Path):
    path = tmp_path / "trace.jsonl"
    lines = [
        {"arrival_s": 1005.0, "prompt_tokens": 30, "output_tokens": 3, "session": "a"},
        {"arrival_s": 1001.0, "prompt_tokens": 10, "output_tokens": 2, "session": "a"},
        {"arrival_s": 1002.5, "prompt_token_ids": [5, 6, 7], "output_tokens": 1},
        {"arrival_s": 1003.0, "prompt_tokens": 12, "output_tokens": 1, "prefix": "system", "prefix_tokens": 8},
        {"arrival_s": 1004.0, "prompt_tokens": 20, "output_tokens": 1, "prefix": "system", "prefix_tokens": 8},
    ]
    path.write_text("\n\n".join(map(json.dumps, lines)))
    trace = Trace.read(path)
    first, ids, one, two, last = trace.first()
    assert [arrival.at_s for arrival in (first, ids, one, two, last)] == [0.0, 1.5, 2.0, 3.0, 4.0]
    assert last.tokens[:10] == first.tokens
    assert first.prefix == last.prefix
    assert ids.tokens == (5, 6, 7)
    assert one.tokens[:8] == two.tokens[:8]
    assert one.tokens[8] != two.tokens[8]
    assert [len(arrival.tokens) for arrival in (one, two)] == [12, 20]
    assert trace.shares


@pytest.mark.parametrize(
    "line",
    ["{}", "[1]", "nonsense", '{"arrival_s": 0, "prompt_tokens": 0, "output_tokens": 1}',
     '{"arrival_s": 0, "prompt_tokens": 4, "output_tokens": 1, "prefix": 1, "prefix_tokens": 5}',
     '{"arrival_s": -1, "prompt_tokens": 4, "output_tokens": 1}', '{"arrival_s": 0, "prompt_tokens": 4, "output_tokens": 0}'],
)  # fmt: skip
def test_a_bad_line_is_named(tmp_path: Path, line: str):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"arrival_s": 0, "prompt_tokens": 4, "output_tokens": 1}\n' + line)
    with pytest.raises(InvalidRequest, match="line 2"):
        Trace.read(path)

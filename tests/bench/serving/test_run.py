"""Every request is sent at its time, and figures of a run are what arithmetic says."""

from __future__ import annotations

import asyncio
from html.parser import HTMLParser

import pytest

from octavo.bench.serving.client import Outcome, Route
from octavo.bench.serving.http import Address
from octavo.bench.serving.measure import Server
from octavo.bench.serving.page import page
from octavo.bench.serving.report import details, result_of
from octavo.bench.serving.result import Slo, course, summarize, table
from octavo.bench.serving.run import Run, drive
from octavo.simulate.load import Arrival, Kind, Load, Synthetic
from octavo.simulate.result import Record
from octavo.simulate.result import summarize as simulated


class Clock:
    """A loop's clock that jumps to the next timer, so that seconds cost nothing."""

    def __init__(self) -> None:
        self.loop = asyncio.SelectorEventLoop()
        self.now_s = 100.0
        self.loop.time = lambda: self.now_s  # pyright: ignore
        select = self.loop._selector.select  # pyright: ignore

        def jump(timeout: float | None = None):
            if timeout:
                self.now_s += timeout
            return select(0)

        self.loop._selector.select = jump  # pyright: ignore


def driven(load: Load, num_requests: int, seconds: float, max_concurrency: int | None = None) -> Run:
    clock = Clock()

    async def send(prepared: Arrival, due_s: float) -> Outcome:
        outcome = Outcome(due_s, sent_s=clock.now_s)
        await asyncio.sleep(seconds)
        outcome.times_s, outcome.ended_s, outcome.status = [clock.now_s], clock.now_s, 200
        outcome.num_prompt, outcome.num_output = len(prepared.tokens), 1
        return outcome

    with asyncio.Runner(loop_factory=lambda: clock.loop) as runner:
        return runner.run(drive(load, num_requests, lambda arrival: arrival, send, lambda: clock.now_s, max_concurrency))


def test_an_open_load_is_sent_on_time_however_slow_the_answers_are() -> None:
    load = Synthetic((Kind(4, 1),), rate=10, duration_s=1e9, seed=2)
    run = driven(load, 30, seconds=50.0)
    arrivals = sorted(run.sent, key=lambda pair: pair[0].at_s)
    assert len(arrivals) == 30
    assert [one.sent_s - run.begin_s for _, one in arrivals] == pytest.approx([arrival.at_s for arrival, _ in arrivals])
    assert max(count for _, count in course(run.outcomes)) == 30


def test_users_wait_for_their_answers() -> None:
    run = driven(Synthetic((Kind(4, 1),), concurrency=3, num_sessions=12), 12, seconds=2.0)
    assert len(run.sent) == 12
    assert max(count for _, count in course(run.outcomes)) == 3
    assert run.seconds == pytest.approx(8.0)


def test_a_rate_can_be_held_down() -> None:
    run = driven(Synthetic((Kind(4, 1),), rate=100, duration_s=1e9), 20, seconds=1.0, max_concurrency=5)
    assert max(count for _, count in course(run.outcomes)) == 5
    assert summarize(run)["client"]["late_s"]["p99"] == 0.0, "waiting for each other is what was asked for"


def outcome(sent_s: float, times_s: list[float], num_output: int | None = None, error: str | None = None, status: int = 200) -> Outcome:
    ended_s = times_s[-1] if times_s else sent_s + 0.01
    return Outcome(sent_s, sent_s, ended_s, status, times_s, 10, num_output or len(times_s), 4, error)


MIXED = [
    outcome(0.0, [0.5, 0.6, 0.7]),
    outcome(1.0, [1.1, 1.2, 3.0]),
    outcome(2.0, [2.2], error="an error event: no"),
    outcome(2.0, [], error="status 429: full", status=429),
    outcome(2.0, [], error="connection: refused", status=0),
]
ARRIVAL = Arrival(0.0, (2, 2), 3)


def run_of(outcomes: list[Outcome]) -> Run:
    return Run(0.0, 4.0, tuple((ARRIVAL, one) for one in outcomes), 1.0)


def test_failures_are_counted_and_in_no_latency() -> None:
    found = summarize(run_of(MIXED))
    assert (found["requests"], found["failed"], found["refused"]) == (2, 2, 1)
    assert found["errors"] == {"an error event: no": 1, "status 429: full": 1, "connection: refused": 1}
    assert found["ttft_s"]["mean"] == pytest.approx(0.3)
    assert found["itl_s"]["mean"] == pytest.approx((0.1 * 3 + 1.8) / 4)
    assert found["output_tokens_per_s"] == pytest.approx(6 / 3)
    assert found["prefix_hit_rate"] == 0.4
    assert found["refusal_s"]["p50"] == pytest.approx(0.01)
    assert found["client"]["cpu_share"] == 0.25
    text = table(found)
    assert "2 failed" in text
    assert "1 x an error event: no" in text


def test_the_keys_are_the_simulators_but_for_what_a_client_cannot_know() -> None:
    found = summarize(run_of(MIXED))
    hidden = {"queue_s", "kv_usage", "waiting"}
    assert set(simulated(Record())) - set(found) == hidden


@pytest.mark.parametrize(
    ("limits", "num_met"),
    [(["ttft:600"], 2), (["ttft:400"], 1), (["ttft:600", "tpot:200"], 1), (["itl:1700"], 1), (["e2el:1000"], 1), (["e2e:100"], 0)],
)
def test_goodput_counts_requests_that_keep_every_limit(limits: list[str], num_met: int) -> None:
    good = summarize(run_of(MIXED), Slo.parse(limits))["goodput"]
    assert good["requests"] == num_met
    assert good["share"] == num_met / 5, "of all that were sent, failed ones too"
    assert good["requests_per_s"] == pytest.approx(num_met / 3)


@pytest.mark.parametrize("text", ["ttft", "ttft:", "ttft:x", "ttft:-1", "ttft:inf", "speed:5", "ttft:nan"])
def test_what_is_no_limit(text: str) -> None:
    with pytest.raises(ValueError):
        Slo.parse([text])


def test_one_token_meets_any_limit_of_later_ones() -> None:
    assert Slo.parse(["tpot:1", "itl:1"]).met(outcome(0.0, [5.0]))


def test_nothing_answered_is_no_error() -> None:
    found = summarize(run_of(MIXED[2:]), Slo.parse(["ttft:1"]))
    assert found["requests"] == found["goodput"]["requests_per_s"] == 0
    assert "0 requests" in table(found)


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.links: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "path", "circle", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("path", "circle", "br"):
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


MANY = [outcome(float(n), [n + 0.1, n + 0.2]) for n in range(3000)]


@pytest.mark.parametrize("outcomes", [MIXED, MIXED[2:], [outcome(0.0, [1.0])], MANY])
def test_the_page_is_whole_and_needs_no_other_file(outcomes: list[Outcome]) -> None:
    run = run_of(outcomes)
    server = Server(Address("127.0.0.1", 8000), Route("/v1/completions", "a<b"))
    result = result_of("octavo bench serve --model a<b", server, "random", summarize(run, Slo.parse(["ttft:400"])), {"device": "D1"})
    text = page(result, run)
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    assert reader.links == []
    assert "url(" not in text
    assert "script" not in reader.tags
    good = [one for one in outcomes if one.error is None]
    assert reader.tags.count("svg") == (0 if not good else 6 + 2 * any(one.num_output > 1 for one in good))
    assert "a<b: random" in reader.words
    assert "nan" not in text
    assert len(text) < 400_000
    assert ("failed" in text) == any(one.error for one in outcomes)


def test_details_tell_every_request() -> None:
    told = details(run_of(MIXED))
    assert len(told) == 5
    assert told[0]["itl_s"] == pytest.approx([0.1, 0.1])
    assert told[-1]["ttft_s"] is None

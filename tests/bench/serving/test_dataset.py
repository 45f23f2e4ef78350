"""The simulator meets what the server meets; prompts begin alike exactly where they should."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from octavo.bench.serving.client import Ask
from octavo.bench.serving.dataset import (
    Dataset,
    Exchange,
    Pace,
    Voice,
    choose_conversations,
    drawn_case,
    made_up,
    read_conversations,
    recorded,
    spread_length,
    trace_line,
)
from octavo.bench.workloads import CASES, draw
from octavo.simulate.load import Arrival, Kind, Synthetic, Trace
from octavo.types import InvalidRequest

IDS = Voice(1, 5000, in_words=False)
WORDS = Voice(1, 5000, in_words=True)


def first(dataset: Dataset) -> list[Arrival]:
    return list(islice(dataset.load.first(), dataset.num_prompts))


def shared(one: list[int], other: list[int]) -> int:
    return next((place for place, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


def test_arrivals_are_those_of_the_simulator() -> None:
    dataset = made_up(Pace(40, rate=7, burstiness=0.5, seed=3), Kind((5, 50), (1, 9)), IDS)
    simulated = Synthetic((Kind((5, 50), (1, 9)),), rate=7, burstiness=0.5, duration_s=1e9, seed=3)
    assert first(dataset) == list(islice(simulated.first(), 40))
    users = made_up(Pace(40, concurrency=4), Kind((5, 50), 3), IDS)
    assert first(users) == list(Synthetic((Kind((5, 50), 3),), concurrency=4, num_sessions=40).first())


def test_all_come_at_once_where_nothing_else_is_said() -> None:
    assert [arrival.at_s for arrival in first(made_up(Pace(12), Kind(5, 5), IDS))] == [0.0] * 12


@pytest.mark.parametrize("voice", [IDS, WORDS])
def test_prompts_begin_alike_exactly_where_the_simulators_do(voice: Voice) -> None:
    dataset = made_up(Pace(9), Kind((20, 40), 2), voice, shared_len=16, num_shared=3)
    arrivals = first(dataset)
    prompts = [voice.ask(arrival).prompt for arrival in arrivals]
    said = [prompt if isinstance(prompt, list) else prompt.split() for prompt in prompts]
    for one, arrival in zip(said, arrivals):
        assert len(one) == len(arrival.tokens)
        assert len(set(one)) > len(one) // 3, "not one token again and again"
        for other, another in zip(said, arrivals):
            if arrival != another:
                expected = 16 if arrival.prefix == another.prefix else 0
                assert expected <= shared(one, other) <= expected + 2, "past the shared part they are alike by chance only"


def test_a_longer_prompt_goes_on_where_a_shorter_one_ends() -> None:
    short, long = (IDS.ask(Arrival(0.0, (7,) * length, 1)).prompt for length in (30, 50))
    assert long[:30] == short


def test_ids_stay_in_the_vocabulary_and_recorded_ones_are_sent_as_they_are() -> None:
    prompt = Voice(1, 12, in_words=False).ask(Arrival(0.0, (3,) * 200, 1)).prompt
    assert set(prompt) == {10, 11}
    assert IDS.ask(Arrival(0.0, (5, 9, 5), 4)) == Ask([5, 9, 5], 4)


def test_a_case_has_the_prompts_of_the_offline_benchmark() -> None:
    drawn = draw(CASES["lat8"], 1000, 5)
    dataset = drawn_case(Pace(8), drawn)
    assert [dataset.ask(arrival) for arrival in first(dataset)] == [Ask(list(prompt), 256) for prompt in drawn.prompts]


def test_what_was_sent_can_be_read_as_a_trace(tmp_path: Path) -> None:
    dataset = made_up(Pace(6, rate=5), Kind((20, 30), 4), IDS, shared_len=10, num_shared=2)
    sent = first(dataset)
    path = tmp_path / "trace.jsonl"
    lines = [trace_line(one, one.at_s, len(one.tokens), 4) for one in sent]
    path.write_text("\n".join(map(json.dumps, lines)))
    again = recorded(path, None, IDS)
    assert again.num_prompts == 6
    back = first(again)
    assert [one.at_s for one in back] == pytest.approx([one.at_s - sent[0].at_s for one in sent], abs=1e-5)
    assert [len(one.tokens) for one in back] == [len(one.tokens) for one in sent]
    alike = [[shared(list(a.tokens), list(b.tokens)) for b in sent] for a in sent]
    assert [[shared(list(a.tokens), list(b.tokens)) for b in back] for a in back] == alike


def test_ids_of_a_recording_stay_in_its_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps(trace_line(Arrival(2.0, (4, 5, 4, 6), 3), 0.5, 4, 3)))
    assert Trace.read(path).arrivals[0].tokens == (4, 5, 4, 6)


def test_a_range_is_spread_to_both_sides() -> None:
    assert spread_length(100, 0.2) == (80, 120)
    assert spread_length(3, 1.0) == (1, 6)
    assert spread_length(100, 0.0) == 100


SAID = [{"from": "human", "value": "one two"}, {"from": "gpt", "value": "three"}, {"from": "human", "value": "more"}]


@pytest.mark.parametrize("as_lines", [True, False])
def test_conversations_are_read_in_both_forms(tmp_path: Path, as_lines: bool) -> None:
    messages = [{"role": "system", "content": "be"}, {"role": "user", "content": "four"}, {"role": "assistant", "content": "five"}]
    entries = [{"id": 1, "conversations": SAID}, {"messages": messages}, {"conversations": SAID[:1]}, {"conversations": []}]
    path = tmp_path / "chats"
    path.write_text("\n".join(map(json.dumps, entries)) if as_lines else json.dumps(entries))
    assert read_conversations(path) == [Exchange("one two", "three"), Exchange("four", "five")]


@pytest.mark.parametrize("text", ["", "[]", "nonsense", '[{"conversations": [{"from": "human", "value": "x"}]}]', "[1]"])
def test_a_file_without_conversations_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "chats.json"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match=r"chats\.json"):
        read_conversations(path)


def test_long_conversations_are_left_out_and_the_rest_shuffled_by_the_seed() -> None:
    exchanges = [Exchange(str(number), "x") for number in range(50)]
    lengths = [(number, 10) for number in range(50)]
    one, again, other = (choose_conversations(exchanges, lengths, Pace(9, seed=seed), None, 40) for seed in (1, 1, 2))
    assert one == again != other
    assert sorted(int(str(ask.prompt)) for ask in one) == list(range(31))
    assert {ask.output_len for ask in choose_conversations(exchanges, lengths, Pace(9), 5, 40)} == {5}
    with pytest.raises(InvalidRequest, match="that short"):
        choose_conversations(exchanges, lengths, Pace(9), None, 9)

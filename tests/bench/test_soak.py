"""Many requests of every kind at a server of its own: a short form of `python -m bench.soak`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from bench.soak import COMMANDS, KINDS, Soak, complaints, growth, soak


def test_counts_add_up_and_nothing_is_left_whatever_requests_come() -> None:
    result, wrong = soak(COMMANDS["paced"], 500, 16)
    assert wrong == []
    assert set(result["sent"]) == set(KINDS)
    assert set(result["memory"]) == {"front", "engine"}
    assert all(result["finished"][reason] for reason in ("stop", "length", "abort"))


def told(**changed: float) -> list[str]:
    """What is said of ten short requests and two that were left, with some counts changed."""
    course: Any = Soak(None, sent=Counter({"short": 10, "left before": 2, "invalid": 3}), answered=Counter(short=10, invalid=3))  # pyright: ignore
    reasons = {"stop": 4.0, "length": 7.0, "abort": 1.0, "error": 0.0}
    values = {"requests_started_total": 12.0, "kv_cache_usage_perc": 0.0, "num_requests_running": 0.0, "num_requests_waiting": 0.0}
    values |= {"failed_steps_total": 0.0}
    both = values | reasons | changed
    return complaints(course, {name: both[name] for name in values}, {name: both[name] for name in reasons})


def test_what_does_not_add_up_is_told() -> None:
    assert told() == []
    for changed in ({"stop": 3.0}, {"abort": 2.0}, {"error": 1.0}, {"kv_cache_usage_perc": 0.1}, {"num_requests_running": 1.0}):
        assert told(**changed), changed
    assert told(requests_started_total=9.0, stop=1.0), "one was not counted"


def test_growth_is_that_after_the_warm_up() -> None:
    memory = [(number, {"front 7": 100 if number < 40 else 104}) for number in range(100)]
    assert round(growth(memory, 100)["front"]["growth"], 3) == 0.04
    flat = [(number, {"front 7": 50 if number < 20 else 100}) for number in range(100)]
    assert growth(flat, 100)["front"]["growth"] == 0

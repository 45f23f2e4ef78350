import os

import pytest

from octavo import env
from octavo.host import cores
from octavo.host.cores import allowed_cores, as_list, usable_cores


def test_the_affinity_of_this_process_counts() -> None:
    assert allowed_cores() == os.sched_getaffinity(0)


@pytest.mark.parametrize(("quota", "usable"), [(None, 4), (1.5, 2), (0.5, 1), (0.1, 1), (2.4, 2), (64.0, 4)])
def test_the_quota_of_the_container_counts(monkeypatch: pytest.MonkeyPatch, quota: float | None, usable: int) -> None:
    monkeypatch.setattr(cores, "allowed_cores", lambda: frozenset({2, 3, 8, 9}))
    monkeypatch.setattr(cores, "cpu_quota", lambda: quota)
    assert usable_cores() == usable


@pytest.mark.parametrize(("text", "numbers"), [("0", (0,)), ("0-2,5", (0, 1, 2, 5)), (" 3 , 1-2,2", (3, 1, 2))])
def test_lists_are_read(text: str, numbers: tuple[int, ...]) -> None:
    assert env.read_list(text) == numbers
    assert env.read_list(as_list(numbers)) == tuple(sorted(numbers))


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-", "-2", "0,,1", "0-1-2", "1.5"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="neither a number nor a range"):
        env.read_list(text)

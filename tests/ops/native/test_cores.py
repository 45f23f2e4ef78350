import os
from pathlib import Path

import pytest

from octavo import env
from octavo.ops.native import cores
from octavo.ops.native.cores import Cores, choose_cores, listed_cores, usable_cores


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "allowed_cores", lambda: frozenset({2, 3, 8, 9}))
    for name in ("OMP_NUM_THREADS", "OCTAVO_CPU_OMP_THREADS_BIND", "OCTAVO_CPU_NUM_OF_RESERVED_CPU"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.replace("OCTAVO_", "VLLM_"), raising=False)


@pytest.mark.parametrize(("settings", "chosen"), [
    ({}, Cores(4)),
    ({"OMP_NUM_THREADS": "7"}, Cores(7)),
    ({"OCTAVO_CPU_NUM_OF_RESERVED_CPU": "1"}, Cores(3)),
    ({"OCTAVO_CPU_NUM_OF_RESERVED_CPU": "9"}, Cores(1)),
    ({"OCTAVO_CPU_NUM_OF_RESERVED_CPU": "1", "OCTAVO_CPU_OMP_THREADS_BIND": "nobind"}, Cores(4)),
    ({"OCTAVO_CPU_OMP_THREADS_BIND": "2-3,8"}, Cores(3, (2, 3, 8))),
    ({"OCTAVO_CPU_OMP_THREADS_BIND": "9|2"}, Cores(1, (9,))),
])  # fmt: skip
def test_the_environment_decides(monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], chosen: Cores) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert choose_cores() == chosen


def test_a_list_is_cut_to_what_is_allowed(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("OCTAVO_CPU_OMP_THREADS_BIND", "0-31")
    assert choose_cores() == Cores(4, (2, 3, 8, 9))
    assert "only cores 2,3,8,9" in caplog.text
    monkeypatch.setenv("OCTAVO_CPU_OMP_THREADS_BIND", "0-1")
    with pytest.raises(env.BadEnvironment, match="allowed: 2,3,8,9"):
        choose_cores()


def test_lists_of_workers() -> None:
    assert listed_cores("0-2,5|8-10", 0) == (0, 1, 2, 5)
    assert listed_cores("0-2,5|8-10", 1) == (8, 9, 10)
    with pytest.raises(env.BadEnvironment, match="worker 2"):
        listed_cores("0|1", 2)


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-", "-2", "0,,1", "0-1-2"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(env.BadEnvironment, match="use auto, nobind"):
        listed_cores(text, 0)


@pytest.mark.parametrize(("text", "quota"), [("max 100000", 4), ("150000 100000", 2), ("50000 100000", 1), ("garbage", 4)])
def test_the_quota_of_the_control_group_counts(tmp_path: Path, text: str, quota: int) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert usable_cores(tmp_path / "cpu.max") == quota
    assert usable_cores(tmp_path / "missing") == 4


def test_the_affinity_of_this_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert cores.allowed_cores() == os.sched_getaffinity(0)

"""Limits of containers, of both kinds, at the root and around the group of this process."""

from pathlib import Path

from octavo.host.cgroup import cpu_quota, memory_limit
from tests.host.trees import write

MIB, GIB = 1 << 20, 1 << 30
NOWHERE = Path("/nowhere")


def memory(folder: Path, limit: int, used: int, inactive: int) -> None:
    write(folder / "memory.max", f"{limit}\n")
    write(folder / "memory.current", f"{used}\n")
    write(folder / "memory.stat", f"anon 5\ninactive_file {inactive}\n\n")


def test_limits_of_a_container(tmp_path: Path) -> None:
    memory(tmp_path, GIB, 300 * MIB, 100 * MIB)
    write(tmp_path / "cpu.max", "150000 100000\n")
    assert memory_limit(tmp_path, NOWHERE) == (GIB, 200 * MIB)
    assert cpu_quota(tmp_path, NOWHERE) == 1.5


def test_the_narrowest_group_around_this_process_counts(tmp_path: Path) -> None:
    own = write(tmp_path / "self", "0::/system.slice/octavo.service\n")
    write(tmp_path / "system.slice/cpu.max", "800000 100000\n")
    write(tmp_path / "system.slice/octavo.service/cpu.max", "max 100000\n")
    memory(tmp_path / "system.slice", 8 * GIB, 7 * GIB, 0)
    memory(tmp_path / "system.slice/octavo.service", 4 * GIB, GIB, 0)
    assert cpu_quota(tmp_path, own) == 8.0
    assert memory_limit(tmp_path, own) == (8 * GIB, 7 * GIB)


def test_limits_of_an_older_kind_of_container(tmp_path: Path) -> None:
    own = write(tmp_path / "self", "7:cpu,cpuacct:/box\n6:memory:/\n")
    write(tmp_path / "memory/memory.limit_in_bytes", "2147483648")
    write(tmp_path / "memory/memory.usage_in_bytes", "1000")
    write(tmp_path / "memory/memory.stat", "total_inactive_file 400\n")
    write(tmp_path / "cpu/box/cpu.cfs_quota_us", "50000")
    write(tmp_path / "cpu/box/cpu.cfs_period_us", "100000")
    assert memory_limit(tmp_path, own) == (2 * GIB, 600)
    assert cpu_quota(tmp_path, own) == 0.5


def test_no_limits(tmp_path: Path) -> None:
    assert (memory_limit(tmp_path, NOWHERE), cpu_quota(tmp_path, NOWHERE)) == (None, None)
    write(tmp_path / "memory.max", "max\n")
    write(tmp_path / "cpu.max", "max 100000\n")
    write(tmp_path / "cpu/cpu.cfs_quota_us", "-1")
    write(tmp_path / "cpu/cpu.cfs_period_us", "100000")
    write(tmp_path / "memory/memory.limit_in_bytes", "9223372036854771712")
    assert (memory_limit(tmp_path, NOWHERE), cpu_quota(tmp_path, NOWHERE)) == (None, None)

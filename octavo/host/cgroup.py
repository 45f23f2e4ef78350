"""Limits of the control group (the container) that this process is in, and of those around it. Both versions of the kernel's interface."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from octavo.host.files import text_of

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def cpu_quota(root: Path = ROOT, membership: Path = MEMBERSHIP) -> float | None:
    """Cores' worth of time that may be used: the smallest limit from the root to this process's own group; None without one."""
    found: list[float] = []
    for folder in _folders(root, membership, "cpu"):
        text = text_of(folder / "cpu.max").split()
        if len(text) == 2 and text[0].isdigit() and text[1].isdigit() and int(text[1]):
            found.append(int(text[0]) / int(text[1]))
        quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota and period and quota > 0:
            found.append(quota / period)
    return min(found, default=None)


def memory_limit(root: Path = ROOT, membership: Path = MEMBERSHIP) -> tuple[int, int] | None:
    """(limit, used) bytes of the group with the least left, or None without a limit. Used leaves out file pages that can be given back."""
    found: list[tuple[int, int]] = []
    for folder in _folders(root, membership, "memory"):
        for limit_file, used_file, inactive in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, used = _number(folder / limit_file), _number(folder / used_file)
            if limit is not None and limit < 1 << 60:
                rows = (line.split() for line in text_of(folder / "memory.stat").splitlines())
                pages = sum(int(row[1]) for row in rows if row[:1] == [inactive])
                found.append((limit, max(0, (used or 0) - pages)))
    return min(found, key=lambda one: one[0] - one[1], default=None)


def _folders(root: Path, membership: Path, controller: str) -> Iterator[Path]:
    """Where limits may stand: the root, the controller's own root in the older kind, and down each path to this process's group."""
    tops = {root: "/", root / controller: "/"}
    for line in text_of(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            tops[root] = path
        elif controller in controllers.split(","):
            tops[root / controller] = path
    for top, path in tops.items():
        yield top
        for part in path.strip("/").split("/"):
            if part and part != "..":  # a group outside of what this container sees
                top = top / part
                yield top


def _number(path: Path) -> int | None:
    text = text_of(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None

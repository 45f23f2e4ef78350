"""Which cores this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterable

from octavo.host.cgroup import cpu_quota


def allowed_cores() -> frozenset[int]:
    """Logical CPUs that the system lets the calling thread run on: affinity, and with it the cpuset of the container."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """How many cores' worth of time there is: those allowed, or the container's quota where that is smaller, rounded to whole ones."""
    quota = cpu_quota()
    allowed = len(allowed_cores())
    return allowed if quota is None else max(1, min(allowed, int(quota + 0.5)))


def as_list(numbers: Iterable[int]) -> str:
    """0, 1, 2, 5 as "0-2,5"."""
    stretches: list[list[int]] = []
    for number in sorted(set(numbers)):
        if stretches and number == stretches[-1][-1] + 1:
            stretches[-1].append(number)
        else:
            stretches.append([number])
    return ",".join(f"{one[0]}-{one[-1]}" if len(one) > 1 else str(one[0]) for one in stretches)

"""A further host as a process of its own, whose workers are fake."""

from __future__ import annotations

from octavo.cluster.agent import serve_host
from octavo.engine.workers import Workers


def run(status, address, number: int, num_hosts: int, flavour: str, flags) -> None:
    def begin(task) -> Workers:
        ranks = range(number * 2, number * 2 + 2)
        return Workers("tests.engine.fake_worker:build", (task,), 2 * num_hosts, ranks)

    if flavour == "late":
        raise ValueError("this host never comes")
    serve_host(address, number, flags, begin, patience_s=20)

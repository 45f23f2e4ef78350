"""`octavo serve --headless`: what runs on the further hosts."""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

from octavo.cluster.agent import serve_host
from octavo.cluster.mp_hosts import flags_of
from octavo.cluster.replica_hosts import serve_replicas
from octavo.config.engine import EngineConfig
from octavo.engine.build import begin_workers
from octavo.engine.executor import ExecutorDead
from octavo.host.network import NobodyThere


def serve_headless(asked: EngineConfig) -> int:
    """Work for the first host until it ends; the exit code. Raises `ConfigError`."""
    parallel = asked.parallel
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    try:
        if parallel.nnodes == 1:
            serve_replicas(asked)
            return 0
        address = (parallel.master_addr, parallel.master_port)
        serve_host(address, parallel.node_rank, flags_of(parallel), lambda task: begin_workers(asked, task, parallel.node_rank, 0))
    except (ExecutorDead, NobodyThere) as error:
        print(f"octavo serve: {error}", file=sys.stderr)
        return 1
    return 0


def _leave(number: int, frame: object) -> NoReturn:
    raise SystemExit(0)

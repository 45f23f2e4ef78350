"""Hosts that are started one by one, each with its number: --nnodes, --node-rank, --master-addr, --master-port."""

from __future__ import annotations

import platform
from typing import Any

from octavo import __version__, env
from octavo.cluster.far import Hosts, gather, listen
from octavo.config.parallel import ParallelConfig
from octavo.host.network import interface_of


def flags_of(parallel: ParallelConfig) -> dict[str, Any]:
    """What must be the same on all hosts."""
    names = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "nnodes", "enable_expert_parallel")
    return {"octavo": __version__, "python": platform.python_version_tuple()[1], **{name: getattr(parallel, name) for name in names}}


def other_hosts(parallel: ParallelConfig) -> Hosts:
    """Wait at the first host until the others have come. Raises `ConfigError` and `ExecutorDead`."""
    with listen(parallel.master_addr, parallel.master_port, parallel.nnodes) as listener:
        env.meet_over(interface_of(listener.getsockname()[0]))
        return Hosts(gather(listener, range(1, parallel.nnodes), flags_of(parallel)), parallel.master_addr)

"""The comparison of `octavo.bench.check` where layers are cut over ranks: a process for each, and all take the same steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.config.architecture import Architecture
from octavo.config.engine import EngineConfig
from octavo.config.fields import ConfigError
from octavo.config.resolved import Resolved
from octavo.engine.build import open_model, worker_places
from octavo.engine.processes import ProcessExecutor
from octavo.engine.workers import Workers
from octavo.parallel.meeting import Layout, Meeting

Prompts = Mapping[str, Sequence[Sequence[int]]]
Found = dict[str, dict[str, Any]]


def compare_ranks(config: EngineConfig, settings: Resolved, workloads: Prompts) -> Found:
    """As `compare_with_reference`, both levels cut alike. Raises `ExecutorDead`, and `ConfigError` for layouts that step otherwise."""
    from octavo.parallel.collectives import Host

    if settings.pipeline_parallel_size > 1 or config.parallel.lock_step:
        raise ConfigError("check", True, "logits are compared on one device or on tensor-parallel ranks; leave it out, or use -tp alone")
    size = settings.tensor_parallel_size
    host = Host.open(Layout(size, experts=settings.expert_parallel_size > 1))
    args, places = (host.meeting, config, settings, workloads), worker_places(config, settings, 0, size)
    ranks = ProcessExecutor([Workers("octavo.bench.check_ranks:compare", args, size, places=places)], keep=host)
    found: Found = ranks.told[0]
    ranks.close()
    return found


class Done:
    """A worker that has nothing more to do."""

    def enter_thread(self) -> None:
        pass

    def close(self) -> None:
        pass


def compare(rank: int, meeting: Meeting, config: EngineConfig, settings: Resolved, workloads: Prompts) -> tuple[Done, Found]:
    """In a rank's own process. Every rank has the logits of all."""
    from octavo.bench.check import compare_with_reference
    from octavo.parallel.collectives import join
    from octavo.worker.device import take

    mesh = join(meeting, rank, take(settings.device, rank))
    checkpoint = open_model(config)
    return Done(), compare_with_reference(settings, Architecture.from_config(checkpoint.config), checkpoint, workloads, mesh)

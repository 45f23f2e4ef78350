"""The one place where an engine is put together from what the user asked for: checkpoint, decisions, worker, scheduler, loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from octavo import env
from octavo.cluster.far import Hosts, Task
from octavo.cluster.mp_hosts import other_hosts
from octavo.cluster.ranks import Ranks
from octavo.cluster.ray_hosts import ray_hosts
from octavo.config.architecture import Architecture
from octavo.config.engine import EngineConfig
from octavo.config.graphs import rooms
from octavo.config.parallel import Replica
from octavo.config.resolve import resolve
from octavo.config.resolved import Resolved
from octavo.core.budget import step_budget
from octavo.core.kv.cache import KVCache
from octavo.core.limits import SlotPool
from octavo.core.scheduler import Scheduler
from octavo.engine import starts
from octavo.engine.costs import LearnedCosts
from octavo.engine.executor import Executor
from octavo.engine.grammars import Grammars
from octavo.engine.inline import InlineExecutor, Worker
from octavo.engine.loop import EngineLoop
from octavo.engine.messages import Outbox
from octavo.engine.processes import ProcessExecutor
from octavo.engine.timeline import Timeline
from octavo.engine.workers import Workers
from octavo.grammar.library import Vocabulary
from octavo.host.collector import uncollected
from octavo.host.cpu_places import cpu_places, own_place
from octavo.host.numa import engine_place, numa_places
from octavo.host.place import Place
from octavo.models.checkpoint import Checkpoint, open_checkpoint
from octavo.parallel.meeting import Meeting
from octavo.plan.cost import SHIPPED, cost_model
from octavo.plan.devices import Device
from octavo.plan.kv import rank_layout
from octavo.plan.memory import num_slots, plan_memory
from octavo.plan.report import as_reasons, as_table
from octavo.plan.steps import StepLog
from octavo.worker.early import Early
from octavo.worker.early import begin as begin_early

ALONE = Replica()
log = logging.getLogger(__name__)


def open_model(config: EngineConfig) -> Checkpoint:
    """The checkpoint that the settings name. Reads headers only and imports no torch, so a front can call it too."""
    model = config.model
    return open_checkpoint(
        model.model,
        revision=model.revision,
        load_format=model.load_format,
        tokenizer=model.tokenizer,
        tokenizer_revision=model.tokenizer_revision,
        hf_overrides=model.hf_overrides,
        generation_config=model.generation_config,
        override_generation_config=model.override_generation_config,
        download_dir=model.download_dir,
    )


def build_replica(config: EngineConfig, offline: bool, replica: Replica, outbox: Outbox) -> tuple[EngineLoop, dict[str, Any]]:
    """One of several engines, in its own process."""
    return build_engine(config, outbox, offline, replica)


@uncollected()
def build_engine(
    config: EngineConfig,
    outbox: Outbox,
    offline: bool = False,
    replica: Replica = ALONE,
    opening: Callable[[EngineConfig], Checkpoint] = open_model,
) -> tuple[EngineLoop, dict[str, Any]]:
    """The loop, ready to step, and what a front must know of it: `max_model_len`, `vocab_size`, the decisions and the start's timeline."""
    timeline = Timeline(time.monotonic)
    first_device = replica.local * config.parallel.world_size
    if offline:  # another engine's process was started there
        engine_place(config.parallel, first_device).enter()
    one_rank = config.parallel.world_size == 1  # of several, each begins in a process of its own
    early = begin_early(time.monotonic, first_device, config.compilation.optimization_level > 0) if one_rank else Early(time.monotonic, {})
    with timeline.stage("open checkpoint"):
        checkpoint = opening(config)
        architecture = Architecture.from_config(checkpoint.config)
    with timeline.stage("import torch"):
        from octavo.parallel.collectives import join
        from octavo.worker.build import build_runner, slot_need
        from octavo.worker.device import detect, take
    with timeline.stage("meet other hosts"):
        hosts = meet_hosts(config, detect)
    with timeline.stage("find device"):
        timeline.beside += early.wait()
        device = hosts.device or detect(num_needed=config.parallel.ranks_per_host, first=first_device)
    settings = resolve(config, checkpoint.config, device, offline=offline)
    log.info("memory of %s:\n%s\n\n%s", device.name, as_table(plan_memory(architecture, settings), settings), as_reasons(settings))
    note = starts.note_of(settings, architecture, device.name)
    starts.require(note, env.cache_root() / "starts")
    with timeline.stage("meet other replicas"):
        ranks = Ranks.of(settings, replica, hosts.address)
    executor: Executor
    if settings.executor_backend != "uni":
        with timeline.stage("start workers"):
            executor = start_workers(config, settings, first_device, ranks, hosts)
        timeline.replace_last(executor.told[0])
        layout = rank_layout(architecture, settings)
    else:
        if settings.device == "cpu" and (num_here := len(config.parallel.replicas_here)) > 1:
            cpu_places(num_here)[replica.local].enter()
        elif settings.device == "cpu" and not offline:  # this process is the engine's own; that of `LLM` is the user's
            own_place().enter()
        own = take(settings.device, first_device)
        meet, reopen = partial(join, ranks.meeting, ranks.first, own), partial(open_model, config)
        runner = build_runner(settings, architecture, checkpoint, timeline.stage, meet, reopen)
        executor, layout = InlineExecutor(runner, ranks), runner.layout
    slots = SlotPool(num_slots(settings), slot_need(settings, architecture.vocab))
    costs = LearnedCosts(cost_model(architecture, settings, device, (env.cache_root() / "costs", SHIPPED)), StepLog())
    cache = KVCache(layout, settings.enable_prefix_caching)
    grammars = Grammars(lambda: _vocabulary(checkpoint, architecture.vocab), time.monotonic)
    scheduler = Scheduler(settings, cache, [slots, grammars.preparation], step_budget(settings, costs))
    starts.keep(note, env.cache_root() / "starts")
    log.info("ready: %s", timeline)
    # Replicas in lock step record what they all run at once, when they run it.
    ahead = () if config.parallel.lock_step else (("record_pass", *room) for room in rooms(settings))
    loop = EngineLoop(scheduler, executor, outbox, time.monotonic, settings.overlap_depth, costs, grammars, ranks.others, ahead)
    return loop, info_of(settings, architecture, layout.num_blocks * settings.block_size, timeline)


def _vocabulary(checkpoint: Checkpoint, vocab_size: int) -> Vocabulary:
    """What grammars need of the tokeniser, made when the first constraint comes."""
    return Vocabulary(checkpoint.tokenizer(), vocab_size, checkpoint.eos_token_ids)


def meet_hosts(config: EngineConfig, detect: Callable[..., Device]) -> Hosts:
    """Those that have ranks of this engine beside its own host, or in its place. Raises `ConfigError` and `ExecutorDead`."""
    if config.parallel.distributed_executor_backend == "ray":
        return ray_hosts(config, detect, begin_workers)
    return other_hosts(config.parallel) if config.parallel.nnodes > 1 else Hosts()


def start_workers(config: EngineConfig, settings: Resolved, first_device: int, ranks: Ranks, hosts: Hosts) -> ProcessExecutor:
    """A process for each rank of this replica, on the devices from `first_device` on, here and on these other hosts."""
    task = Task(settings, ranks.meeting, ranks.first)
    for host in hosts.others:
        host.begin(task)
    ours = [] if hosts.device else [begin_workers(config, task, 0, first_device)]
    return ProcessExecutor([*ours, *hosts.others], keep=ranks)


def begin_workers(config: EngineConfig, task: Task, host: int, first_device: int) -> Workers:
    """Those of the ranks of a replica that run on one host, as that host's `config` finds the checkpoint."""
    num_here = config.parallel.ranks_per_host
    places = worker_places(config, task.settings, first_device, num_here)
    here = range(host * num_here, (host + 1) * num_here)
    for rank, place in zip(here, places):
        log.info("worker %d: %s", rank, place)
    args = (first_device - here.start, config, task.settings, task.meeting, task.first_rank)
    return Workers("octavo.engine.build:build_worker", args, config.parallel.world_size, here, places)


def worker_places(config: EngineConfig, settings: Resolved, first_device: int, num_ranks: int) -> list[Place]:
    """Where each worker's process runs; empty where nothing is asked. Raises `ConfigError` or `BadEnvironment`."""
    devices = range(first_device, first_device + num_ranks)
    if settings.device == "cpu":
        return cpu_places(num_ranks * len(config.parallel.replicas_here))[devices.start : devices.stop]
    return numa_places(config.parallel, devices) if config.parallel.numa_bind else []


def build_worker(
    rank: int, first_device: int, config: EngineConfig, settings: Resolved, meeting: Meeting, first_rank: int
) -> tuple[Worker, list[tuple[str, float]]]:
    """A worker in its own process, which opens the checkpoint itself; with it where the seconds of its start went."""
    early = begin_early(time.monotonic, first_device + rank, settings.device == "cuda" and settings.optimization_level > 0)
    from octavo.parallel.collectives import join
    from octavo.worker.build import build_runner
    from octavo.worker.device import take

    checkpoint = open_model(config)
    timeline = Timeline(time.monotonic)
    early.wait()
    device = take(settings.device, first_device + rank)
    architecture = Architecture.from_config(checkpoint.config)
    meet, reopen = partial(join, meeting, first_rank + rank, device), partial(open_model, config)
    runner = build_runner(settings, architecture, checkpoint, timeline.stage, meet, reopen)
    return runner, timeline.stages


def info_of(settings: Resolved, architecture: Architecture, kv_tokens: int, timeline: Timeline) -> dict[str, Any]:
    """Plain data, so that it can cross a process border."""
    return {
        "max_model_len": settings.max_model_len,
        "vocab_size": architecture.vocab,
        "hidden_size": architecture.hidden,
        "kv_tokens": kv_tokens,
        "block_size": settings.block_size,
        "max_num_seqs": settings.max_num_seqs,
        "reasons": dict(settings.reasons),
        "timeline": list(timeline.stages),
        "meanwhile": list(timeline.beside),
    }

"""Hosts of a Ray cluster: --distributed-executor-backend ray.

Ray finds the devices and starts an agent for each stage of the pipeline; plans and outcomes then go over the agents' own connections, as
between hosts that are started one by one. Each stage is one bundle of a placement group, so its tensor ranks are on one host; stages are
packed on as few hosts as have room.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from octavo import env
from octavo.cluster.agent import serve_host
from octavo.cluster.far import Hosts, gather
from octavo.cluster.mp_hosts import flags_of
from octavo.config.engine import EngineConfig
from octavo.config.fields import ConfigError
from octavo.config.parallel import ParallelConfig
from octavo.engine.executor import ExecutorDead
from octavo.engine.workers import Workers
from octavo.host.network import interface_of
from octavo.plan.devices import Device

log = logging.getLogger(__name__)
NAME = "distributed_executor_backend"
ROOM_S = 600.0  # until devices that others hold are given up


class Agent:
    """What Ray runs at each bundle."""

    def device(self, detect: Callable[..., Device], num_needed: int) -> Device:
        """The first of those that Ray has given to this bundle."""
        return detect(num_needed=num_needed)

    def serve(self, address: tuple[str, int], number: int, config: EngineConfig, begin: Callable[..., Workers]) -> None:
        """Start the workers of a stage and relay, until the engine ends."""
        serve_host(address, number, flags_of(config.parallel), lambda task: begin(config, task, number, 0))


def ray_hosts(config: EngineConfig, detect: Callable[..., Device], begin: Callable[..., Workers]) -> Hosts:
    """All stages on hosts of the cluster that `RAY_ADDRESS` names, of one that runs here, or of one that is started here.

    Raises `ConfigError` where Ray is not there or the cluster is too small, `ExecutorDead` when it does not give what it has.
    """
    ray = _ray()
    if not ray.is_initialized():
        ray.init(logging_level=logging.WARNING)
    group = _reserve(ray, config.parallel)
    try:
        return _start(ray, group, config, detect, begin)
    except BaseException:
        _release(ray, group)
        raise


def _ray() -> Any:
    try:
        import ray
        import ray.util.placement_group
    except ImportError as error:
        raise ConfigError(NAME, "ray", f"{error}; pip install 'octavo[ray]', or use mp") from None
    return ray


def _reserve(ray: Any, parallel: ParallelConfig) -> Any:
    """The placement group, once the cluster has room for it."""
    kind = "GPU" if ray.cluster_resources().get("GPU") else "CPU"
    each, stages = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    here = sorted((int(node["Resources"].get(kind, 0)) for node in ray.nodes() if node["Alive"]), reverse=True)
    if sum(count // each for count in here) < stages:
        need = f"{stages} stages of {each} {kind}s are needed, each on one host"
        raise ConfigError(NAME, "ray", f"{need}, and the cluster's hosts have {', '.join(map(str, here))}; use smaller sizes or add hosts")
    bundle = {"GPU": each, "CPU": 1} if kind == "GPU" else {"CPU": each}
    group = ray.util.placement_group([bundle] * stages, strategy="PACK")
    if not group.wait(ROOM_S):
        _release(ray, group)
        raise ExecutorDead(f"the Ray cluster has no room for {stages} x {bundle} within {ROOM_S:g} s: others hold its devices")
    return group


def _start(ray: Any, group: Any, config: EngineConfig, detect: Callable[..., Device], begin: Callable[..., Workers]) -> Hosts:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    agents: list[Any] = []
    for number, bundle in enumerate(group.bundle_specs):
        place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
        agent = ray.remote(Agent).options(num_cpus=bundle["CPU"], num_gpus=bundle.get("GPU", 0), scheduling_strategy=place)
        agents.append(agent.remote())
    address = ray.util.get_node_ip_address()
    env.meet_over(interface_of(address))
    devices: list[Device] = _results(ray, [agent.device.remote(detect, config.parallel.tensor_parallel_size) for agent in agents])
    with socket.create_server((address, 0), backlog=len(agents)) as listener:
        where = listener.getsockname()[:2]
        ends = [agent.serve.remote(where, number, config, begin) for number, agent in enumerate(agents)]
        hosts = gather(listener, range(len(agents)), flags_of(config.parallel), look=partial(_look, ray, ends))
    for host in hosts:
        host.afterwards = partial(_release, ray, group)
    return Hosts(hosts, address, min(devices, key=lambda device: device.free_bytes))


def _look(ray: Any, ends: Sequence[Any]) -> None:
    """An agent that has ended before all have come says why."""
    _results(ray, ray.wait(ends, timeout=0)[0])


def _results(ray: Any, futures: Sequence[Any]) -> list[Any]:
    try:
        return ray.get(list(futures))
    except ray.exceptions.RayTaskError as error:
        raise ExecutorDead(f"on the Ray cluster: {error.cause}") from None
    except ray.exceptions.RayError as error:
        raise ExecutorDead(f"on the Ray cluster: {error}") from None


def _release(ray: Any, group: Any) -> None:
    """Give the devices back, and end who still runs there."""
    with suppress(Exception):  # the cluster may be gone
        ray.util.remove_placement_group(group)

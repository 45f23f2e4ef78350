"""How the work is laid over devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from octavo.config.fields import ConfigError, Flag, at_least
from octavo.env import read_list

ExecutorBackend = Literal["uni", "mp", "ray"]
All2All = Literal[
    "allgather_reducescatter", "alltoall", "naive", "pplx", "deepep_high_throughput", "deepep_low_latency", "flashinfer_all2allv"
]


@dataclass(frozen=True)
class Replica:
    """Which of the engine's replicas a process is."""

    rank: int = 0  # among all
    local: int = 0  # among those on this host; neighbours take neighbouring devices
    coordinator: tuple[str, int] | None = None  # where those that share experts speak to each other


@dataclass(frozen=True)
class ParallelConfig:
    """Ranks of one instance."""

    tensor_parallel_size: Annotated[int, Flag("devices that share each layer", short=("-tp",))] = 1
    pipeline_parallel_size: Annotated[int, Flag("groups of devices that share the layers one after the other", short=("-pp",))] = 1
    data_parallel_size: Annotated[int, Flag("replicas of the engine", short=("-dp",))] = 1
    data_parallel_size_local: Annotated[int | None, Flag("replicas on this host; default: all", short=("-dpl",))] = None
    data_parallel_start_rank: Annotated[int | None, Flag("number of the first replica on this host; default: 0", short=("-dpr",))] = None
    data_parallel_rank: Annotated[
        int | None, Flag("number of the one replica that this server is, behind a balancer of yours", short=("-dpn",))
    ] = None
    data_parallel_address: Annotated[str, Flag("address of the host with the first replica", short=("-dpa",))] = "127.0.0.1"
    data_parallel_rpc_port: Annotated[int, Flag("port there at which replicas of other hosts come", short=("-dpp",))] = 29550
    data_parallel_hybrid_lb: Annotated[
        bool,
        Flag("an API on each host for its replicas, behind a balancer of yours; so it is with a start rank alone", short=("-dph",)),
    ] = False
    data_parallel_external_lb: Annotated[
        bool, Flag("an API for each replica, behind a balancer of yours; so it is where --data-parallel-rank is given", short=("-dpe",))
    ] = False
    enable_expert_parallel: Annotated[
        bool, Flag("lay whole experts over the devices of all replicas, in place of a part of each expert on every device", short=("-ep",))
    ] = False
    all2all_backend: Annotated[
        All2All | None,
        Flag(
            "how tokens reach experts on other devices: allgather_reducescatter, all tokens of all replicas to each; alltoall, each token "
            "only where it is needed, without CUDA graphs; further names stand for one of these two; default: nothing is moved where "
            "there is one replica, else allgather_reducescatter"
        ),
    ] = None
    distributed_executor_backend: Annotated[
        ExecutorBackend | None,
        Flag(
            "where workers run: uni, inside the engine's process; mp, each in a process of its own; ray, on the hosts of a Ray cluster; "
            "default: uni on one device, else mp"
        ),
    ] = None
    nnodes: Annotated[int, Flag("number of hosts that share the pipeline's stages, or the replicas", short=("-n",))] = 1
    node_rank: Annotated[int, Flag("this host's number among them, from 0; all but the first run --headless", short=("-r",))] = 0
    master_addr: Annotated[str, Flag("the first host's address")] = "127.0.0.1"
    master_port: Annotated[int, Flag("port there at which the other hosts come")] = 29501
    headless: Annotated[bool, Flag("run workers or engines for another host, without an API")] = False
    numa_bind: Annotated[bool, Flag("bind each GPU's process to the cores and the memory of the GPU's node (NUMA)")] = False
    numa_bind_nodes: Annotated[tuple[int, ...], Flag("with it: the node of each visible GPU; default: as the system says")] = ()
    numa_bind_cpus: Annotated[tuple[str, ...], Flag("with it: cores for each visible GPU, such as 0-15 16-31; default: its node's")] = ()

    def __post_init__(self) -> None:
        self._spread_replicas()
        self._check_numa()
        self._check_hosts()
        self._check_ray()
        self._check_replicas()
        if self.distributed_executor_backend == "uni" and self.world_size > 1:
            raise ConfigError("distributed_executor_backend", "uni", f"{self.world_size} devices need a process each; use mp")
        for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
            at_least(name, getattr(self, name), 1)

    def _spread_replicas(self) -> None:
        """Several hosts with replicas have as many each: what --nnodes and its like say of them, the replicas' own flags say as well."""
        hosts, size, rank = self.nnodes, self.data_parallel_size, self.node_rank
        if hosts <= 1 or size <= 1:
            return
        if size % hosts:
            raise ConfigError("nnodes", hosts, f"each host has whole replicas, as many as the others; use --data-parallel-size {hosts}")
        for name in ("data_parallel_size_local", "data_parallel_start_rank", "data_parallel_rank"):
            if getattr(self, name) is not None:
                raise ConfigError(name, getattr(self, name), "it follows from --nnodes and --node-rank; leave it out, or those")
        if rank >= hosts:
            raise ConfigError("node_rank", rank, f"--nnodes is {hosts}; use 0 to {hosts - 1}")
        if rank and not (self.headless or self.data_parallel_hybrid_lb):
            why = "the first host alone has the API; add --headless, or --data-parallel-hybrid-lb on all"
            raise ConfigError("node_rank", rank, why)
        each = size // hosts
        said = {
            "nnodes": 1, "node_rank": 0, "data_parallel_size_local": each, "data_parallel_start_rank": rank * each or None,
            "data_parallel_address": self.master_addr, "data_parallel_rpc_port": self.master_port,
        }  # fmt: skip
        for name, value in said.items():
            object.__setattr__(self, name, value)

    def _check_hosts(self) -> None:
        for name, low in (("nnodes", 1), ("node_rank", 0), ("master_port", 1)):
            at_least(name, getattr(self, name), low)
        if self.node_rank >= self.nnodes:
            raise ConfigError("node_rank", self.node_rank, f"--nnodes is {self.nnodes}; use 0 to {self.nnodes - 1}")
        if self.nnodes == 1:
            return
        if self.pipeline_parallel_size % self.nnodes:
            near = self.nnodes * max(1, round(self.pipeline_parallel_size / self.nnodes))
            raise ConfigError(
                "nnodes", self.nnodes,
                f"hosts share whole stages of the pipeline, and --pipeline-parallel-size is {self.pipeline_parallel_size}; use "
                f"--pipeline-parallel-size {near} (a multiple of {self.nnodes}) with up to as many --tensor-parallel-size as a host has "
                "devices for each stage",
            )  # fmt: skip
        if self.distributed_executor_backend == "ray":
            raise ConfigError("nnodes", self.nnodes, "Ray knows the hosts; leave it out, or use --distributed-executor-backend mp")
        if self.node_rank and not self.headless:
            raise ConfigError("node_rank", self.node_rank, "the first host alone has the API; add --headless")

    def _check_replicas(self) -> None:
        size, local, rank = self.data_parallel_size, self.data_parallel_size_local, self.data_parallel_rank
        at_least("data_parallel_rpc_port", self.data_parallel_rpc_port, 1)
        at_least("data_parallel_size_local", local, 1)
        for name in ("data_parallel_rank", "data_parallel_start_rank"):
            at_least(name, getattr(self, name), 0)
        if rank is not None and rank >= size:
            raise ConfigError("data_parallel_rank", rank, f"--data-parallel-size is {size}; use 0 to {size - 1}")
        if rank is not None and (self.data_parallel_hybrid_lb or self.headless or self.data_parallel_start_rank or (local or 1) > 1):
            why = "it is one replica with an API of its own; for several, or none with an API, use --data-parallel-start-rank"
            raise ConfigError("data_parallel_rank", rank, why)
        if self.data_parallel_external_lb and rank is None:
            raise ConfigError("data_parallel_external_lb", True, "it needs this replica's number; add --data-parallel-rank")
        if self.data_parallel_hybrid_lb and (local is None or self.headless):
            why = "each host has an API for its own replicas; give --data-parallel-size-local, without --headless"
            raise ConfigError("data_parallel_hybrid_lb", True, why)
        if self.replicas_here.stop > size:
            first, last = self.replicas_here.start, self.replicas_here.stop - 1
            why = f"replicas {first} to {last} would be here, and --data-parallel-size is {size}; use at most {size - first}"
            raise ConfigError("data_parallel_size_local", local, why)
        if self.headless and self.nnodes == 1 and self.replicas_here.start == 0:
            why = "the first host has the API; leave it out here, or give this host's --node-rank or --data-parallel-start-rank"
            raise ConfigError("headless", True, why)

    def _check_ray(self) -> None:
        if self.distributed_executor_backend == "ray" and self.lock_step:
            raise ConfigError("distributed_executor_backend", "ray", "replicas that share experts meet outside of Ray; use mp")

    def _check_numa(self) -> None:
        for name, entries in (("numa_bind_nodes", self.numa_bind_nodes), ("numa_bind_cpus", self.numa_bind_cpus)):
            if entries and not self.numa_bind:
                raise ConfigError(name, " ".join(map(str, entries)), "it says where to bind to; add --numa-bind")
        for node in self.numa_bind_nodes:
            at_least("numa_bind_nodes", node, 0)
        for text in self.numa_bind_cpus:
            try:
                read_list(text)
            except ValueError as error:
                raise ConfigError("numa_bind_cpus", text, f"{error}; give one list for each visible GPU, such as 0-15 16-31") from None

    @property
    def lock_step(self) -> bool:
        """Whether replicas share experts, so that they take their steps together."""
        return self.enable_expert_parallel and self.data_parallel_size > 1

    @property
    def world_size(self) -> int:
        """Devices of one replica."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def ranks_per_host(self) -> int:
        """Devices of one replica on one host."""
        if self.distributed_executor_backend == "ray":
            return self.tensor_parallel_size
        return self.world_size // self.nnodes

    @property
    def replicas_here(self) -> range:
        """The numbers of the replicas on this host."""
        if self.data_parallel_rank is not None:
            return range(self.data_parallel_rank, self.data_parallel_rank + 1)
        first = self.data_parallel_start_rank or 0
        return range(first, first + (self.data_parallel_size_local or self.data_parallel_size - first))

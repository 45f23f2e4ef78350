"""Over which ranks whole experts lie, and how tokens reach them: what was asked, against what the model has."""

from __future__ import annotations

from octavo.config.architecture import Architecture
from octavo.config.fields import ConfigError
from octavo.config.parallel import ParallelConfig

ALL_TO_ALL = ("pplx", "deepep_high_throughput", "deepep_low_latency", "flashinfer_all2allv")  # names for libraries that do it


def expert_ranks(asked: ParallelConfig, arch: Architecture, reasons: dict[str, str]) -> tuple[int, str]:
    """(ranks, dispatch): 1 and "local" where each expert is cut like other layers. Raises `ConfigError`."""
    if not asked.enable_expert_parallel:
        return 1, "local"
    num = min((layer.experts.num for layer in arch.layers if layer.experts), default=0)
    ranks = asked.tensor_parallel_size * asked.data_parallel_size
    if not num:
        raise ConfigError("enable_expert_parallel", True, "the model has no experts; leave it out")
    if ranks > num:
        raise ConfigError(
            "enable_expert_parallel", True,
            f"the model has {num} experts a layer, fewer than --tensor-parallel-size x --data-parallel-size = {ranks} ranks; what works: "
            f"up to {num} ranks, such as {', '.join(str(size) for size in range(1, num + 1) if num % size == 0)}",
        )  # fmt: skip
    reasons["expert_parallel_size"] = f"{num} experts over {ranks} ranks" if ranks > 1 else "one rank has all experts"
    return ranks, _dispatch(asked, reasons)


def _dispatch(asked: ParallelConfig, reasons: dict[str, str]) -> str:
    given = asked.all2all_backend
    if given == "alltoall" or given in ALL_TO_ALL:
        reasons["dispatch"] = "as asked" if given == "alltoall" else f"what {given} does, over NCCL or gloo"
        return "alltoall"
    if asked.data_parallel_size == 1:
        reasons["dispatch"] = "all ranks have the same tokens"
        return "local"
    reasons["dispatch"] = "as asked" if given == "allgather_reducescatter" else "default"
    return "allgather_reducescatter"

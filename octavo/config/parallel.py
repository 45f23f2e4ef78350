"""How the work is laid over devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from octavo.config.fields import Flag, at_least


@dataclass(frozen=True)
class ParallelConfig:
    """Ranks of one instance."""

    tensor_parallel_size: Annotated[int, Flag("devices that share each layer", short=("-tp",))] = 1
    pipeline_parallel_size: Annotated[int, Flag("groups of devices that share the layers one after the other", short=("-pp",))] = 1
    data_parallel_size: Annotated[int, Flag("replicas of the engine", short=("-dp",))] = 1

    def __post_init__(self) -> None:
        for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
            at_least(name, getattr(self, name), 1)

    @property
    def world_size(self) -> int:
        """Devices of one replica."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

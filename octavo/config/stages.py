"""Which layers each rank of a pipeline holds. Plain numbers: the planner asks too."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """The layers of one pipeline rank: the first also embeds, the last also has the final norm and the head."""

    layers: range
    first: bool = True
    last: bool = True


def stage(num_layers: int, rank: int, size: int) -> Stage:
    """Rank `rank` of `size`. Every layer is on exactly one stage, in order; the stages that carry the embedding or the head are not
    the longer ones as long as there is a choice. Raises ValueError when there are fewer layers than stages."""
    if size > num_layers:
        raise ValueError(f"pipeline_parallel_size = {size} is more than the model's {num_layers} layers; use at most {num_layers}")
    each, extra = divmod(num_layers, size)
    longer_from = max(0, size - 1 - extra)  # the extra layers go to the stages just before the last
    counts = [each + (longer_from <= i < longer_from + extra) for i in range(size)]
    start = sum(counts[:rank])
    return Stage(range(start, start + counts[rank]), first=rank == 0, last=rank == size - 1)


def stages(num_layers: int, size: int) -> list[Stage]:
    """Of every rank."""
    return [stage(num_layers, rank, size) for rank in range(size)]

"""Which steps are recorded as graphs, and for which sizes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice, product

from octavo.config.engine import EngineConfig
from octavo.config.resolved import Resolved
from octavo.plan.devices import Device

GRAPH_LIMIT = 512  # largest batch, in tokens, that is recorded by default
SHARED_GRAPH_LIMIT = 1024  # and where ranks share each layer: a rank whose launches are late keeps all others waiting
# Tokens. Below some 200 a pass takes as long as reading the weights, so a few sizes do; above the last one the device takes longer than
# launching, even where others keep the host from it for half of the time.
PASS_SIZES = (32, *range(128, 1409, 128))
FEW_SLICES = 64
FEW = (1, 2, 4, 8)  # where passes stand in for decode steps too


def graph_mode(asked: EngineConfig, device: Device, dispatch: str, reasons: dict[str, str]) -> str:
    """`--cudagraph-mode`, or what the level and the layout over ranks allow; a tape on a CPU counts as a graph."""
    compilation = asked.compilation
    if dispatch == "alltoall":
        reasons["graph_mode"] = "ranks wait to hear how many tokens they exchange, which graphs cannot capture"
        return "NONE"
    if asked.parallel.lock_step and device.kind == "cpu":
        reasons["graph_mode"] = "replicas agree on the size of each step"
        return "NONE"
    if compilation.enforce_eager or compilation.optimization_level == 0:
        reasons["graph_mode"] = "--enforce-eager" if compilation.enforce_eager else "-O0"
        return "NONE"
    if asked.parallel.lock_step and compilation.cudagraph_mode != "NONE":
        reasons["graph_mode"] = "replicas agree on the size of each step: passes of the model are recorded by size, sampling is not"
        return "PIECEWISE"
    reasons["graph_mode"] = "as asked" if compilation.cudagraph_mode else f"-O{compilation.optimization_level}"
    if device.kind == "cpu" and compilation.optimization_level > 1 and compilation.cudagraph_mode != "NONE":
        reasons["graph_mode"] += ": decode steps are recorded as tapes when they first come"
        return "FULL_DECODE_ONLY"
    return compilation.cudagraph_mode or ("PIECEWISE" if compilation.optimization_level == 1 else "FULL_AND_PIECEWISE")


def graph_sizes(asked: EngineConfig, settings: Resolved) -> tuple[int, ...]:
    """Batch sizes, in tokens, to record: fine steps where batches are small, coarse ones above."""
    if settings.graph_mode == "NONE":
        return ()
    if settings.device == "cpu":  # a tape is made in milliseconds, and padding would cost products time
        return tuple(range(1, settings.max_num_seqs + 1))
    given = asked.compilation.cudagraph_capture_sizes
    if given:
        return tuple(sorted({size for size in given if size <= settings.max_num_batched_tokens}))
    limit = GRAPH_LIMIT if settings.tensor_parallel_size == 1 else SHARED_GRAPH_LIMIT
    top = asked.compilation.max_cudagraph_capture_size or min(2 * settings.max_num_seqs, limit)
    top = min(top, settings.max_num_batched_tokens)
    # A quarter more sequences than there are is the most that padding adds: it costs products a little and attention nothing.
    sizes = (1, 2, 4, *range(8, 32, 8), *range(32, 128, 16), *range(128, 256, 32), *range(256, 512, 64), *range(512, top + 1, 128))
    return tuple(size for size in sizes if size <= top)


def pass_sizes(asked: EngineConfig, settings: Resolved) -> tuple[int, ...]:
    """Tokens of the steps, whatever is in them, over which the model's pass is recorded when they come again and again."""
    if settings.device == "cpu" or settings.graph_mode in ("NONE", "FULL_DECODE_ONLY"):
        return ()
    if settings.pipeline_parallel_size > 1 or settings.batch_invariant:  # stages wait for each other; kernels are cut by what is there
        return ()
    most = min(asked.compilation.max_cudagraph_capture_size or PASS_SIZES[-1], settings.max_num_batched_tokens)
    usual = (*FEW, *PASS_SIZES) if asked.parallel.lock_step else PASS_SIZES
    return tuple(sorted({size for size in asked.compilation.cudagraph_capture_sizes or usual if size <= most}))


def slice_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Two, since an empty place costs attention next to nothing, and every further one would have to be met, and recorded, for itself."""
    return (FEW_SLICES, max_num_seqs) if max_num_seqs > FEW_SLICES else (max_num_seqs,)


def rooms(settings: Resolved) -> Iterator[tuple[int, int]]:
    """Tokens and slices of all passes that are recorded: those of few slices first."""
    return ((tokens, slices) for slices, tokens in product(slice_sizes(settings.max_num_seqs), settings.pass_sizes))


def first_rooms(settings: Resolved) -> Iterator[tuple[int, int]]:
    """Of them those that are recorded before the first request: that of the first short prompts, which would wait for it. Where replicas
    step together all that their steps come to (`Runner` has them by tokens alone), since none of them can record while another waits."""
    if settings.data_parallel_size == 1 or settings.expert_parallel_size == 1:
        yield from islice(rooms(settings), 1)
        return
    places, most = slice_sizes(settings.max_num_seqs), settings.max_num_seqs
    for smaller, tokens in zip((0, *settings.pass_sizes), settings.pass_sizes):
        first, last = (bisect_left(places, min(number, most)) for number in (smaller + 1, tokens))
        yield from ((tokens, slices) for slices in places[first : last + 1])

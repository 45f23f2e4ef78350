"""What is not as good as it could be about a plan, before anything runs: each with its evidence and the flag to move. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from octavo.config.architecture import Architecture
from octavo.config.fields import ConfigError
from octavo.config.resolved import Resolved
from octavo.plan.devices import Device
from octavo.plan.memory import MemoryPlan
from octavo.plan.predict import Prediction

WASTED = 0.05  # share of a sequence's blocks that it does not fill, from which a smaller block is worth naming
WORTH = 0.05  # of throughput, from which another setting is
FP8_SM = 89

Again = Callable[[Resolved], Prediction]  # the same load with other settings, their `kv_bytes` as given


@dataclass(frozen=True)
class Remark:
    """One thing to know."""

    kind: str
    text: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Planned:
    """What is judged."""

    arch: Architecture
    settings: Resolved
    device: Device
    plan: MemoryPlan
    expected: Prediction
    again: Again
    cores: int  # physical, that the layout takes; 0: not of this machine


def remarks_on(planned: Planned) -> list[Remark]:
    """In the order in which they matter."""
    found = (check(planned) for check in (_few_sequences, _kv_bound, _fp8, _links, _block, _cores))
    return [one for one in found if one is not None]


def _few_sequences(planned: Planned) -> Remark | None:
    most, length = planned.plan.max_concurrency, planned.settings.max_model_len
    if most >= 2:
        return None
    text = f"only {most:.2f} sequences of --max-model-len {length:,} fit: one of them holds up all others"
    return Remark("few-sequences", f"{text}; lower it, or take more devices", ("--max-model-len", "--tensor-parallel-size"))


def _kv_bound(planned: Planned) -> Remark | None:
    expected = planned.expected
    if expected.bound != "KV memory":
        return None
    seqs = planned.settings.max_num_seqs
    text = f"KV-bound: memory ends the capacity at {expected.full.sequences:,.0f} sequences, before --max-num-seqs {seqs:,} does"
    return Remark("kv-bound", text, ("--gpu-memory-utilization", "--kv-cache-dtype", "--max-num-seqs"))


def _fp8(planned: Planned) -> Remark | None:
    settings, now = planned.settings, planned.expected
    plain = settings.device == "cuda" and settings.kv_dtype in ("bfloat16", "float16") and planned.arch.latent is None
    if not plain or planned.device.sm < FP8_SM:
        return None
    then = planned.again(replace(settings, kv_dtype="fp8_e4m3"))
    gain = then.full.requests_per_s / now.full.requests_per_s - 1
    if gain < WORTH:
        return None
    text = f"--kv-cache-dtype fp8 would hold twice the tokens: {then.full.sequences:,.0f} sequences at once, {gain:+.0%} throughput"
    return Remark("fp8-kv", text, ("--kv-cache-dtype",))


def _links(planned: Planned) -> Remark | None:
    settings, ranks = planned.settings, planned.settings.tensor_parallel_size
    if ranks == 1 or planned.device.has_fast_links:
        return None
    layers = planned.arch.num_layers
    if settings.pipeline_parallel_size * ranks > layers:
        return None
    staged = replace(settings, tensor_parallel_size=1, pipeline_parallel_size=settings.pipeline_parallel_size * ranks)
    try:
        then = planned.again(staged)
    except (ValueError, ConfigError):
        return None
    gain = then.full.requests_per_s / planned.expected.full.requests_per_s - 1
    if gain < 0:
        return None
    text = f"{planned.device.name} has no NVLink: --pipeline-parallel-size {staged.pipeline_parallel_size} in place of "
    text += f"--tensor-parallel-size {ranks} would give {gain:+.0%} throughput"
    return Remark("links", text, ("--pipeline-parallel-size", "--tensor-parallel-size"))


def _block(planned: Planned) -> Remark | None:
    size, length = planned.settings.block_size, planned.expected.input_len + planned.expected.output_len
    wasted = (-(-length // size) * size - length) / length
    if wasted < WASTED or size <= 8:
        return None
    text = f"blocks of {size} tokens leave {wasted:.0%} of what sequences of {length:,} hold empty: a smaller --block-size"
    return Remark("block-size", text, ("--block-size",))


def _cores(planned: Planned) -> Remark | None:
    here = planned.device.cores
    if not here or here >= planned.cores or planned.device.kind == "cpu":
        return None
    return Remark("cores", f"{planned.cores} physical cores are wanted, and this process may use {here}")

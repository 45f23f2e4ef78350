"""What a load would find: latencies, throughput, and the devices and cores it needs; from the cost model, in a few steps of arithmetic.

This is the steady state without chance: as many sequences in every phase as arrive. `octavo simulate` has queues, bursts and mixed lengths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from octavo.config.resolved import Resolved
from octavo.core.kv.layout import KVLayout
from octavo.core.plan import StepShape
from octavo.plan.cost import CostModel, StepTimes
from octavo.plan.memory import sequence_blocks

LIGHT_USE, FULL_USE = 0.70, 0.85  # shares of the capacity that are planned with; the rest is for bursts


@dataclass(frozen=True)
class State:
    """An engine in steady state with so many sequences under way."""

    sequences: float
    step_s: float
    requests_per_s: float
    ttft_s: float  # with no queue: the rest of a step, the prompt's own steps

    @property
    def itl_s(self) -> float:
        return self.step_s


@dataclass(frozen=True)
class Prediction:
    """For requests of one length on one replica."""

    input_len: int
    output_len: int
    alone: State  # one request at a time
    light: State  # at LIGHT_USE of the capacity
    full: State  # as many as fit: the capacity
    bound: str  # what limits it there

    @property
    def output_tokens_per_s(self) -> float:
        return self.full.requests_per_s * self.output_len

    @property
    def prompt_tokens_per_s(self) -> float:
        return self.full.requests_per_s * self.input_len


def predict(costs: CostModel, settings: Resolved, layout: KVLayout, input_len: int, output_len: int) -> Prediction:
    """From one request at a time to as many as rows, KV memory and the step's budget let run.

    The stages of a pipeline run a step each at the same time, with an equal part of the sequences.
    """
    budget, length, stages = settings.max_num_batched_tokens, input_len + output_len, settings.pipeline_parallel_size
    held = input_len + max(1, output_len // 2)  # half of the output, on average
    limits = {
        "--max-num-seqs": float(settings.max_num_seqs),
        "KV memory": layout.num_blocks / sequence_blocks(layout, held, budget),
        "--max-num-batched-tokens": stages * budget * output_len / length,  # what it takes to feed that many
    }
    bound = min(limits, key=lambda name: limits[name])

    def at(sequences: float) -> State:
        return _state(costs, budget, sequences, stages, input_len, output_len)

    full = at(max(1.0, limits[bound]))
    return Prediction(
        input_len, output_len, alone=_alone(costs, budget, input_len, output_len), full=full, bound=bound,
        light=at(_sequences_at(lambda n: at(n).requests_per_s, LIGHT_USE * full.requests_per_s, full.sequences)),
    )  # fmt: skip


def _prompt_steps(costs: CostModel, budget: int, input_len: int, decodes: float, context: float) -> list[float]:
    """Seconds of the steps that a prompt takes beside so many decoding sequences of that context each."""
    found: list[float] = []
    done, room = 0, max(1, budget - int(decodes))
    while done < input_len:
        n = min(room, input_len - done)
        last = done + n == input_len
        pairs = n * done + n * (n + 1) // 2
        shape = StepShape(int(decodes) + n, int(decodes) + 1, int(decodes) + last, n, pairs, int(decodes * context))
        found.append(costs.seconds(shape))
        done += n
    return found


def _alone(costs: CostModel, budget: int, input_len: int, output_len: int) -> State:
    ttft_s = sum(_prompt_steps(costs, budget, input_len, 0, 0))
    step_s = costs.seconds(StepShape(1, 1, 1, 0, 0, input_len + output_len // 2))
    return State(1, step_s, 1 / (ttft_s + (output_len - 1) * step_s), ttft_s)


def _state(costs: CostModel, budget: int, sequences: float, stages: int, input_len: int, output_len: int) -> State:
    """Every step decodes one token of each of its sequences. The prompts of those that replace the ones that end come in some of the steps,
    as chance has it; those steps are no graphs. Of steps of both kinds the host's time hides the device's, or the other way round."""
    part = sequences / stages
    prompts = part / output_len  # a step
    context = input_len + output_len / 2
    share = -math.expm1(-prompts)  # of the steps that read prompts

    def times(fed: float) -> StepTimes:
        decoding = max(1, round(part))
        pairs = round(fed * input_len / 2)
        return costs.times(StepShape(round(part + fed), decoding, decoding, math.ceil(fed), pairs, round(part * context)))

    step_s = max(share * mixed + (1 - share) * plain for mixed, plain in zip(times(prompts * input_len / share), times(0.0)))
    ttft_s = step_s / 2 + sum(_prompt_steps(costs, budget, input_len, part, context))
    return State(sequences, step_s, stages * prompts / step_s, ttft_s)


def _sequences_at(rate: Callable[[float], float], wanted: float, most: float) -> float:
    """How many sequences give a rate, which rises with them."""
    low, high = 0.0, most
    for _ in range(40):
        middle = (low + high) / 2
        if rate(middle) < wanted:
            low = middle
        else:
            high = middle
    return max(1.0, high)


@dataclass(frozen=True)
class Fleet:
    """What a load needs, between full and light use."""

    replicas: tuple[int, int]
    devices: tuple[int, int]


def fleet_for(prediction: Prediction, input_tokens_per_s: float, output_tokens_per_s: float, devices_per_replica: int) -> Fleet:
    """Replicas for a load of so many prompt and output tokens a second, at 85 % and at 70 % of their capacity."""
    need = max(input_tokens_per_s / prediction.prompt_tokens_per_s, output_tokens_per_s / prediction.output_tokens_per_s)
    fewest, most = (max(1, math.ceil(need / use - 1e-9)) for use in (FULL_USE, LIGHT_USE))
    return Fleet((fewest, most), (fewest * devices_per_replica, most * devices_per_replica))


def cores_needed(tensor: int, pipeline: int, data: int, fronts: int | None = None) -> int:
    """Physical cores: one for each front (as many as replicas, if not said), engine and worker, and one to coordinate replicas."""
    fronts = data if fronts is None else fronts
    return fronts + data + tensor * pipeline * data + (data > 1)


def as_lines(prediction: Prediction, costs: CostModel) -> list[str]:
    """A few lines for the page."""

    def line(name: str, state: State) -> str:
        times = f"{1000 * state.ttft_s:>11,.0f} ms{1000 * state.itl_s:>11.1f} ms"
        made = state.requests_per_s * prediction.output_len
        return f"    {name:<22}{state.requests_per_s:>12.2f}{state.sequences:>10,.0f}{times}{made:>18,.0f}"

    return [
        f"  requests of {prediction.input_len:,} + {prediction.output_len:,} tokens, by {costs.origin}:",
        f"    {'':<22}{'requests/s':>12}{'at once':>10}{'first token':>14}{'next tokens':>14}{'output tokens/s':>18}",
        line("one at a time", prediction.alone),
        line(f"{LIGHT_USE:.0%} of the capacity", prediction.light),
        line("the capacity", prediction.full),
        f"    the capacity ends at {prediction.bound}",
    ]


def as_data(prediction: Prediction, costs: CostModel) -> Mapping[str, Any]:
    """The same for programs; seconds."""
    return {
        **asdict(prediction),
        "output_tokens_per_s": prediction.output_tokens_per_s,
        "prompt_tokens_per_s": prediction.prompt_tokens_per_s,
        "costs": costs.origin,
    }

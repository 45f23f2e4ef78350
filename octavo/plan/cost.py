"""How long a step takes: a roofline from a model's shapes and a device's rates, corrected by what the engine measured. No torch.

A step has two times that overlap with those of its neighbours: what the host takes to plan and launch it, and what the device takes to run
it. The device's is a sum of terms, each of them what the hardware needs at its best. A coefficient a term says by how much reality differs;
without measurements the coefficients are common ones, and `plan/fit.py` finds better ones, and the host's times, from recorded steps.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from operator import mul
from pathlib import Path
from typing import Any, NamedTuple

from octavo.config.architecture import Architecture
from octavo.config.resolved import Resolved
from octavo.core.kv.specs import DTYPE_BYTES
from octavo.core.plan import StepShape
from octavo.plan.devices import Device, table_name
from octavo.plan.memory import active_parameters, kv_bytes_per_token, mlp_activations, num_parameters, one_rank, weight_bytes

log = logging.getLogger(__name__)

CPU_BYTES_S, CPU_FLOPS = 9e9, 60e9  # of one core, where nothing better is known
STEP_S = {"cuda": 250e-6, "cpu": 300e-6}  # outside the layers: the host's part that is not hidden, sampling, copies
LAYER_S = {"cuda": 9e-6, "cpu": 20e-6}  # a layer's start of work that no rate explains: launches and their tails
GRAPH_S = 400e-6  # of the host, to plan, launch and commit a step that is a recorded graph
PASS_S = 2.4e-3  # ... one whose pass is (measured beside an H200)
EAGER_LAYER_S = {"cuda": 600e-6, "cpu": 0.0}  # of the host, to launch a layer of any other step (measured beside an H200)
WORKER_LAYER_S = {"cuda": 100e-6, "cpu": 0.0}  # of a worker in a process of its own, to do so, as far as the steps before do not hide it
HOST_SEQUENCE_S, HOST_TOKEN_S = 2e-6, 20e-9  # of the host, for each sequence and each prompt token
SEQUENCE_S = 1e-6  # host and sampling, for each sequence of a step
KNEE = 1.5  # exponent of the norm that joins the time for reading weights and the time for products (measured on H200, bfloat16)
FEW_TOKENS = 8
LINK_BYTES_S, LINK_SHARE, LINK_S = 300e9, 2 / 3, 8e-6  # of an all-reduce in one host: where links are not known, of theirs, its start


class Terms(NamedTuple):
    """The parts of a step's time in seconds; also their coefficients."""

    step: float  # what every step costs
    weights: float  # reading them once
    products: float  # matrix products, as far as they take longer than that
    few: float  # products of the first tokens of a step once more: some kernels are slower with few
    attention: float  # of prompt tokens with what is before them
    kv: float  # reading the context of sequences that decode
    activations: float  # moving what passes between the products
    sequences: float
    collectives: float  # between ranks that share each layer
    eager: float = 0.0  # launching a step that is no recorded graph, by workers of their own, as far as that is longer than all else
    parts: float = 0.0  # what a step costs more that is not one graph as a whole: its sampling, and what lies between
    launched: float = 0.0  # and one whose pass is no graph either: the device waits for its operations here and there (else `eager`)


COMMON = Terms(step=1.0, weights=1.13, products=1.3, few=0.0, attention=2.0, kv=1.25, activations=1.25, sequences=1.0, collectives=1.0,
               eager=1.0, parts=1.0, launched=4.0)  # fmt: skip


class Recorded(Enum):
    """What of a step is a graph."""

    WHOLE = "whole"
    PASS = "pass"  # the model's, without the sampling
    NOTHING = "nothing"


Size = tuple[Recorded, int]  # a recorded step's kind, and the tokens that it is padded to


class Swing(NamedTuple):
    """By how much steps of one kind differ from what is foreseen of them: ratios in rising order, evenly spaced among what was measured."""

    launch: tuple[float, ...]
    device: tuple[float, ...]  # of a device that has just multiplied nothing
    warm: float = 0.0  # what is to be added for each share of the time before that went to products


class StepTimes(NamedTuple):
    """A step's two times in seconds. The host launches a step while the device runs those before it."""

    launch_s: float  # the host's
    device_s: float


class Launch(NamedTuple):
    """What the host takes from one result to having launched the next step, in seconds."""

    graph_s: float  # a step that is a recorded graph as a whole
    pass_s: float  # one whose pass is
    eager_s: float  # any other
    sequence_s: float  # for each sequence
    token_s: float  # for each prompt token

    @staticmethod
    def of(arch: Architecture, settings: Resolved, device: Device) -> Launch:
        """A guess. Workers in processes of their own launch by themselves: for the host a step is then a message."""
        inline = settings.executor_backend == "uni"
        layers_s = EAGER_LAYER_S[device.kind] * arch.num_layers if inline else 0.0
        return Launch(GRAPH_S, PASS_S if inline else GRAPH_S, GRAPH_S + layers_s, HOST_SEQUENCE_S, HOST_TOKEN_S)

    def terms(self, shape: StepShape, recorded: Recorded) -> tuple[float, float, float, float, float]:
        """The parts of one step's time."""
        kinds = (
            self.graph_s if recorded is Recorded.WHOLE else 0.0,
            self.pass_s if recorded is Recorded.PASS else 0.0,
            self.eager_s if recorded is Recorded.NOTHING else 0.0,
        )
        return (*kinds, shape.num_sequences * self.sequence_s, shape.prefill_tokens * self.token_s)


@dataclass(frozen=True)
class Roofline:
    """A model on a device as rates: seconds per unit of a step's shape."""

    step_s: float
    weights_s: float
    token_products_s: float
    sampled_products_s: float  # of the head, for each position at which a token is sampled
    pair_s: float
    kv_token_s: float  # in layers of full attention
    windows: tuple[tuple[int, float], ...]  # (window, seconds a token within it) of the other layers
    token_activations_s: float
    sequence_s: float
    collective_s: float
    token_collective_s: float
    eager_s: float = 0.0
    decode_sizes: tuple[int, ...] = ()  # sequences of the steps of decodes that are recorded as graphs, ascending
    pass_sizes: tuple[int, ...] = ()  # tokens of steps of any kind whose pass is recorded; all larger ones are launched
    on_host: bool = False  # the host itself is the device: it launches a step by running it
    idle_s: float = 0.0  # of the weights, the experts' that one token does not go to,
    passed_over: float = 0.0  # and how likely a token goes past an expert
    knee: float = KNEE

    @staticmethod
    def of(arch: Architecture, settings: Resolved, device: Device) -> Roofline:
        """Of the ranks that share each layer. A pipeline's stages count as one: its step takes as long, though others can follow sooner."""
        bandwidth, flops = rates(device, settings.dtype)
        size, ranks = DTYPE_BYTES[settings.dtype], settings.tensor_parallel_size
        link_bytes_s = LINK_SHARE * device.link_bytes_s or LINK_BYTES_S
        held = num_parameters(one_rank(arch, ranks, experts=settings.expert_parallel_size))
        arch = one_rank(arch, ranks)
        weight_size = weight_bytes(arch, settings.dtype, settings.packed) / num_parameters(arch)
        head = arch.vocab * arch.hidden
        ends = head * (1 if arch.tied_embeddings else 2)
        layers, active = held - ends, active_parameters(arch) - ends
        experts = {layer.experts for layer in arch.layers if layer.experts}
        token_bytes = kv_bytes_per_token(arch, settings.kv_dtype) / arch.num_layers / bandwidth
        windows = [layer.window for layer in arch.layers if layer.window is not None]
        inner = mlp_activations(arch, arch.layers[-1].experts)
        moved = 8 * arch.hidden + 2 * (arch.q_dim + arch.kv_dim) + inner + inner // 3  # read and written, for each token and layer
        collectives = 2 * arch.num_layers if ranks > 1 else 0
        return Roofline(
            step_s=STEP_S[device.kind] + LAYER_S[device.kind] * arch.num_layers,
            weights_s=(layers + head) * weight_size / bandwidth,
            token_products_s=2 * active / flops,
            sampled_products_s=2 * head / flops,
            pair_s=2 * arch.heads * arch.pair_dims * arch.num_layers / flops,
            kv_token_s=token_bytes * (arch.num_layers - len(windows)),
            windows=tuple((window, token_bytes * windows.count(window)) for window in sorted(set(windows))),
            token_activations_s=moved * arch.num_layers * size / bandwidth,
            sequence_s=SEQUENCE_S + 4 * arch.vocab * 3 / bandwidth,
            collective_s=collectives * LINK_S,
            token_collective_s=collectives * arch.hidden * size * 2 * (ranks - 1) / ranks / link_bytes_s,
            eager_s=0.0 if settings.executor_backend == "uni" else WORKER_LAYER_S[device.kind] * arch.num_layers,
            decode_sizes=decode_sizes(settings),
            pass_sizes=settings.pass_sizes,
            on_host=settings.device == "cpu" and settings.executor_backend == "uni",
            idle_s=max(0, layers - active) * weight_size / bandwidth,
            passed_over=max((1 - e.choice.per_token / e.num for e in experts), default=0.0),
        )

    def kv_s(self, context: int, num_sequences: int) -> float:
        """Reading so many tokens, of so many sequences that decode."""
        seconds = context * self.kv_token_s
        for window, token_s in self.windows:
            seconds += min(context, window * num_sequences) * token_s
        return seconds

    def recorded(self, shape: StepShape) -> Size:
        """What of such a step is a graph, and the tokens that it is padded to."""
        num_tokens = shape.num_tokens
        if not shape.prefill_tokens and num_tokens == shape.num_sequences:
            at = bisect_left(self.decode_sizes, num_tokens)
            if at < len(self.decode_sizes):
                return Recorded.WHOLE, self.decode_sizes[at]
        at = bisect_left(self.pass_sizes, num_tokens)
        if at < len(self.pass_sizes):
            return Recorded.PASS, self.pass_sizes[at]
        return Recorded.NOTHING, num_tokens

    def terms(self, shape: StepShape) -> Terms:
        """What each part of the step needs of the device, at the hardware's best."""
        _, num_sequences, num_sampled, _, prefill_pairs, context = shape
        recorded, num_tokens = self.recorded(shape)
        products_s = num_tokens * self.token_products_s + num_sampled * self.sampled_products_s
        weights_s = self.weights_s
        if self.idle_s:
            weights_s -= self.idle_s * self.passed_over ** max(0, num_tokens - 1)
        both_s: float = (weights_s**self.knee + products_s**self.knee) ** (1 / self.knee)
        kv_s = self.kv_s(context, num_sequences)
        found = Terms(
            self.step_s,
            weights_s,
            both_s - weights_s,
            (num_tokens if num_tokens < FEW_TOKENS else FEW_TOKENS) * self.token_products_s,
            prefill_pairs * self.pair_s,
            kv_s,
            num_tokens * self.token_activations_s,
            num_sequences * self.sequence_s,
            self.collective_s + num_tokens * self.token_collective_s,
            0.0,
            self.step_s if recorded is not Recorded.WHOLE else 0.0,
            self.step_s if recorded is Recorded.NOTHING and not self.eager_s else 0.0,
        )
        if not self.eager_s or recorded is not Recorded.NOTHING:
            return found
        beside_s = sum([coefficient * term for coefficient, term in zip(COMMON, found)])
        return found._replace(eager=max(0.0, self.eager_s - beside_s))


def decode_sizes(settings: Resolved) -> tuple[int, ...]:
    """Sequences of the steps of decodes that these settings record as a whole."""
    whole = settings.graph_sizes if settings.graph_mode != "PIECEWISE" else ()
    return tuple(size for size in whole if size <= settings.max_num_seqs)


def rates(device: Device, dtype: str) -> tuple[float, float]:
    """(bytes/s of memory, operations/s of matrix products), guessed from the cores where the device's are not known."""
    cores = max(1, device.cores)
    bandwidth = device.bandwidth_bytes_s or CPU_BYTES_S * cores
    flops = device.bf16_flops or CPU_FLOPS * cores
    if dtype.startswith("fp8"):
        flops = device.fp8_flops or flops
    return bandwidth, flops / (8 if dtype == "float32" and device.kind == "cuda" else 1)


NOT_MEASURED = "the device's rates, not measured"


@dataclass(frozen=True)
class CostModel:
    """Seconds of a step from its shape. `origin` says what the coefficients rest on. `extra_s` are seconds beyond the terms, of recorded
    steps by size; `swings`, by kind of step, are for who wants times that differ as real ones do (`octavo/plan/swings.py`)."""

    roofline: Roofline
    launch: Launch
    coefficients: Terms = COMMON
    origin: str = NOT_MEASURED
    extra_s: Mapping[Size, float] = field(default_factory=dict[Size, float])
    swings: Mapping[Recorded, Swing] = field(default_factory=dict[Recorded, Swing])
    _steady: dict[int, StepTimes] = field(default_factory=dict[int, StepTimes], init=False, repr=False, compare=False)

    @staticmethod
    def of(arch: Architecture, settings: Resolved, device: Device) -> CostModel:
        """What the device's rates say."""
        return CostModel(Roofline.of(arch, settings, device), Launch.of(arch, settings, device))

    @property
    def measured(self) -> bool:
        return self.origin != NOT_MEASURED

    def device_s(self, shape: StepShape) -> float:
        return self.times(shape).device_s

    def launch_s(self, shape: StepShape) -> float:
        return self.times(shape).launch_s

    def times(self, shape: StepShape) -> StepTimes:
        num_tokens, num_sequences, num_sampled, prefill_tokens, _, context = shape
        if prefill_tokens or not num_tokens == num_sequences == num_sampled or self.roofline.eager_s:
            return self._times(shape)
        # Most steps are decodes alone, and of these the context alone is new each time.
        known = self._steady.get(num_sequences)
        if known is None:
            known = self._steady[num_sequences] = self._times(shape._replace(decode_context=0))
        device_s = known.device_s + self.coefficients.kv * self.roofline.kv_s(context, num_sequences)
        return StepTimes(device_s if self.roofline.on_host else known.launch_s, device_s)

    def _times(self, shape: StepShape) -> StepTimes:
        size = self.roofline.recorded(shape)
        device_s = sum(map(mul, self.coefficients, self.roofline.terms(shape))) + self.extra_s.get(size, 0.0)
        return StepTimes(device_s if self.roofline.on_host else sum(self.launch.terms(shape, size[0])), device_s)

    def products_s(self, shape: StepShape) -> float:
        """The part of the device's time in which its units for products are busy, as far as it goes beyond reading the weights."""
        terms = self.roofline.terms(shape)
        return self.coefficients.products * terms.products + self.coefficients.attention * terms.attention

    def seconds(self, shape: StepShape) -> float:
        """Of one such step after the other: the longer time hides the other."""
        return max(self.times(shape))


class CostKey(NamedTuple):
    """What the coefficients hold for. Models of equal shapes have equal costs, whatever they are called."""

    model: str
    device: str
    layout: str
    level: str

    @staticmethod
    def of(arch: Architecture, settings: Resolved, device: Device) -> CostKey:
        attention = f"{arch.heads}-{arch.kv_heads}x{arch.head_dim}"
        mixtures = sorted({f"-{e.num}x{e.intermediate}by{e.choice.per_token}" for layer in arch.layers if (e := layer.experts)})
        shape = f"{arch.family}-{arch.num_layers}x{arch.hidden}x{arch.intermediate}-{attention}-{arch.vocab}{''.join(mixtures)}"
        name = table_name(device.name) if device.kind == "cuda" else f"cpu{device.cores}"
        layout = f"tp{settings.tensor_parallel_size}-pp{settings.pipeline_parallel_size}"
        layout += f"-ep{settings.expert_parallel_size}" if settings.expert_parallel_size > 1 else ""
        return CostKey(shape, name, layout, f"O{settings.optimization_level}-{settings.dtype}-{settings.kv_dtype}")

    @property
    def file_name(self) -> str:
        return "_".join(part.lower().replace(" ", "-").replace("/", "-") for part in self) + ".json"


def save(path: Path, key: CostKey, model: CostModel, errors: Mapping[str, float]) -> None:
    """Write a model with the errors that it was judged by."""
    data = {**key._asdict(), **learned(model), "roofline": asdict(model.roofline), "errors": dict(errors), "origin": model.origin}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def learned(model: CostModel) -> dict[str, Any]:
    """What of a model is measured, but for its knee, as plain data."""
    extra_s: dict[str, dict[str, float]] = {}
    for (kind, num_tokens), seconds in model.extra_s.items():
        extra_s.setdefault(kind.value, {})[str(num_tokens)] = seconds
    swings = {kind.value: swing._asdict() for kind, swing in model.swings.items()}
    return {"coefficients": model.coefficients._asdict(), "launch": model.launch._asdict(), "extra_s": extra_s, "swings": swings}


def relearn(first: CostModel, data: Mapping[str, Any]) -> CostModel:
    """`first` with what `learned` told of another. Raises KeyError, TypeError and ValueError for what it did not."""
    extra_s = {(Recorded(kind), int(size)): float(s) for kind, sizes in data.get("extra_s", {}).items() for size, s in sizes.items()}
    told = data.get("swings", {}).items()
    swings = {Recorded(kind): Swing(tuple(one["launch"]), tuple(one["device"]), one["warm"]) for kind, one in told}
    terms, launch = Terms(**data["coefficients"]), Launch(**data["launch"])
    return replace(first, coefficients=terms, launch=launch, extra_s=extra_s, swings=swings)


def load(path: Path, key: CostKey) -> CostModel:
    """Read what `save` wrote. Raises ValueError for a file that is none, or whose key is another."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        found = CostKey(*(data[name] for name in CostKey._fields))
        windows = tuple((int(window), float(seconds)) for window, seconds in data["roofline"]["windows"])
        sizes = {name: tuple(map(int, data["roofline"][name])) for name in ("decode_sizes", "pass_sizes")}
        roofline = Roofline(**{**data["roofline"], **sizes, "windows": windows})
        model = relearn(CostModel(roofline, Launch(**data["launch"]), origin=data["origin"]), data)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no costs: {error!r}; remove it, and measure anew by octavo bench cost") from error
    if found != key:
        raise ValueError(f"{path} holds the costs of {' '.join(found)}, not of {' '.join(key)}")
    return model


SHIPPED = Path(__file__).with_name("costs")


def cost_model(arch: Architecture, settings: Resolved, device: Device, folders: tuple[Path, ...] = (SHIPPED,)) -> CostModel:
    """The measured model for these settings where a folder has one (the first that has), else the roofline with common coefficients."""
    key = CostKey.of(arch, settings, device)
    for folder in folders:
        path = folder / key.file_name
        if path.exists():
            try:
                model = load(path, key)
            except ValueError as error:  # of an earlier version, say: what it knew has to be measured anew, and all else can go on
                log.warning("%s", error)
            else:
                sizes = {"decode_sizes": decode_sizes(settings), "pass_sizes": settings.pass_sizes}
                return replace(model, roofline=replace(model.roofline, **sizes))
    return CostModel.of(arch, settings, device)

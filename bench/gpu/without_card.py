"""An `LLM` as it would run on an H200 or another card, or as one rank of several would, without one: tensors lie on the CPU, and a kernel's
launch is only noted.

Which kernels run, with what types, alignments and constants, is decided on the host, so all of it comes out right; numbers do not. For a
process that does nothing else, without Triton's interpreter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from octavo.parallel.collectives import ProcessGroup
from octavo.parallel.meeting import Layout
from octavo.parallel.mesh import Group, Mesh
from octavo.parallel.symmetric import BLOCKS_BYTES, PUSH_BYTES, Symmetric

ALONE = Layout()


@dataclass(frozen=True)
class Card:
    """What decides on the host which kernels run."""

    name: str
    sm: int
    num_sms: int
    shared_bytes: int  # that one program may have
    memory_bytes: int


H200 = Card("NVIDIA H200", 90, 132, 232_448, 150_000_000_000)
Note = Callable[[str, str, str], None]  # a kernel's module, name and specialisation data


def stand_in(note: Note, layout: Layout = ALONE, rank: int = 0, card: Card = H200) -> None:
    """From now on the process believes to have the card, and to be a rank of this layout. `note` hears of every launch."""
    _triton(note, card)
    import octavo.models.registry
    import octavo.worker.build
    import octavo.worker.device
    from octavo.attention import backend, triton, triton_latent
    from octavo.models.materialize import finish, layers_of
    from octavo.ops import select
    from octavo.ops.triton import dependent
    from octavo.ops.triton.grouped import TritonGrouped
    from octavo.ops.triton.linear import TritonLinear
    from octavo.plan.devices import Device

    cpu = torch.device("cpu")
    hopper = card.sm >= 90
    dependent.supported = lambda device: hopper
    backend.refusal = lambda supports, needs: None
    triton.limits_of = triton_latent.limits_of = lambda device: (card.num_sms, card.shared_bytes)
    TritonLinear.here = staticmethod(lambda tune=False: Products(cpu, card.name, card.num_sms, hopper))
    TritonGrouped.here = staticmethod(lambda: TritonGrouped(cpu, card.name, hopper))

    class Products(TritonLinear):
        """The library's products give memory of the right shape."""

        def _product(self, x, weight, bias, residual, scale):
            return x.new_empty((x.shape[0], weight.shape[0])) if residual is None else residual

    ops = select.triton_ops()

    def best(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, peaks = ops.best(logits)
        return tokens.zero_(), peaks.fill_(1.0)  # values that a sampled token can have

    def route(*given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        experts, weights = ops.route(*given)
        return experts.zero_(), weights

    def draw_rows(*given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, peaks = ops.draw_rows(*given)
        return tokens.zero_(), peaks.fill_(1.0)

    def drawn(*given: Any) -> torch.Tensor:
        return ops.draw(*given).zero_()

    chosen = replace(ops, best=best, draw=drawn, draw_rows=draw_rows, route=route, compile_ahead=lambda: lambda: None)
    octavo.models.registry.choose_ops = octavo.worker.build.choose_ops = lambda device, level, invariant: chosen
    octavo.worker.build.fill_dummy = lambda model, seed: finish(layer for _, layer in layers_of(model))  # values do not matter
    octavo.worker.device.detect = lambda *_, **__: Device.cuda(card.name, card.memory_bytes, card.memory_bytes, card.sm)
    octavo.worker.device.take = lambda *_, **__: cpu
    octavo.worker.build.build_runner = _on_cpu(octavo.worker.build.build_runner, layout, rank)


def _triton(note: Note, card: Card) -> None:
    driver.set_active(
        SimpleNamespace(
            get_current_device=lambda: 0,
            get_current_stream=lambda device: 0,
            get_current_target=lambda: GPUTarget("cuda", card.sm, 32),
        )
    )

    def hear(*, fn, compile, **_) -> bool:
        note(fn.module, fn.name, compile["specialization_data"])
        return True  # neither compile nor launch it

    knobs.runtime.jit_cache_hook = hear


@dataclass(frozen=True)
class Apart(ProcessGroup):
    """One of several ranks whose others are not there: shapes are right, numbers are not."""

    def gather_rows(self, x: torch.Tensor) -> torch.Tensor:
        if self.symmetric is not None and self.symmetric.gathers(x):
            self.symmetric.gather(x)
        return x.new_zeros((self.size * x.shape[0], *x.shape[1:]))

    def sum_rows(self, x: torch.Tensor) -> torch.Tensor:
        if self.symmetric is not None and self.symmetric.sums_for_rows(x):
            self.symmetric.sum(x)
        return x.new_zeros((x.shape[0] // self.size, *x.shape[1:]))

    def agreed(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def best(self, tokens: torch.Tensor, peaks: torch.Tensor, first: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, peaks = super().best(tokens, peaks, first)
        return tokens.zero_(), peaks.fill_(1.0)


def _mesh(layout: Layout, rank: int) -> Mesh:
    """The groups of one rank of a host; tensor ranks share memory, as they would."""
    from octavo.ops.triton.push import Push
    from octavo.ops.triton.push_blocks import PushBlocks

    def group(number: int, size: int, near: bool) -> Group:
        if size == 1:
            return Group()
        places = torch.zeros(size, dtype=torch.int64)
        ends = Push(number, places, 16 * size * PUSH_BYTES // 4), PushBlocks(number, places, BLOCKS_BYTES)
        return Apart(number, size, None, Symmetric(*ends, ()) if near else None)

    tensor, _, data = layout.place(rank)
    experts = group(tensor + layout.tensor * data, layout.tensor * layout.data, False) if layout.experts else Group()
    return Mesh(tp=group(tensor, layout.tensor, True), dp=group(data, layout.data, True), ep=experts)


def _on_cpu(build_runner: Callable[..., Any], layout: Layout, rank: int) -> Callable[..., Any]:
    """`build_runner` with its tensors on the CPU, and what it would do on a card: the first steps, and the captures."""
    from octavo.capture.decode import DecodeGraphs
    from octavo.capture.passes import PassGraphs
    from octavo.config.graphs import FEW, first_rooms, slice_sizes
    from octavo.plan.memory import MOST_PASSES
    from octavo.sampling.sampler import Recipe
    from octavo.worker.largest import take_largest_step
    from octavo.worker.warm import warm_up

    def record(step):
        step()
        return lambda: None, step()

    def build(settings, architecture, checkpoint, timed, *others):
        own = dict(
            tensor_parallel_size=layout.tensor, data_parallel_size=layout.data,
            expert_parallel_size=layout.tensor * layout.data if layout.experts else 1,
            dispatch="allgather_reducescatter" if layout.experts and layout.data > 1 else "local",
        )  # fmt: skip
        settings = replace(settings, attention_backend="triton", **own)
        if layout.data > 1 and layout.experts:  # replicas in lock step
            settings = replace(settings, graph_mode="PIECEWISE", pass_sizes=tuple(sorted({*FEW, *settings.pass_sizes})))
        runner = build_runner(replace(settings, device="cpu"), architecture, checkpoint, timed, lambda: _mesh(layout, rank))
        warm_up(runner, settings)
        take_largest_step(runner, settings)
        runner.passes = PassGraphs(runner.run, settings.pass_sizes, slice_sizes(settings.max_num_seqs), MOST_PASSES, record)
        sizes = [size for size in settings.graph_sizes if size <= settings.max_num_seqs and settings.graph_mode != "PIECEWISE"]
        if sizes:
            runner.graphs = DecodeGraphs(runner.decode, sizes, [settings.max_model_len], runner.rows.padding, torch.device("cpu"), record)
            runner.graphs.capture([Recipe(())])
        for room in first_rooms(settings):
            runner.record_pass(*room)
        return runner

    return build

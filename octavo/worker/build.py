"""Puts one worker together: model, weights, KV memory, rows, sampler, runner."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from octavo.capture.decode import DecodeGraphs
from octavo.capture.passes import PassGraphs
from octavo.capture.record import CudaRecorder, Record
from octavo.config.architecture import Architecture
from octavo.config.graphs import first_rooms, slice_sizes
from octavo.config.resolved import Resolved
from octavo.core.limits import needs_vocabulary_slot
from octavo.host.huge_pages import move_later
from octavo.models.base import CausalLM
from octavo.models.checkpoint import Checkpoint
from octavo.models.load import fill_dummy, load
from octavo.models.mxfp4_tensors import widened
from octavo.models.registry import build_model
from octavo.ops.select import choose_ops
from octavo.parallel.mesh import Group, Mesh
from octavo.parallel.stages import Model, StagedModel
from octavo.plan.kv import rank_layout
from octavo.plan.memory import MOST_PASSES, Costs, num_slots, plan_memory, sampled_at_once
from octavo.plan.report import beside
from octavo.quant.checkpoint import choose_scheme
from octavo.sampling.elsewhere import SampledElsewhere
from octavo.sampling.expert_tokens import ExpertTokens
from octavo.sampling.pooling import Pooling
from octavo.sampling.prompt_scores import PromptScores
from octavo.sampling.sampled import Sampled
from octavo.sampling.sampler import Recipe, Sampler
from octavo.sampling.stage import Place, Stage, load_stage
from octavo.types import SamplingParams
from octavo.worker.batch import BatchBuilder
from octavo.worker.largest import largest_step_bytes
from octavo.worker.memory import allocate, bind, held
from octavo.worker.profile import Profiler
from octavo.worker.rows import Rows
from octavo.worker.runner import Runner
from octavo.worker.sleep import Bed
from octavo.worker.warm import warm_up

log = logging.getLogger(__name__)


def build_runner(
    settings: Resolved,
    architecture: Architecture,
    checkpoint: Checkpoint,
    timed: Callable[[str], AbstractContextManager[None]],
    join: Callable[[], Mesh] = Mesh,
    reopen: Callable[[], Checkpoint] | None = None,
) -> Runner:
    """A runner ready for its first plan. `timed(name)` measures a stage of the start; `join` meets the other ranks. `reopen` gives the
    checkpoint as it is when weights are loaded again; by default the same."""
    device = torch.device(settings.device)
    ops = choose_ops(device.type, settings.optimization_level, settings.batch_invariant)
    ahead = ops.compile_ahead()
    with timed("meet other ranks"):
        mesh = join()
    model = load_model(settings, architecture, checkpoint, mesh, timed)
    layers = model.attention_layers
    with timed("allocate KV cache"):
        layout = rank_layout(architecture, settings)
        here = layout.stage(model.stage.layers)
        bind(layers, here, allocate(here, device))
    vocab = architecture.vocab
    sampler = Sampler(vocab, own_stages(settings, vocab), ops, mesh.tp.agreed, sampled_at_once(vocab))
    widths = [group.spec.table_blocks(settings.max_model_len, group.block_tokens) for group in layout.groups]
    rows = Rows(settings, widths, sampler.fillers, device, num_slots(settings), ops.note_step)
    batches = BatchBuilder(settings, [group.block_tokens for group in layout.groups], device, ops)
    last = model.stage.last
    readers = (PromptScores(architecture.vocab), Pooling(), ExpertTokens(model.expert_tokens)) if last else ()
    runner = Runner(
        staged(model, mesh.pp, settings, device), rows, batches, layers[0].backend, layout,
        sampler if last else SampledElsewhere(sampler), readers,
    )  # fmt: skip
    with timed("compile kernels"):
        ahead()
    plan = plan_memory(architecture, settings)
    tried = first_steps(runner, settings, plan.costs, timed) if device.type == "cuda" else {}
    with timed("capture graphs"):
        record_steps(runner, settings, ops.record)
        if device.type == "cuda":  # a tape is made in milliseconds, when it is needed
            runner.graphs.capture([Recipe(())])
            for room in first_rooms(settings):
                runner.record_pass(*room)
    for totals in model.expert_tokens.values():  # what the first steps counted was nobody's
        totals.zero_()
    bed = Bed(
        runner,
        model,
        load=lambda: load_model(settings, architecture, reopen() if reopen else checkpoint, mesh, lambda name: nullcontext()),
        stage=lambda model: staged(model, mesh.pp, settings, device),
        give_kv=lambda model: bind(model.attention_layers, here, allocate(here, device)),
        record=lambda: record_steps(runner, settings, ops.record),
    )
    if mesh.tp.rank == 0:
        there = held(model, here, rows.num_bytes, device) | tried
        log.info("memory, as planned and as it is:\n%s", beside(plan, there))
    profiler = Profiler(settings.profiler_dir)
    runner.orders.update(
        sleep=bed.sleep, wake=bed.wake, start_profile=profiler.start, stop_profile=profiler.stop, record_pass=runner.record_pass
    )
    return runner


def first_steps(runner: Runner, settings: Resolved, costs: Costs, timed: Callable[[str], AbstractContextManager[None]]) -> dict[str, int]:
    """Before the first request, on a GPU. What was measured of memory, by the names of the plan."""
    if settings.optimization_level > 0:  # at -O0 what comes first is slower, and the start quicker
        with timed("warm up"):
            warm_up(runner, settings)
    if settings.kv_bytes_exact:
        return {}
    with timed("try largest step"):
        return {"step_bytes": largest_step_bytes(runner, settings, costs)}


def load_model(
    settings: Resolved,
    architecture: Architecture,
    checkpoint: Checkpoint,
    mesh: Mesh,
    timed: Callable[[str], AbstractContextManager[None]],
) -> CausalLM:
    """This rank's part of the model with its weights. Raises `CheckpointError`."""
    tensors = {} if checkpoint.load_format == "dummy" else checkpoint.tensors()
    if settings.quantization == "none":
        tensors = widened(tensors)
    scheme = choose_scheme(settings.quantization, {name: tensor.quantization for name, tensor in tensors.items()})
    with timed("build model"):
        model = build_model(architecture, settings, mesh, scheme)
    with timed("load weights"):
        if checkpoint.load_format == "dummy":
            fill_dummy(model, settings.seed)
        else:
            log.info("weights: %s", load(model, tensors).report)
    if settings.device == "cpu":
        storages = (weight.untyped_storage() for weight in model.parameters())
        move_later({storage.data_ptr(): storage.nbytes() for storage in storages}.items(), model)  # several may lie in one
    return model


def record_steps(runner: Runner, settings: Resolved, tape: Record[Sampled] | None) -> None:
    """Let the runner repeat what it records from now on: whole decode steps, and on a GPU the model's pass over any others."""
    sizes = [size for size in settings.graph_sizes if size <= settings.max_num_seqs] if settings.graph_mode != "PIECEWISE" else []
    lengths = [length for length in (settings.most_model_len, settings.max_model_len) if length]
    device, padding_row = runner.rows.device, runner.rows.padding
    if device.type != "cuda":
        if sizes and tape is not None and settings.tensor_parallel_size == settings.pipeline_parallel_size == 1:
            runner.graphs = DecodeGraphs(runner.decode, sizes, lengths, padding_row, device, tape)
        return
    record = CudaRecorder(device)
    if settings.pass_sizes:
        runner.passes = PassGraphs(runner.run, settings.pass_sizes, slice_sizes(settings.max_num_seqs), MOST_PASSES, record)
    if sizes:

        def decode(row_ids: torch.Tensor, recipe: Recipe, max_length: int) -> Sampled:
            return runner.decode(row_ids, recipe, max_length).pack()

        runner.graphs = DecodeGraphs(decode, sizes, lengths, padding_row, device, record)


def staged(model: CausalLM, group: Group, settings: Resolved, device: torch.device) -> Model:
    """The model as this rank of a pipeline runs it; where there is no pipeline, the model itself."""
    if model.stage.first and model.stage.last:
        return model
    shape = (settings.max_num_batched_tokens, model.architecture.hidden)
    return StagedModel(model, group, torch.empty(shape, dtype=getattr(torch, settings.dtype), device=device))


def own_stages(settings: Resolved, vocab_size: int) -> list[Stage]:
    """The user's own sampling stages. Raises `ConfigError`."""
    return [load_stage(name, vocab_size) for name in settings.logits_processors]


def slot_need(settings: Resolved, vocab_size: int) -> Callable[[SamplingParams], bool]:
    """Which sequences hold columns as wide as the vocabulary: by a stage of ours or by one of the user's."""
    wide = [stage for stage in own_stages(settings, vocab_size) if any(column.place is Place.SLOT for column in stage.columns)]
    return lambda params: needs_vocabulary_slot(params) or any(stage.wants(params) for stage in wide)

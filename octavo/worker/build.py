"""Puts one worker together: model, weights, KV memory, rows, sampler, runner."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from octavo.config.architecture import Architecture
from octavo.config.resolved import Resolved
from octavo.core.kv.layout import lay_out
from octavo.core.limits import needs_vocabulary_slot
from octavo.models.checkpoint import Checkpoint
from octavo.models.load import fill_dummy, load
from octavo.models.registry import build_model
from octavo.ops.select import choose_ops
from octavo.quant.checkpoint import as_stored, plain_scheme
from octavo.sampling.pooling import Pooling
from octavo.sampling.prompt_scores import PromptScores
from octavo.sampling.sampler import Recipe, Sampler
from octavo.sampling.stage import Place, Stage, load_stage
from octavo.types import SamplingParams
from octavo.worker.batch import BatchBuilder
from octavo.worker.graphs import DecodeGraphs, NoGraphs
from octavo.worker.memory import allocate, bind
from octavo.worker.rows import Rows
from octavo.worker.runner import Runner
from octavo.worker.warm import warm_up

log = logging.getLogger(__name__)

NUM_SLOTS = 64  # rows at once that hold columns as wide as the vocabulary (penalty counts, biases)


def build_runner(
    settings: Resolved,
    architecture: Architecture,
    checkpoint: Checkpoint,
    timed: Callable[[str], AbstractContextManager[None]],
) -> Runner:
    """A runner ready for its first plan. `timed(name)` measures a stage of the start."""
    device = torch.device(settings.device)
    ops = choose_ops(device.type, settings.optimization_level)
    ahead = ops.compile_ahead()
    tensors = {} if checkpoint.load_format == "dummy" else checkpoint.tensors()
    packed = settings.quantization != "none"
    scheme = as_stored({name: tensor.quantization for name, tensor in tensors.items()}) if packed else plain_scheme
    with timed("build model"):
        model = build_model(architecture, settings, scheme=scheme)
    with timed("load weights"):
        if checkpoint.load_format == "dummy":
            fill_dummy(model, settings.seed)
        else:
            log.info("weights: %s", load(model, tensors).report)
    layers = model.attention_layers
    with timed("allocate KV cache"):
        layout = lay_out([layer.kv_spec() for layer in layers], settings.block_size, settings.kv_bytes)
        bind(layers, layout, allocate(layout, device))
    sampler = Sampler(architecture.vocab, own_stages(settings, architecture.vocab), ops)
    widths = [group.spec.table_blocks(settings.max_model_len, group.block_tokens) for group in layout.groups]
    rows = Rows(settings, widths, sampler.fillers, device, num_slots(settings))
    batches = BatchBuilder(settings, [group.block_tokens for group in layout.groups], device, ops)
    readers = (PromptScores(architecture.vocab), Pooling())
    runner = Runner(model, rows, batches, layers[0].backend, layout, sampler, readers, NoGraphs())
    with timed("compile kernels"):
        ahead()
    if device.type == "cuda":
        with timed("warm up"):
            warm_up(runner, settings)
    sizes = [size for size in settings.graph_sizes if size <= settings.max_num_seqs]
    if sizes:
        with timed("capture graphs"):
            runner.graphs = DecodeGraphs(runner.decode, sizes, rows.padding, device)
            runner.graphs.capture([Recipe(())])
    return runner


def own_stages(settings: Resolved, vocab_size: int) -> list[Stage]:
    """The user's own sampling stages. Raises `ConfigError`."""
    return [load_stage(name, vocab_size) for name in settings.logits_processors]


def slot_need(settings: Resolved, vocab_size: int) -> Callable[[SamplingParams], bool]:
    """Which sequences hold columns as wide as the vocabulary: by a stage of ours or by one of the user's."""
    wide = [stage for stage in own_stages(settings, vocab_size) if any(column.place is Place.SLOT for column in stage.columns)]
    return lambda params: needs_vocabulary_slot(params) or any(stage.wants(params) for stage in wide)


def num_slots(settings: Resolved) -> int:
    return min(NUM_SLOTS, settings.max_num_seqs)

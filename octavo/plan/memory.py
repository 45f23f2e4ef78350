"""Where a device's memory goes: arithmetic over a model's shapes and the settings. No torch and no weights are needed.

The engine sizes its KV cache with these functions when it starts, and `octavo plan` prints them, so what is planned is what is served.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from octavo.config.architecture import Architecture, LayerConfig, Norms, QkNorm
from octavo.config.experts import Experts
from octavo.config.latent import Latent
from octavo.config.resolved import NOTHING_PACKED, Packed, Resolved
from octavo.config.stages import Stage, stages
from octavo.core.kv.layout import KVLayout
from octavo.core.kv.specs import DTYPE_BYTES
from octavo.plan.devices import MIB
from octavo.plan.kv import kv_specs, rank_layout

CONTEXT_BYTES = 780 * MIB  # what the driver and its libraries hold on a GPU: 779 on an H200 when all kernels of a start are loaded
LINK_BYTES = 2048 * MIB  # and what NCCL's connections and memory shared with other ranks hold there: 1.8 GiB were seen on two H200s
MARGIN_BYTES = 70 * MIB  # left free, for what the arithmetic does not know
GRAPH_BYTES = 8 * MIB  # a captured graph
MOST_PASSES = 24  # captured passes over steps that are not all decodes: those of every size that is recorded by default
ROW_BYTES = 76  # counters and sampling state of a sequence
NUM_SLOTS = 64  # rows at once that hold columns as wide as the vocabulary
TOKEN_BYTES = 64  # of a step's batch: token, position, slot, owner
SLOT_BYTES = 9  # of such a row, a token of the vocabulary: a bias, whether it ends, how often it was said
SAMPLED_VALUES = 1 << 24  # logits that go through sampling's stages at once
SAMPLED_COPIES = 10  # of those, in float32: as computed, as changed by each stage, with counts and biases, and of log-probabilities


@dataclass(frozen=True)
class Costs:
    """What is taken before the KV cache gets the rest, in bytes, on the device that holds most."""

    weight_bytes: int
    activation_bytes: int
    logits_bytes: int  # and what sampling makes of them, as far as it does not fit where the activations were
    row_bytes: int
    graph_bytes: int
    reserve_bytes: int

    @property
    def total(self) -> int:
        return self.weight_bytes + self.activation_bytes + self.logits_bytes + self.row_bytes + self.graph_bytes + self.reserve_bytes


@dataclass(frozen=True)
class MemoryPlan:
    """The whole budget of one device."""

    budget_bytes: int  # what the instance may use
    costs: Costs
    kv_bytes: int
    kv_bytes_per_token: int  # while a context is shorter than any window
    block_bytes: int  # of one block in one group, over its layers
    num_blocks: int
    kv_tokens: int
    max_concurrency: float  # sequences of max_model_len that fit at once
    fits: tuple[tuple[int, int], ...]  # (length, sequences of that length that fit at once)


def num_parameters(arch: Architecture, stage: Stage | None = None) -> int:
    """Numbers in the checkpoint, counted from the shapes; of one stage of a pipeline those that it holds."""
    stage = stage or Stage(range(arch.num_layers))
    attention, biased = (_latent_parameters(arch, arch.latent) if arch.latent else _attention_parameters(arch))
    biases = arch.heads * arch.sinks + biased * arch.qkv_bias + arch.hidden * arch.o_bias
    mlps = sum(_mlp_parameters(arch, arch.layers[number].experts) for number in stage.layers)
    norms = arch.hidden * (4 if arch.norms is Norms.BOTH else 2)
    norms += {None: 0, QkNorm.HEAD: 2 * arch.head_dim, QkNorm.WIDTH: arch.q_dim + arch.kv_dim}[arch.qk_norm]
    embeds, head = stage.first or (stage.last and arch.tied_embeddings), stage.last and not arch.tied_embeddings
    ends = arch.vocab * arch.hidden * (embeds + head) + arch.hidden * stage.last
    return ends + len(stage.layers) * (attention + biases + norms) + mlps


def _attention_parameters(arch: Architecture) -> tuple[int, int]:
    """Of the products of one layer, and how many outputs of the first have a bias."""
    first = arch.q_dim + 2 * arch.kv_dim
    return arch.hidden * first + arch.q_dim * arch.hidden, first


def _latent_parameters(arch: Architecture, latent: Latent) -> tuple[int, int]:
    """The same with the norms inside."""
    expanded = arch.heads * (latent.plain + latent.value) * latent.rank
    kept = arch.hidden * latent.width + latent.rank + expanded + arch.heads * latent.value * arch.hidden
    if latent.q_rank is None:
        return arch.hidden * arch.q_dim + kept, latent.width
    return (arch.hidden + arch.q_dim + 1) * latent.q_rank + kept, latent.q_rank + latent.width


def active_parameters(arch: Architecture) -> int:
    """Those that one token is multiplied with: of a layer's experts only its own."""
    idle = [(e.num - e.choice.per_token) * _expert_parameters(arch, e) for layer in arch.layers if (e := layer.experts)]
    return num_parameters(arch) - sum(idle)


def _mlp_parameters(arch: Architecture, experts: Experts | None) -> int:
    if experts is None:
        return 3 * arch.hidden * arch.intermediate + (2 * arch.intermediate + arch.hidden) * arch.mlp_bias
    router = experts.num * (arch.hidden + experts.bias + experts.correction)
    shared = 3 * arch.hidden * experts.shared_intermediate + arch.hidden * experts.shared_gate
    return experts.num * _expert_parameters(arch, experts) + router + shared


def _expert_parameters(arch: Architecture, experts: Experts) -> int:
    return 3 * arch.hidden * experts.intermediate + (2 * experts.intermediate + arch.hidden) * experts.bias


def one_rank(arch: Architecture, tensor: int, experts: int = 1) -> Architecture:
    """The shapes of what one rank of each stage computes with: its heads, its part of the MLP and of the vocabulary, and where whole
    experts lie over more than one rank (`experts`), its part of them.

    Where there are fewer key/value heads than ranks, ranks hold copies.
    """
    if tensor == experts == 1:
        return arch
    return replace(
        arch,
        heads=arch.heads // tensor,
        kv_heads=max(1, arch.kv_heads // tensor),
        intermediate=-(-arch.intermediate // tensor),
        vocab=-(-arch.vocab // tensor),
        layers=tuple(_cut_experts(layer, tensor, experts) for layer in arch.layers),
    )


def rank_shapes(arch: Architecture, settings: Resolved) -> Architecture:
    """`one_rank` in the layout of the settings."""
    return one_rank(arch, settings.tensor_parallel_size, settings.expert_parallel_size)


def _cut_experts(layer: LayerConfig, tensor: int, ranks: int) -> LayerConfig:
    """The layer with whole experts over `ranks` ranks, or where that is one with each expert's inner features over `tensor` ranks."""
    experts = layer.experts
    if experts is None:
        return layer
    shared = -(-experts.shared_intermediate // tensor)
    if ranks > 1:
        arriving = replace(experts.choice, per_token=experts.choice.per_token * (ranks // tensor))  # tokens of all replicas
        return replace(layer, experts=replace(experts, num=-(-experts.num // ranks), choice=arriving, shared_intermediate=shared))
    return replace(layer, experts=replace(experts, intermediate=-(-experts.intermediate // tensor), shared_intermediate=shared))


def weight_bytes(arch: Architecture, dtype: str, packed: Packed = NOTHING_PACKED) -> int:
    """Of all weights, those that are not packed as `dtype`."""
    return _stored(num_parameters(arch), dtype, packed)


def _stored(num_values: int, dtype: str, packed: Packed) -> int:
    return (num_values - packed.num_values) * DTYPE_BYTES[dtype] + packed.num_bytes


def kv_bytes_per_token(arch: Architecture, kv_dtype: str) -> int:
    """Over all layers, as long as the context is shorter than any window."""
    return sum(spec.token_bytes for spec in kv_specs(arch, kv_dtype))


def sequence_blocks(layout: KVLayout, length: int, chunk: int) -> int:
    """Most blocks, over all groups, that one sequence of `length` tokens holds while it grows in steps of at most `chunk` tokens."""
    return sum(group.spec.peak_blocks(length, chunk, group.block_tokens) for group in layout.groups)


def pool_block_bytes(layout: KVLayout) -> int:
    """Bytes that one block of the pool takes, over the layers of its group, of the stage that has most of them."""
    return layout.num_buffers * layout.block_bytes


def kv_layout(arch: Architecture, settings: Resolved, kv_bytes: int | None = None) -> KVLayout:
    """What the engine allocates; a size too small for a single block of each group is counted as one of each."""
    smallest = rank_layout(arch, settings, 1 << 62)
    least = len(smallest.groups) * pool_block_bytes(smallest)
    return rank_layout(arch, settings, max(settings.kv_bytes if kv_bytes is None else kv_bytes, least))


def longest_fit(layout: KVLayout, limit: int, chunk: int) -> int:
    """The longest context, up to `limit`, of which one sequence fits in the whole pool; 0 where not even one token does."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if sequence_blocks(layout, middle, chunk) <= layout.num_blocks:
            low = middle
        else:
            high = middle - 1
    return low


def costs(arch: Architecture, settings: Resolved) -> Costs:
    """Everything but the KV cache, for the rank and the stage that need most."""
    cut, size, seqs = rank_shapes(arch, settings), DTYPE_BYTES[settings.dtype], settings.max_num_seqs
    held = max(num_parameters(cut, one) for one in stages(arch.num_layers, settings.pipeline_parallel_size))
    step_bytes = settings.max_num_batched_tokens * size
    activation_bytes = step_bytes * widest(cut) + settings.max_num_batched_tokens * TOKEN_BYTES
    at_once = min(seqs, sampled_at_once(arch.vocab)) * arch.vocab
    sampling_bytes = seqs * arch.vocab * size + at_once * 4 * SAMPLED_COPIES + step_bytes * arch.hidden  # a rank sees all ranks' logits
    tables = sum(group.spec.table_blocks(settings.max_model_len, group.block_tokens) for group in kv_layout(arch, settings, 0).groups)
    on_gpu = settings.device == "cuda"
    classes = 2 if settings.most_model_len else 1
    num_graphs = len(settings.graph_sizes) * classes + (MOST_PASSES if settings.pass_sizes else 0)
    inside = max(settings.pass_sizes, default=0) * size * widest(cut)  # graphs keep what a pass needs between its operations
    return Costs(
        weight_bytes=_stored(held, settings.dtype, settings.packed),
        activation_bytes=activation_bytes,
        logits_bytes=max(0, sampling_bytes - activation_bytes),
        row_bytes=(seqs + 1) * (4 * tables + ROW_BYTES) + (num_slots(settings) + 1) * SLOT_BYTES * arch.vocab,
        graph_bytes=num_graphs * GRAPH_BYTES + inside if on_gpu else 0,
        reserve_bytes=(CONTEXT_BYTES + MARGIN_BYTES + (LINK_BYTES if _has_peers(settings) else 0)) if on_gpu else 0,
    )


def _has_peers(settings: Resolved) -> bool:
    """Whether a rank talks to others; replicas do where they share experts."""
    return max(settings.tensor_parallel_size, settings.pipeline_parallel_size, settings.expert_parallel_size) > 1


def sampled_at_once(vocab: int) -> int:
    """Positions that go through sampling's stages together."""
    return max(1, SAMPLED_VALUES // vocab)


def num_slots(settings: Resolved) -> int:
    """Rows at once that may hold columns as wide as the vocabulary: penalty counts, masks, biases."""
    return min(NUM_SLOTS, settings.max_num_seqs)


def widest(arch: Architecture) -> int:
    """Most values a token that are there at once while a layer runs: the residual stream with what is read and written of it, and the
    results inside of attention or of the MLP, whose products do not live at the same time."""
    inner = max(attention_activations(arch), *(mlp_activations(arch, layer.experts) for layer in arch.layers))
    return (4 if arch.norms is Norms.BOTH else 3) * arch.hidden + inner


def attention_activations(arch: Architecture) -> int:
    """Values a token that attention's products leave: its queries, keys and values, and what they come to."""
    latent = arch.latent
    if latent is None:
        return 2 * (arch.q_dim + arch.kv_dim)
    return (latent.q_rank or 0) + arch.q_dim + latent.width + arch.heads * (latent.width + latent.rank)


def mlp_activations(arch: Architecture, experts: Experts | None) -> int:
    """Values a token that an MLP's products leave; of experts, each of a token's own leaves a result as wide as the residual stream."""
    if experts is None:
        return 3 * arch.intermediate
    return experts.choice.per_token * (3 * experts.intermediate + arch.hidden) + 3 * experts.shared_intermediate


LENGTHS = (1024, 4096, 16384, 32768, 131072)


def plan_memory(arch: Architecture, settings: Resolved, lengths: Sequence[int] = LENGTHS) -> MemoryPlan:
    """The budget that these settings give, of one device. `lengths` are tokens of sequences that are asked how often they fit."""
    taken, layout = costs(arch, settings), kv_layout(arch, settings)
    chunk = min(settings.max_num_batched_tokens, settings.max_model_len)
    concurrency = layout.num_blocks / sequence_blocks(layout, settings.max_model_len, chunk)
    one_group = len(layout.groups) == 1
    tokens = layout.num_blocks * settings.block_size if one_group else int(concurrency * settings.max_model_len)
    shown = [length for length in lengths if length < settings.max_model_len] + [settings.max_model_len]
    specs = kv_specs(arch, settings.kv_dtype, settings.tensor_parallel_size)
    held = [one.layers for one in stages(arch.num_layers, settings.pipeline_parallel_size)]
    return MemoryPlan(
        budget_bytes=taken.total + settings.kv_bytes,
        costs=taken,
        kv_bytes=settings.kv_bytes,
        kv_bytes_per_token=max(sum(specs[number].token_bytes for number in layers) for layers in held),
        block_bytes=pool_block_bytes(layout),
        num_blocks=layout.num_blocks,
        kv_tokens=tokens,
        max_concurrency=concurrency,
        fits=tuple((length, layout.num_blocks // sequence_blocks(layout, length, chunk)) for length in shown),
    )

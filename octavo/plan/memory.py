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
from octavo.core.kv.layout import KVLayout, lay_out
from octavo.core.kv.specs import DTYPE_BYTES
from octavo.plan.devices import MIB, Device
from octavo.plan.kv import kv_specs

CONTEXT_BYTES = 600 * MIB  # what the driver and its libraries hold on a GPU
MARGIN_BYTES = 150 * MIB  # left free, for what the arithmetic does not know
GRAPH_BYTES = 8 * MIB  # a captured graph
ROW_BYTES = 512  # sampling state of a sequence
LOGITS_COPIES = 3  # in float32: as computed, as changed by sampling, sorted


@dataclass(frozen=True)
class Costs:
    """What is taken before the KV cache gets the rest, in bytes."""

    weight_bytes: int
    activation_bytes: int
    logits_bytes: int
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


def num_parameters(arch: Architecture) -> int:
    """Numbers in the checkpoint, counted from the shapes."""
    attention, biased = (_latent_parameters(arch, arch.latent) if arch.latent else _attention_parameters(arch))
    biases = arch.heads * arch.sinks + biased * arch.qkv_bias + arch.hidden * arch.o_bias
    mlps = sum(_mlp_parameters(arch, layer.experts) for layer in arch.layers)
    norms = arch.hidden * (4 if arch.norms is Norms.BOTH else 2)
    norms += {None: 0, QkNorm.HEAD: 2 * arch.head_dim, QkNorm.WIDTH: arch.q_dim + arch.kv_dim}[arch.qk_norm]
    embeddings = arch.vocab * arch.hidden * (1 if arch.tied_embeddings else 2)
    return embeddings + arch.num_layers * (attention + biases + norms) + mlps + arch.hidden


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


def one_rank(arch: Architecture, tensor: int, pipeline: int = 1, experts: int = 1) -> Architecture:
    """The shapes of what one device holds: its heads, its part of the MLP and of the vocabulary, its stage's layers, and where whole
    experts lie over more than one rank (`experts`), its part of them.

    Where there are fewer key/value heads than ranks, ranks hold copies. Embedding and head are counted on every stage.
    """
    if tensor == pipeline == experts == 1:
        return arch
    return replace(
        arch,
        heads=arch.heads // tensor,
        kv_heads=max(1, arch.kv_heads // tensor),
        intermediate=-(-arch.intermediate // tensor),
        vocab=-(-arch.vocab // tensor),
        layers=tuple(_cut_experts(layer, tensor, experts) for layer in arch.layers[: -(-arch.num_layers // pipeline)]),
    )


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
    return (num_parameters(arch) - packed.num_values) * DTYPE_BYTES[dtype] + packed.num_bytes


def kv_bytes_per_token(arch: Architecture, kv_dtype: str) -> int:
    """Over all layers, as long as the context is shorter than any window."""
    return sum(spec.token_bytes for spec in kv_specs(arch, kv_dtype))


def sequence_blocks(layout: KVLayout, length: int, chunk: int) -> int:
    """Most blocks, over all groups, that one sequence of `length` tokens holds while it grows in steps of at most `chunk` tokens."""
    return sum(group.spec.peak_blocks(length, chunk, group.block_tokens) for group in layout.groups)


def pool_block_bytes(layout: KVLayout) -> int:
    """Bytes that one block of the pool takes over the layers of its group."""
    return layout.layers_per_group * layout.block_bytes


def kv_layout(arch: Architecture, kv_dtype: str, block_size: int, kv_bytes: int) -> KVLayout:
    """The layout of `kv_bytes`; a size too small for a single block of each group is counted as one of each."""
    smallest = lay_out(kv_specs(arch, kv_dtype), block_size, 1 << 62)
    least = len(smallest.groups) * pool_block_bytes(smallest)
    return lay_out(kv_specs(arch, kv_dtype), block_size, max(kv_bytes, least))


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


def costs(
    arch: Architecture,
    dtype: str,
    kind: str,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_model_len: int,
    block_size: int,
    num_graphs: int,
    packed: Packed = NOTHING_PACKED,
) -> Costs:
    """Everything but the KV cache, for one device of `kind`."""
    size = DTYPE_BYTES[dtype]
    # The widest point of a layer: the residual stream, what attention reads and writes, and the MLP's two inner products.
    widest = 3 * arch.hidden + 2 * arch.q_dim + 2 * arch.kv_dim + max(mlp_activations(arch, layer.experts) for layer in arch.layers)
    groups = len({layer.window for layer in arch.layers})
    table_bytes = 4 * groups * -(-max_model_len // block_size)
    on_gpu = kind == "cuda"
    return Costs(
        weight_bytes=weight_bytes(arch, dtype, packed),
        activation_bytes=max_num_batched_tokens * widest * size,
        logits_bytes=max_num_seqs * arch.vocab * 4 * LOGITS_COPIES,
        row_bytes=max_num_seqs * (table_bytes + ROW_BYTES),
        graph_bytes=num_graphs * GRAPH_BYTES if on_gpu else 0,
        reserve_bytes=CONTEXT_BYTES + MARGIN_BYTES if on_gpu else 0,
    )


def mlp_activations(arch: Architecture, experts: Experts | None) -> int:
    """Values a token that an MLP's products leave; of experts, each of a token's own leaves a result as wide as the residual stream."""
    if experts is None:
        return 3 * arch.intermediate
    return experts.choice.per_token * (3 * experts.intermediate + arch.hidden) + 3 * experts.shared_intermediate


LENGTHS = (1024, 4096, 16384, 32768, 131072)


def plan_memory(arch: Architecture, settings: Resolved, device: Device, lengths: Sequence[int] = LENGTHS) -> MemoryPlan:
    """The budget that these settings give, of one device."""
    arch = one_rank(arch, settings.tensor_parallel_size, settings.pipeline_parallel_size, settings.expert_parallel_size)
    taken = costs(
        arch, settings.dtype, device.kind, settings.max_num_seqs, settings.max_num_batched_tokens, settings.max_model_len,
        settings.block_size, len(settings.graph_sizes), settings.packed,
    )  # fmt: skip
    layout = kv_layout(arch, settings.kv_dtype, settings.block_size, settings.kv_bytes)
    chunk = min(settings.max_num_batched_tokens, settings.max_model_len)
    concurrency = layout.num_blocks / sequence_blocks(layout, settings.max_model_len, chunk)
    one_group = len(layout.groups) == 1
    tokens = layout.num_blocks * settings.block_size if one_group else int(concurrency * settings.max_model_len)
    shown = [length for length in lengths if length < settings.max_model_len] + [settings.max_model_len]
    return MemoryPlan(
        budget_bytes=taken.total + settings.kv_bytes,
        costs=taken,
        kv_bytes=settings.kv_bytes,
        kv_bytes_per_token=kv_bytes_per_token(arch, settings.kv_dtype),
        block_bytes=pool_block_bytes(layout),
        num_blocks=layout.num_blocks,
        kv_tokens=tokens,
        max_concurrency=concurrency,
        fits=tuple((length, layout.num_blocks // sequence_blocks(layout, length, chunk)) for length in shown),
    )

"""The C twins of the operations in `octavo/ops`: same arguments, same meaning; the torch references there say what each does."""

from __future__ import annotations

import struct

import torch

from octavo.ops.draw import Settings
from octavo.ops.expand_blocks import DEQUANTIZE
from octavo.ops.linear import Norm, added
from octavo.ops.native.binding import DTYPES, KV_DTYPES, Native, Op, scale_places
from octavo.ops.native.ways import TUNED, TileRows
from octavo.ops.packed_linear import GROUP, Packed, numbers_of

PANEL = 16  # outputs of a panel, WIDTH in panels.c
SMALL = 1 << 14  # elements up to which an element-wise operation is not worth waking other threads

_LINEAR = struct.Struct("5P11qd")
_RMS_NORM = struct.Struct("5P5q2d")
_GATE = struct.Struct("2P5q")
_ROPE_AND_WRITE = struct.Struct("8P15qP5qd")
_BEST = struct.Struct("3P4q")
_DECODE_BATCH = struct.Struct("9P5q")
_NOTE_STEP = struct.Struct("6P4q")
_TABLE_ROWS = struct.Struct("3P8q")
_PACKED_ROWS = struct.Struct("4P6q")
_PACKED = struct.Struct("7P11q2d")
_PACK_BLOCKS = struct.Struct("3P3q")
_PACK_PANELS = struct.Struct("P2q")
_EXPAND = struct.Struct("2P3q")
_DRAW = struct.Struct("8P3q")
_DRAW_ROWS = struct.Struct("11P4q")

KINDS = tuple(DEQUANTIZE)  # `enum blocks` in expand.c
_ACTIVATIONS = {None: 0, "silu": 1, "gelu_tanh": 2}  # `enum activation` in packed.c


def _pointer(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _rows(x: torch.Tensor) -> torch.Tensor:
    """x with its last axis contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _row_step(residual: torch.Tensor | None) -> int:
    """Elements from row to row; one row alone is added to all."""
    return 0 if residual is None or residual.shape[0] == 1 else residual.stride(0)


class Twins:
    """Operations bound to a team of threads. Types are float32, bfloat16 and float16; parameters of norms and tables are float32."""

    def __init__(self, native: Native, tile_rows: TileRows | None = None) -> None:
        """`tile_rows` None takes what is tuned for the native's instruction set."""
        self.native, self._tile_rows = native, tile_rows or TUNED.get(native.variant, TileRows())
        self.gates = {"silu": self.silu_mul, "gelu_tanh": self.gelu_tanh_mul}

    def embedding(self, tokens: torch.Tensor, weight: torch.Tensor, first: int) -> torch.Tensor:
        """`weight` is row by row, or in panels from `pack_linear`."""
        assert weight.is_contiguous()
        assert tokens.is_contiguous()
        size, panels = weight.element_size(), weight.dim() == 4
        n, k = (weight.shape[0] * PANEL, weight.shape[1] * weight.shape[3]) if panels else weight.shape
        item = weight.shape[3] * size if panels else k * size
        out = torch.empty((tokens.shape[0], k), dtype=weight.dtype)
        args = _TABLE_ROWS.pack(
            tokens.data_ptr(), weight.data_ptr(), out.data_ptr(),
            tokens.shape[0], first, n, PANEL if panels else 1, k * size, k * size // item, item, PANEL * item,
        )  # fmt: skip
        self.native.run(Op.TABLE_ROWS, args, out.numel() <= SMALL)
        return out

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return self.product(x, weight, bias, None, 1.0)

    def product(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None, scale: float
    ) -> torch.Tensor:
        """`weight` is row by row, or in panels from `pack_linear`."""
        x = _rows(x)
        residual = None if residual is None else _rows(residual.to(x.dtype))
        m, k = x.shape
        packed = weight.dim() == 4
        n = weight.shape[0] * PANEL if packed else weight.shape[0]
        out = torch.empty((m, n), dtype=x.dtype)
        args = _LINEAR.pack(
            x.data_ptr(), weight.data_ptr(), _pointer(bias), _pointer(residual), out.data_ptr(),
            m, n, k, x.stride(0), weight.stride(0), _row_step(residual), n,
            DTYPES[x.dtype], DTYPES[weight.dtype], 0 if bias is None else DTYPES[bias.dtype], DTYPES[out.dtype], scale,
        )  # fmt: skip
        self.native.run(self._tile_rows.panels_op(m) if packed else Op.LINEAR, args)
        return out

    def pack_linear(self, weight: torch.Tensor) -> torch.Tensor:
        """Panels of 16 outputs, in the memory of `weight`: [n / 16, k / 2, 16, 2] bfloat16 or [n / 16, k, 16, 1] float32.

        Other types and sizes stay row by row.
        """
        n, k = weight.shape
        pair = {torch.bfloat16: 2, torch.float32: 1}.get(weight.dtype, 0)
        if not pair or not n or n % PANEL or k % pair or not weight.is_contiguous():
            return weight
        self.native.run(Op.PACK_PANELS, _PACK_PANELS.pack(weight.data_ptr(), n // PANEL, k // pair))
        return weight.view(n // PANEL, k // pair, PANEL, pair)

    def expand_blocks(self, blocks: torch.Tensor, kind: str, out: torch.Tensor) -> None:
        assert blocks.is_contiguous()
        assert out.is_contiguous()
        number, count = KINDS.index(kind), out.numel() // (256 if kind.endswith("_K") else 32)
        self.native.run(Op.EXPAND, _EXPAND.pack(blocks.data_ptr(), out.data_ptr(), count, number, DTYPES[out.dtype]), count <= SMALL // 32)

    def pack_grouped(self, weight: torch.Tensor) -> torch.Tensor:
        """Each expert's weight [experts, n, k] in panels; a whole weight [n, k] has the same panels."""
        panels = self.pack_linear(weight.flatten(0, 1)) if weight.shape[1] % PANEL == 0 else weight
        return panels.unflatten(0, (weight.shape[0], -1)) if panels.dim() == 4 else weight

    def grouped_width(self, weight: torch.Tensor) -> int:
        """Outputs of each expert's weight, as `pack_grouped` laid them out."""
        return weight.shape[1] * PANEL if weight.dim() == 5 else weight.shape[1]

    def pack_blocks(self, blocks: torch.Tensor, kind: str) -> Packed:
        blocks = blocks.contiguous()
        n, groups, _ = blocks.shape
        numbers, quads = numbers_of(kind), 8 if kind == "Q8_0" else 4
        panels = -(-n // PANEL)
        codes = torch.empty((panels, groups, quads, PANEL, 4), dtype=torch.uint8)
        scales = torch.empty((panels, groups, numbers, PANEL), dtype=torch.float16)
        packing = 2 if quads == 8 else numbers - 1  # `enum packing` in packed.c
        self.native.run(Op.PACK_BLOCKS, _PACK_BLOCKS.pack(blocks.data_ptr(), codes.data_ptr(), scales.data_ptr(), n, groups, packing))
        return Packed(codes, scales, n)

    def packed_linear(
        self,
        x: torch.Tensor,
        weight: Packed,
        bias: torch.Tensor | None = None,
        norm: Norm | None = None,
        gate: str | None = None,
        residual: torch.Tensor | None = None,
        scale: float = 1.0,
    ) -> torch.Tensor:
        """The whole operation at once, but for a gate whose halves are not whole panels."""
        codes, scales, n = weight
        if gate is not None and n % (2 * PANEL):
            return added(self.gates[gate](self.packed_linear(x, weight, bias, norm)), residual, scale)
        x = _rows(x)
        residual = None if residual is None else _rows(residual.to(x.dtype))
        m, k = x.shape
        width = n if gate is None else n // 2
        out = torch.empty((m, width), dtype=x.dtype)
        packing = 2 if codes.shape[2] == 8 else scales.shape[2] - 1  # `enum packing` in packed.c
        args = _PACKED.pack(
            x.data_ptr(), codes.data_ptr(), scales.data_ptr(), _pointer(bias), 0 if norm is None else norm[0].data_ptr(),
            _pointer(residual), out.data_ptr(),
            m, n, k, x.stride(0), _row_step(residual), width, packing, _ACTIVATIONS[gate],
            DTYPES[x.dtype], 0 if bias is None else DTYPES[bias.dtype], DTYPES[out.dtype],
            0.0 if norm is None else norm[1], scale,
        )  # fmt: skip
        self.native.run(self._tile_rows.packed_op(m), args)
        return out

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        n = x.shape[-1]
        flat = _rows(x.reshape(-1, n))
        out = torch.empty(x.shape, dtype=x.dtype)
        self._norm(flat, None, weight, out, None, eps, 1.0)
        return out

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x, residual = _rows(x), _rows(residual)
        out, total = torch.empty(x.shape, dtype=x.dtype), torch.empty(x.shape, dtype=x.dtype)
        self._norm(x, residual, weight, out, total, eps, scale)
        return out, total

    def _norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        weight: torch.Tensor,
        out: torch.Tensor,
        total: torch.Tensor | None,
        eps: float,
        scale: float,
    ) -> None:
        rows, n = x.shape
        args = _RMS_NORM.pack(
            x.data_ptr(), _pointer(residual), weight.data_ptr(), out.data_ptr(), _pointer(total),
            rows, n, x.stride(0), 0 if residual is None else residual.stride(0), DTYPES[x.dtype], eps, scale,
        )  # fmt: skip
        self.native.run(Op.RMS_NORM, args, rows * n <= SMALL)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        return self._gate(gate_up, False)

    def gelu_tanh_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        return self._gate(gate_up, True)

    def _gate(self, gate_up: torch.Tensor, gelu: bool) -> torch.Tensor:
        gate_up = _rows(gate_up)
        rows, n = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty((rows, n), dtype=gate_up.dtype)
        args = _GATE.pack(gate_up.data_ptr(), out.data_ptr(), rows, n, gate_up.stride(0), DTYPES[gate_up.dtype], gelu)
        self.native.run(Op.GATE, args, rows * n <= SMALL // 4)
        return out

    def rope_and_write(
        self,
        qkv: torch.Tensor,
        kv: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        cos_sin: torch.Tensor | None,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
        scales: torch.Tensor | None = None,
    ) -> torch.Tensor:
        qkv = _rows(qkv)
        block_tokens, kv_heads, head_dim = kv.shape[2:]
        tokens, heads = qkv.shape[0], qkv.shape[1] // head_dim - 2 * kv_heads
        q = torch.empty((tokens, heads, head_dim), dtype=qkv.dtype)
        args = _ROPE_AND_WRITE.pack(
            qkv.data_ptr(), q.data_ptr(), kv.data_ptr(), positions.data_ptr(), slots.data_ptr(),
            _pointer(cos_sin), _pointer(q_norm), _pointer(k_norm),
            tokens, heads, kv_heads, head_dim, 0 if cos_sin is None else cos_sin.shape[1], block_tokens,
            qkv.stride(0), *kv.stride()[:4],
            0 if q_norm is None else q_norm.shape[0], 0 if k_norm is None else k_norm.shape[0],
            DTYPES[qkv.dtype], KV_DTYPES[kv.dtype], *scale_places(scales, kv), eps,
        )  # fmt: skip
        self.native.run(Op.ROPE_AND_WRITE, args, qkv.numel() <= SMALL // 2)
        return q

    def best(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = _rows(logits)
        out, peaks = torch.empty(x.shape[0], dtype=torch.int64), torch.empty(x.shape[0], dtype=torch.float32)
        args = _BEST.pack(x.data_ptr(), out.data_ptr(), peaks.data_ptr(), x.shape[0], x.shape[1], x.stride(0), DTYPES[x.dtype])
        self.native.run(Op.ARGMAX, args, x.numel() <= SMALL)
        return out, peaks

    def packed_rows(self, weight: Packed, tokens: torch.Tensor, first: int, dtype: torch.dtype) -> torch.Tensor:
        codes, scales, n = weight
        k, packing = codes.shape[1] * GROUP, 2 if codes.shape[2] == 8 else scales.shape[2] - 1
        out = torch.empty((tokens.shape[0], k), dtype=dtype)
        pointers = (tokens.data_ptr(), codes.data_ptr(), scales.data_ptr(), out.data_ptr())
        args = _PACKED_ROWS.pack(*pointers, tokens.shape[0], first, n, k, packing, DTYPES[dtype])
        self.native.run(Op.PACKED_ROWS, args, out.numel() <= SMALL)
        return out

    def decode_batch(
        self,
        row_ids: torch.Tensor,
        computed: torch.Tensor,
        last_token: torch.Tensor,
        block_table: torch.Tensor,
        padding: int,
        block_tokens: int,
        out: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
        slots: torch.Tensor,
        first: bool,
    ) -> None:
        tokens, positions, lengths, rows = (x.data_ptr() for x in out)
        args = _DECODE_BATCH.pack(
            row_ids.data_ptr(), computed.data_ptr(), last_token.data_ptr(), block_table.data_ptr(),
            tokens, positions, slots.data_ptr(), lengths, rows,
            row_ids.shape[0], block_table.stride(0), padding, block_tokens, first,
        )  # fmt: skip
        self.native.run(Op.DECODE_BATCH, args, True)

    def note_step(
        self,
        computed: torch.Tensor,
        last_token: torch.Tensor,
        rows: torch.Tensor,
        starts: torch.Tensor,
        sampled: torch.Tensor,
        newest: torch.Tensor,
        padding: int,
    ) -> None:
        pointers = [x.data_ptr() for x in (computed, last_token, rows, starts, sampled, newest)]
        args = _NOTE_STEP.pack(*pointers, rows.shape[0], sampled.shape[0], newest.stride(0), padding)
        self.native.run(Op.NOTE_STEP, args, True)

    def draw(
        self,
        logits: torch.Tensor,
        peaks: torch.Tensor,
        numbers: torch.Tensor,
        temperature: torch.Tensor,
        top_k: torch.Tensor | None,
        top_p: torch.Tensor | None,
        min_p: torch.Tensor | None,
    ) -> torch.Tensor:
        logits = _rows(logits)
        rows, n = logits.shape
        out = torch.empty(rows, dtype=torch.int64)
        settings = [_pointer(x) for x in (peaks, numbers, temperature, top_k, top_p, min_p)]
        self.native.run(Op.DRAW, _DRAW.pack(logits.data_ptr(), *settings, out.data_ptr(), rows, n, logits.stride(0)), rows * n <= SMALL)
        return out

    def draw_rows(
        self, logits: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, at: torch.Tensor, settings: Settings
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = _rows(logits)
        num, n = x.shape
        tokens, peaks = torch.empty(num, dtype=torch.int64), torch.empty(num, dtype=torch.float32)
        pointers = [_pointer(column) for column in (x, rows, positions, at, *settings, tokens, peaks)]
        self.native.run(Op.DRAW_ROWS, _DRAW_ROWS.pack(*pointers, num, n, x.stride(0), DTYPES[x.dtype]), num * n <= SMALL)
        return tokens, peaks

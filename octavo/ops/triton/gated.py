"""activation(gate) * up: [T, 2n] read once, [T, n] written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo.ops.triton.dependent import follow, launch

_BLOCK = 1024
_SQRT_2_OVER_PI = 0.7978845608028654


@triton.jit
def _gated(gate_up, y, n, GELU: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    follow(PDL)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    gate = tl.load(gate_up + row * 2 * n + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * n + n + at, mask=inside, other=0.0).to(tl.float32)
    if GELU:
        inner = C * (gate + 0.044715 * gate * gate * gate)
        gate = gate * tl.sigmoid(2.0 * inner)  # (1 + tanh(z)) / 2 = sigmoid(2 z)
    else:
        gate = gate * tl.sigmoid(gate)
    tl.store(y + row * n + at, gate * up, mask=inside)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    return _launch(gate_up, gelu=False)


def gelu_tanh_mul(gate_up: torch.Tensor) -> torch.Tensor:
    return _launch(gate_up, gelu=True)


def _launch(gate_up: torch.Tensor, gelu: bool) -> torch.Tensor:
    rows, n = gate_up.shape[0], gate_up.shape[1] // 2
    y = torch.empty((rows, n), dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        _gated[(rows, triton.cdiv(n, _BLOCK))](
            gate_up, y, n, GELU=gelu, C=_SQRT_2_OVER_PI, BLOCK=_BLOCK, **launch(y.device)
        )
    return y

"""`linear` on a GPU: a kernel that streams the weight where rows are few, the library's product and kernels around it where many.

Which of the two, and how the first is cut, is looked up by shape in `octavo/ops/table.py`. Shapes are known on the host, so a captured
graph holds the choice for its size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from octavo.ops.library import Library, open_library
from octavo.ops.linear import Norm, added, around
from octavo.ops.table import TUNED, Cut, OneRow, Wide, form, library_way, product_cut, product_key
from octavo.ops.triton.gated import gelu_tanh_mul, silu_mul
from octavo.ops.triton.norm import rms_norm
from octavo.ops.triton.one_row import one_row
from octavo.ops.triton.skinny import MAX_BLOCKS, skinny
from octavo.ops.triton.tuning import Tuner
from octavo.ops.triton.wide import wide


def _product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Adds to the residual where it stands, within the library's product."""
    if residual is None or bias is not None:
        return added(F.linear(x, weight, bias), residual, scale)
    return residual.addmm_(x, weight.t(), alpha=scale)


GATES = {"silu": silu_mul, "gelu_tanh": gelu_tanh_mul}


class TritonLinear:
    """Bound to a device. Its products must all run on one stream, for they share the counters."""

    def __init__(
        self, device: torch.device, name: str, num_sms: int, dependent: bool, library: Library | None = None, tuner: Tuner | None = None
    ) -> None:
        """`name` is the device's in the table; `dependent`: launch before the kernel ahead has ended (sm_90 and later). The tuner finds
        cuts that the table lacks."""
        self.name, self.num_sms, self.dependent, self.library, self.tuner = name, num_sms, dependent, library, tuner
        self._separate = around(self._product, rms_norm, GATES)
        self.counters = torch.zeros(MAX_BLOCKS, dtype=torch.int32, device=device)

    @staticmethod
    def here(tune: bool = False) -> TritonLinear:
        """For the current GPU."""
        about = torch.cuda.get_device_properties(torch.cuda.current_device())
        device = torch.device("cuda", torch.cuda.current_device())
        tuner = Tuner.here(about.name) if tune else None
        return TritonLinear(device, about.name, about.multi_processor_count, about.major >= 9, open_library(device), tuner)

    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        norm: Norm | None = None,
        gate: str | None = None,
        residual: torch.Tensor | None = None,
        scale: float = 1.0,
    ) -> torch.Tensor:
        around_it = form(norm is not None, gate is not None, residual is not None)
        if not self._fits(x, norm):
            return self._by(None, x, weight, bias, norm, gate, residual, scale)
        cut = product_cut(self.name, around_it, x.shape[0], *weight.shape, self.num_sms)
        key = product_key(around_it, x.shape[0], *weight.shape)
        if self.tuner is not None and key is not None and key not in TUNED.get(self.name, {}):

            def run(cut: Cut | None) -> torch.Tensor:
                return self._by(cut, x, weight, bias, norm, gate, residual if residual is None else residual.clone(), scale)

            cut = self.tuner.cut(key, cut, run)
        return self._by(cut, x, weight, bias, norm, gate, residual, scale)

    def _by(
        self,
        cut: Cut | None,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        norm: Norm | None,
        gate: str | None,
        residual: torch.Tensor | None,
        scale: float,
    ) -> torch.Tensor:
        if cut is None and norm is not None:  # perhaps all but the norm
            return self(rms_norm(x, *norm), weight, bias, None, gate, residual, scale)
        if cut is None:
            return self._separate(x, weight, bias, norm, gate, residual, scale)
        if isinstance(cut, Wide):
            if bias is not None or not x.is_contiguous():
                return self._separate(x, weight, bias, norm, gate, residual, scale)
            return wide(x, weight, cut, gate, residual, scale, self.dependent)
        weights, eps = (None, 0.0) if norm is None else norm
        if isinstance(cut, OneRow):
            return one_row(x, weight, cut, self.num_sms, bias, weights, eps, gate, residual, scale, self.dependent)
        return skinny(x, weight, cut, self.counters, bias, weights, eps, gate, residual, scale, self.dependent)

    def _product(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None, scale: float
    ) -> torch.Tensor:
        way = None
        if self.library is not None and bias is None:
            way = library_way(self.name, self.library.version, str(x.dtype), x.shape[0], *weight.shape)
        if self.library is None or way is None or x.stride(1) != 1 or not weight.is_contiguous():
            return _product(x, weight, bias, residual, scale)
        y = torch.empty((x.shape[0], weight.shape[0]), dtype=x.dtype, device=x.device) if residual is None else residual
        self.library.product(x, weight, y, way, scale, add=residual is not None)
        return y

    @staticmethod
    def _fits(x: torch.Tensor, norm: Norm | None) -> bool:
        """Whether our kernels can do it."""
        if not x.shape[0] or x.dtype.itemsize != 2:  # wider ones would need another arithmetic on tensor cores
            return False
        # x * norm before its scaling may be beyond float16
        return norm is None or x.shape[0] == 1 or x.dtype is not torch.float16

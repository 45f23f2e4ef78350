"""cuBLASLt's own list of ways to do a product, called through ctypes: the first of them, which torch takes, is not always the fastest.

Which way is best for a shape is measured (`bench/gpu/library.py`) and looked up in `octavo/ops/table.py`. A way is 64 opaque bytes
that belong to one version of the library; with another version, or where anything is missing, torch's product serves.
https://docs.nvidia.com/cuda/cublas/#using-the-cublaslt-api
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

WORKSPACE_BYTES = 32 << 20  # what torch gives the library on sm_90
ALGO_WORDS = 8
MOST_SHAPES = 1024  # descriptions that are kept
_COMPUTE_32F, _REAL_32F = 68, 0  # numbers of the library's header files
_TYPES = {torch.bfloat16: 14, torch.float16: 2}
_TRANSPOSE_A, _MAX_WORKSPACE = 3, 1


class _Algo(ctypes.Structure):
    _fields_ = [("data", c_uint64 * ALGO_WORDS)]


class _Proposal(ctypes.Structure):
    _fields_ = [("algo", _Algo), ("workspace", c_size_t), ("state", c_int), ("waves", c_float), ("reserved", c_int * 4)]


@dataclass(frozen=True)
class _Shape:
    """What the library wants to know of a product: it sees y^T [n, rows] = weight [n, k] x^T [k, rows], column by column."""

    product: c_void_p
    weight: c_void_p
    x: c_void_p
    y: c_void_p


class Library:
    """Products of one device. All must run on one stream, for they share the workspace."""

    def __init__(self, lib: ctypes.CDLL, device: torch.device) -> None:
        self._lib, self._handle = lib, c_void_p()
        lib.cublasLtGetVersion.restype = c_size_t
        self.version = int(lib.cublasLtGetVersion())
        self._check(lib.cublasLtCreate(byref(self._handle)))
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._shapes: dict[tuple[int, int, int, int, torch.dtype], _Shape] = {}

    def proposals(self, x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, count: int = 16) -> list[bytes]:
        """Ways to do this product, what the library thinks best first."""
        preference, found = c_void_p(), (_Proposal * count)()
        self._check(self._lib.cublasLtMatmulPreferenceCreate(byref(preference)))
        most, got = c_uint64(WORKSPACE_BYTES), c_int()
        self._check(self._lib.cublasLtMatmulPreferenceSetAttribute(preference, _MAX_WORKSPACE, byref(most), c_size_t(8)))
        s = self._shape(x, weight)
        self._check(
            self._lib.cublasLtMatmulAlgoGetHeuristic(
                self._handle, s.product, s.weight, s.x, s.y, s.y, preference, c_int(count), found, byref(got)
            )
        )
        self._lib.cublasLtMatmulPreferenceDestroy(preference)
        return [bytes(found[number].algo) for number in range(got.value) if found[number].state == 0]

    def product(self, x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, way: bytes, scale: float, add: bool) -> None:
        """y = scale * x weight^T, or with `add` y + that. x [rows, k], weight [n, k], y [rows, n], of one 16-bit type; rows of x may be
        apart."""
        s = self._shape(x, weight)
        self._check(
            self._lib.cublasLtMatmul(
                self._handle, s.product, byref(c_float(scale)), c_void_p(weight.data_ptr()), s.weight, c_void_p(x.data_ptr()), s.x,
                byref(c_float(float(add))), c_void_p(y.data_ptr()), s.y, c_void_p(y.data_ptr()), s.y, byref(_Algo.from_buffer_copy(way)),
                c_void_p(self._workspace.data_ptr()), c_size_t(WORKSPACE_BYTES), c_void_p(torch.cuda.current_stream().cuda_stream),
            )
        )  # fmt: skip

    def _shape(self, x: torch.Tensor, weight: torch.Tensor) -> _Shape:
        rows, (n, k) = x.shape[0], weight.shape
        key = (rows, n, k, x.stride(0), x.dtype)
        if key not in self._shapes:
            if len(self._shapes) >= MOST_SHAPES:
                self._forget()
            product, yes = c_void_p(), c_int32(1)
            self._check(self._lib.cublasLtMatmulDescCreate(byref(product), _COMPUTE_32F, _REAL_32F))
            self._check(self._lib.cublasLtMatmulDescSetAttribute(product, _TRANSPOSE_A, byref(yes), c_size_t(4)))
            kind = _TYPES[x.dtype]
            layouts = (self._layout(kind, k, n, k), self._layout(kind, k, rows, x.stride(0)), self._layout(kind, n, rows, n))
            self._shapes[key] = _Shape(product, *layouts)
        return self._shapes[key]

    def _forget(self) -> None:
        for shape in self._shapes.values():
            self._lib.cublasLtMatmulDescDestroy(shape.product)
            for layout in (shape.weight, shape.x, shape.y):
                self._lib.cublasLtMatrixLayoutDestroy(layout)
        self._shapes.clear()

    def _layout(self, kind: int, height: int, width: int, stride: int) -> c_void_p:
        made = c_void_p()
        self._check(self._lib.cublasLtMatrixLayoutCreate(byref(made), c_int(kind), c_uint64(height), c_uint64(width), c_int64(stride)))
        return made

    def _check(self, status: int) -> None:
        if status:
            raise RuntimeError(f"cuBLASLt gave status {status}")


@cache
def open_library(device: torch.device) -> Library | None:
    """The library that torch brings along, for this device; None if it is not to be found."""
    here = Path(str(torch.__file__)).parent
    folders = (here / "lib", *(here.parent / "nvidia").glob("*/lib"))
    paths = [path for folder in folders for path in sorted(folder.glob("libcublasLt.so.*"))]
    for name in (*map(str, paths), "libcublasLt.so.13", "libcublasLt.so.12"):
        try:
            return Library(ctypes.CDLL(name), device)
        except (OSError, AttributeError, RuntimeError):
            continue
    return None

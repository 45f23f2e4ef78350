"""Compiles Triton kernels for a card that is not here, and says what they cost: registers, spills, shared memory."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@dataclass(frozen=True)
class Cost:
    registers: int
    spilled_bytes: int  # stack frame and spills, a thread
    shared_bytes: int
    ptx: str

    def __str__(self) -> str:
        used = [name for name in ("wgmma", "mma.sync", "cp.async.cg", "ldmatrix", "cp.async.bulk") if name in self.ptx]
        return f"{self.registers} registers, {self.spilled_bytes} B spilled, {self.shared_bytes} B shared, {' '.join(used)}"


def compile_for(kernel: Any, signature: Mapping[str, str], constants: Mapping[str, Any], sm: int = 90, **options: int) -> Cost:
    """`signature` names the run-time arguments' types in order ("*bf16", "i32", "fp32"; "i32:16" where it is divisible by 16)."""
    names = list(kernel.arg_names)
    types = {name: signature.get(name, "constexpr").split(":")[0] for name in names}
    divisible = {name for name, kind in signature.items() if kind.startswith("*") or kind.endswith(":16")}
    attrs = {(names.index(name),): [["tt.divisibility", 16]] for name in divisible}
    constexprs = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=types, constexprs=constexprs, attrs=attrs)
    compiled = triton.compile(source, target=GPUTarget("cuda", sm, 32), options=options)
    registers, spilled = _resources(compiled.asm["cubin"])
    return Cost(registers, spilled, compiled.metadata.shared, compiled.asm["ptx"])


def _resources(cubin: bytes) -> tuple[int, int]:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers, stack = re.search(r"REG:(\d+)", text), re.search(r"STACK:(\d+)", text)
    assert registers is not None
    assert stack is not None
    return int(registers[1]), int(stack[1])

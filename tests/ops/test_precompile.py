"""Kernels compiled ahead are found by a launch's key. Runs in a process without Triton's interpreter; no card is needed to compile."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is not on this machine")

SCRIPT = """
import json, sys, time
from pathlib import Path
from triton import knobs
from octavo.ops.triton import precompile
from octavo.ops.triton.cache import use_cache_folder
root = Path(sys.argv[1])
use_cache_folder(root)
options = {"num_warps": 4, "num_ctas": 1, "num_stages": 3}
data = {"name": "x", "signature": {"tokens": "*i64", "weight": "*bf16", "y": "*bf16", "n": "i32", "first": "i32", "num_rows": "i32",
        "BLOCK": "constexpr"}, "constant_keys": [[6]], "constant_vals": [256], "attrs_keys": [[0], [3]],
        "attrs_vals": [[["tt.divisibility", 16]], [["tt.divisibility", 16]]], "options": options, "key": "k"}
entry = ["octavo.ops.triton.embedding", "_embedding", json.dumps(data)]
precompile.KNOWN = root / "known.json"
precompile.KNOWN.write_text(json.dumps([entry]))
work = precompile.start(root / "triton", 90, 2)
work.wait()
kernels = sorted(str(path.relative_to(root)) for path in root.rglob("*.cubin"))
assert len(kernels) == 1, kernels
assert list((root / "triton").glob("known-*")), "no stamp"
import triton
compiled = []
knobs.compilation.listener = lambda **about: compiled.append(about["cache_hit"])
from octavo.ops.triton.embedding import _embedding
precompile.compile_one(_embedding, json.dumps(data), 90)
assert compiled == [True], compiled
assert precompile.start(root / "triton", 90, 2)._pids == ()
"""


def test_kernels_compiled_ahead_are_found(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], check=True, env=environment, timeout=120)


def test_the_list_knows_the_kernels_as_they_are():
    """Entries of a kernel whose arguments have changed are recorded again or, without a card, left out."""
    from octavo.ops.triton.precompile import KNOWN

    for module, name, data in json.loads(KNOWN.read_text()):
        assert list(json.loads(data)["signature"]) == list(getattr(importlib.import_module(module), name).arg_names), name

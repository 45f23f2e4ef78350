"""What calls the known kernels is made before they run. Runs in a process without Triton's interpreter; no card is needed."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is not on this machine")

SCRIPT = """
from types import SimpleNamespace
from triton.backends.nvidia import driver
from octavo.ops.triton import launchers
from octavo.ops.triton.known import known_kernels

made = []
driver.CudaUtils = lambda: None
driver.library_dirs = lambda: []
driver.compile_module_from_src = lambda src, name, **_: made.append(src) or SimpleNamespace(launch=None)
about = SimpleNamespace(global_scratch_size=0, global_scratch_align=1, profile_scratch_size=0, profile_scratch_align=1,
                        launch_cooperative_grid=False, launch_pdl=False)
for kernel in known_kernels():
    about.tensordesc_meta = [{} for kind in kernel.signature.values() if str(kind).startswith("tensordesc")]
    driver.CudaLauncher(kernel.source(), about)
wanted, made[:] = set(made), []
driver.compile_module_from_src = lambda src, *_: made.append(src)
launchers.make_ahead()
assert wanted and set(made) == wanted, (len(made), len(wanted))
"""


def test_they_are_those_that_a_launch_asks_for(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, env={**environment, "OCTAVO_CACHE_ROOT": str(tmp_path)}, timeout=120)

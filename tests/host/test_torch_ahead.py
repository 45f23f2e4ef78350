"""In a fresh interpreter the library is there, and torch, which is not imported by it, is not."""

import subprocess
import sys

LOADS = """
import sys, threading
from octavo.host.torch_ahead import load_torch_ahead
load_torch_ahead()
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join()
assert "torch" not in sys.modules
assert "libtorch_cpu.so" in open("/proc/self/maps").read()
"""
NO_TORCH = """
import sys, threading
from octavo.host.torch_ahead import load_torch_ahead
sys.meta_path.clear()
load_torch_ahead()
assert threading.active_count() == 1
"""


def test_the_library_is_loaded_without_the_interpreter() -> None:
    subprocess.run((sys.executable, "-c", LOADS), check=True)


def test_without_torch_nothing_happens() -> None:
    subprocess.run((sys.executable, "-c", NO_TORCH), check=True)

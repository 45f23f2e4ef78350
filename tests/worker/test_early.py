"""What begins before torch is imported."""

import subprocess
import sys
from itertools import count

from octavo.worker.early import Early


def test_what_fails_is_left_out():
    def fail():
        raise OSError("no such device")

    early = Early(count().__next__, {"context": fail, "launchers": lambda: None})
    assert [name for name, _ in early.wait()] == ["launchers"]


def test_nothing_of_it_imports_torch():
    """Else it would wait for the very import that it is to run beside."""
    script = """
import sys
from octavo.engine.timeline import Timeline
import octavo.worker.early as early, octavo.engine.build
early.begin(lambda: 0.0).wait()
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)

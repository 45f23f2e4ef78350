"""What a started process finds: the modules of its parent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import octavo

PROGRAM = """
import os
from octavo.engine.process import spawn

if __name__ == "__main__":
    child = spawn("beside_the_program:run")
    said = os.read(child.status_fd, 65536)
    while more := os.read(child.status_fd, 65536):
        said += more
    print(said.decode())
"""
BESIDE = """
import own_part, octavo

def run(status):
    status.say("ready", octavo=octavo.__file__, own=own_part.__file__)
"""


def test_a_process_finds_what_its_parent_finds_and_then_what_lies_in_the_working_folder(tmp_path: Path) -> None:
    programs, working = tmp_path / "programs", tmp_path / "working"
    for folder in (programs, working / "octavo"):
        folder.mkdir(parents=True)
    (programs / "program.py").write_text(PROGRAM)
    (programs / "beside_the_program.py").write_text(BESIDE)
    for trap in ("octavo/__init__.py", "json.py", "pickle.py", "beside_the_program.py"):
        (working / trap).write_text("raise ImportError('another of that name')")
    (working / "own_part.py").write_text("")
    root = Path(octavo.__file__).parents[1]
    words = [sys.executable, "-c", f"import sys; sys.path[0] = {str(root)!r}; import runpy; sys.path.insert(0, {str(programs)!r}); "
             f"runpy.run_path({str(programs / 'program.py')!r}, run_name='__main__')"]  # fmt: skip
    done = subprocess.run(words, cwd=working, capture_output=True, text=True, check=True)
    assert f'"octavo": "{octavo.__file__}"' in done.stdout, done.stdout + done.stderr
    assert f'"own": "{working / "own_part.py"}"' in done.stdout

"""Files in which the kernel tells of the machine: they may be missing, which is no error."""

from __future__ import annotations

from pathlib import Path


def text_of(path: Path) -> str:
    """Empty where there is no such file, or none that this process may read."""
    try:
        return path.read_text()
    except OSError:
        return ""

"""Triton's compiled kernels in Octavo's one cache folder, which may be moved or copied to another machine."""

from __future__ import annotations

import json
from pathlib import Path

from triton import knobs
from triton.runtime.cache import FileCacheManager

from octavo.miss import refuse_if_forced


class MovableCache(FileCacheManager):
    """Triton notes where a kernel's files lay when they were written; they are looked for where the folder is now.

    What is not there, Triton compiles; both raise `CacheMiss` where that is forbidden.
    """

    def get_file(self, filename: str) -> str | None:
        found = super().get_file(filename)
        if found is None and filename.endswith(".so"):
            refuse_if_forced(f"what Triton calls kernels by ({filename})")
        return found

    def get_group(self, filename: str) -> dict[str, str] | None:
        listed = self.get_file(f"__grp__{filename}")
        if listed is None:
            refuse_if_forced(f"Triton's kernel {filename.removesuffix('.json')} as it is needed here")
            return None
        names = json.loads(Path(listed).read_text())["child_paths"]
        return {name: path for name in names if (path := self.get_file(name)) is not None}


def use_cache_folder(root: Path) -> Path:
    """Compiled kernels go to `root`/triton, which is given, from now on."""
    knobs.cache.dir = str(root / "triton")
    knobs.cache.manager_class = MovableCache
    return root / "triton"

"""Makes what calls the known kernels: Triton has the machine's C compiler make a module for each signature, and one for the driver.

Each takes a third of a second, so one after the other, whenever a kernel first runs, they cost more than the kernels. No torch here: this
runs in threads while torch is imported.
"""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from octavo import env
from octavo.ops.triton.cache import use_cache_folder
from octavo.ops.triton.known import Kernel, known_kernels

log = logging.getLogger(__name__)


def make_ahead() -> None:
    """Make and load all that is missing in Octavo's cache folder. What cannot be made is made, or fails, when a kernel first runs."""
    from triton.backends.nvidia import driver

    use_cache_folder(env.cache_root())
    driver.CudaUtils()  # first: a launcher remembers a type of it when it is loaded
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        made = [
            threads.submit(
                driver.compile_module_from_src, source, "__triton_launcher", driver.library_dirs(), driver.include_dirs, driver.libraries
            )
            for source in sources()
        ]
    for one in made:
        if error := one.exception():
            log.debug("a launcher could not be made ahead: %r", error)


def sources() -> set[str]:
    """The C text of each launcher, as Triton writes it for the signatures of the known kernels."""
    from triton.backends.nvidia.driver import make_launcher

    return {make_launcher({}, dict(enumerate(kernel.signature.values())), descriptors(kernel)) for kernel in known_kernels()}


def descriptors(kernel: Kernel) -> list[dict[str, Any]] | None:
    """One entry for each tile descriptor that the kernel takes: where there is a copy engine (sm_90), the driver makes them."""
    return [{} for kind in kernel.signature.values() if isinstance(kind, str) and kind.startswith("tensordesc")] or None

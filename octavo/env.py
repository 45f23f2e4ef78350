"""Every environment variable that Octavo reads: name, type, default and meaning. `os.environ` appears nowhere else.

A variable is read when it is asked for, never at import. `OCTAVO_X` may also be given as `VLLM_X` where the meaning is the same;
if both are set, `OCTAVO_X` counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")


class BadEnvironment(ValueError):
    """A variable holds something that is not of its type; the text names the variable, the value and what works."""


@dataclass(frozen=True)
class Variable(Generic[T]):
    """One environment variable; `get` reads it."""

    name: str
    read: Callable[[str], T]
    default: T
    help: str
    also: str | None = None  # a second name with the same meaning

    def get(self) -> T:
        """The value now, or the default where it is unset or empty. Raises `BadEnvironment`."""
        name = self.given_as()
        if name is None:
            return self.default
        try:
            return self.read(os.environ[name])
        except ValueError as error:
            raise BadEnvironment(f"{name} = {os.environ[name]!r} is not possible: {error}. Meaning: {self.help}") from None

    def given_as(self) -> str | None:
        """The name under which it is set now, or None."""
        return next((name for name in (self.name, self.also) if name and os.environ.get(name)), None)


ALL: dict[str, Variable[object]] = {}


def _define(name: str, read: Callable[[str], T], default: T, text: str, vllm: bool = True) -> Variable[T]:
    also = name.replace("OCTAVO_", "VLLM_", 1) if vllm and name.startswith("OCTAVO_") else None
    variable = Variable(name, read, default, text, also)
    ALL[name] = variable  # pyright: ignore[reportArgumentType]
    return variable


def _switch(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError("use 1 or 0")


def _count(text: str) -> int:
    if not text.strip().isdigit():
        raise ValueError("a whole number of at least 0 is needed")
    return int(text)


def read_list(text: str) -> tuple[int, ...]:
    """ "0-2,5" is 0, 1, 2, 5, each number once, in the order given. Raises `ValueError`."""
    numbers: list[int] = []
    for stretch in text.split(","):
        first, dash, last = stretch.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise ValueError(f"{stretch.strip()!r} is neither a number nor a range such as 0-3")
        numbers += range(int(first), int(last if dash else first) + 1)
    return tuple(dict.fromkeys(numbers))


def _amount(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise ValueError("a finite number of at least 0 is needed")
    return number


def _level(text: str) -> str:
    if text.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise ValueError("use DEBUG, INFO, WARNING or ERROR")
    return text.upper()


def _path(text: str) -> Path:
    return Path(text).expanduser()


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "octavo"


CACHE_ROOT = _define(
    "OCTAVO_CACHE_ROOT",
    _path,
    None,
    "folder of compiled kernels, tuned tables and bundled models; default: octavo below the user's cache folder",
    vllm=False,
)

FORCE_AOT_LOAD = _define(
    "OCTAVO_FORCE_AOT_LOAD", _switch, False, "1: nothing is compiled; what the cache folder lacks ends the start and is named"
)

CPU_KVCACHE_SPACE = _define("OCTAVO_CPU_KVCACHE_SPACE", _amount, 0.0, "GiB of KV cache on CPU; 0: decided from free memory")
CPU_OMP_THREADS_BIND = _define(
    "OCTAVO_CPU_OMP_THREADS_BIND",
    str,
    "auto",
    "auto, nobind, or the cores to pin threads to, such as 0-3,8 (one list a worker, with | between)",
)
CPU_NUM_OF_RESERVED_CPU = _define(
    "OCTAVO_CPU_NUM_OF_RESERVED_CPU", _count, None, "cores left to others when binding is auto; default: 1 of more than 2"
)
CPU_VISIBLE_MEMORY_NODES = _define(
    "CPU_VISIBLE_MEMORY_NODES", read_list, (), "nodes (NUMA) that workers on CPU run on when binding is auto, such as 0,2; default: all"
)
OMP_NUM_THREADS = _define("OMP_NUM_THREADS", _count, 0, "threads of a worker on CPU, not bound then; 0: by the cores that may be used")

CUDA_VISIBLE_DEVICES = _define("CUDA_VISIBLE_DEVICES", str, None, "GPUs that may be used, by number or UUID, in order; default: all")

STEP_TIMEOUT = _define(
    "OCTAVO_EXECUTE_MODEL_TIMEOUT_SECONDS", _amount, 300.0, "seconds until a step without an outcome is given up, with its workers"
)

MODEL = _define("OCTAVO_MODEL", str, None, "default of --model", vllm=False)
API_KEY = _define("OCTAVO_API_KEY", str, None, "default of --api-key")
ATTENTION_BACKEND = _define("OCTAVO_ATTENTION_BACKEND", str, None, "default of --attention-backend")

BATCH_INVARIANT = _define("OCTAVO_BATCH_INVARIANT", str, None, "default of --batch-invariant")

USE_FASTOKENS = _define("OCTAVO_USE_FASTOKENS", _switch, False, "1: texts are encoded by fastokens, an optional package, where it can")

LOGGING_LEVEL = _define("OCTAVO_LOGGING_LEVEL", _level, "INFO", "what is logged: DEBUG, INFO, WARNING or ERROR")

HF_HUB_OFFLINE = _define("HF_HUB_OFFLINE", _switch, False, "1: models of the hub come from its local cache only")


def keep_multicast_off() -> None:
    """For this process, before its first collective: the switch's multicast needs rights on the fabric, and where hosts share one, a
    program that ends in the middle of it can leave the others without."""
    for name, value in (("NCCL_NVLS_ENABLE", "0"), ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"), ("NVSHMEM_DISABLE_NVLS", "1")):
        os.environ.setdefault(name, value)


def meet_over(interface: str | None) -> None:
    """For this process and its children, before their first collective: how other hosts are reached, where the user has not said it."""
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if interface is not None:
            os.environ.setdefault(name, interface)


def load_kernels_lazily() -> None:
    """For this process, before CUDA's first call: the libraries hold thousands of kernels, of which few are used."""
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")


def everything() -> dict[str, str]:
    """All variables as they are, for a look at what is there."""
    return dict(os.environ)


def with_settings(**values: str) -> dict[str, str]:
    """The environment of a child process: this one's, and these variables."""
    return {**os.environ, **values}


def cache_root() -> Path:
    """The one cache folder; it may not exist yet."""
    return CACHE_ROOT.get() or _default_cache()

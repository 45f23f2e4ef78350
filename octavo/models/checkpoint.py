"""A model's files behind one face: config in Hugging Face form, tensors under Hugging Face names, tokeniser, defaults of generation.

Opening reads headers and small JSON files only and does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from octavo.models.gguf_architectures import hugging_face_config, hugging_face_tensors
from octavo.models.gguf_reader import GGUFFile, read_gguf
from octavo.models.hub import find_model
from octavo.models.safetensors_reader import read_safetensors_folder
from octavo.models.tensors import CheckpointError, LazyTensor, trim_heap
from octavo.text.gguf_tokenizer import rebuild_tokenizer
from octavo.text.tokenizer import Tokenizer, TokenizerError, read_json, read_tokenizer

LoadFormat = Literal["auto", "safetensors", "gguf", "dummy"]
LOAD_FORMATS = ("auto", "safetensors", "gguf", "dummy")


@dataclass(frozen=True)
class Checkpoint:
    """An opened model. `config` and `generation_config` are what their files say, with the caller's overrides applied."""

    name: str  # as the caller gave it
    source: Path  # the folder or the .gguf file
    load_format: str  # "safetensors", "gguf" or "dummy": decided
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    tokenizer_source: Path | None = None  # None: the model's own
    gguf: GGUFFile | None = field(default=None, repr=False)

    def tensors(self) -> Mapping[str, LazyTensor]:
        """Every tensor by its Hugging Face name, not read yet. Raises `CheckpointError` for a damaged file and for dummy weights."""
        if self.load_format == "dummy":
            raise CheckpointError(f"{self.name}: load_format 'dummy' has no tensors to read")
        return read_safetensors_folder(self.source) if self.gguf is None else hugging_face_tensors(self.gguf, self.config)

    def tokenizer(self) -> Tokenizer:
        """The tokeniser, read once. Raises `TokenizerError` where there is none."""
        return self._tokenizer

    @property
    def chat_template(self) -> str | None:
        return self.tokenizer().chat_template

    @property
    def pooler(self) -> Mapping[str, Any]:
        """How Sentence Transformers make a vector with this model: its 1_Pooling/config.json, empty where there is none."""
        return read_json(self.source / "1_Pooling" / "config.json") if self.source.is_dir() else {}

    @cached_property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every id that ends a text, the main one first: of the generation config, the config and the tokeniser."""
        try:
            known = self.tokenizer().eos_token_ids
        except TokenizerError:
            known = ()  # prompts are then given as ids
        return tuple(dict.fromkeys((*_ids(self.generation_config), *_ids(self.config), *known)))

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        source = self.tokenizer_source or self.source
        if source.is_dir():
            return read_tokenizer(source)
        rebuilt = rebuild_tokenizer(self.gguf.metadata if self.gguf and source == self.source else read_gguf(source).metadata)
        trim_heap()  # of hundreds of thousands of texts
        return rebuilt


def open_checkpoint(
    model: str,
    *,
    revision: str | None = None,
    load_format: str = "auto",
    tokenizer: str | None = None,
    tokenizer_revision: str | None = None,
    hf_overrides: Mapping[str, Any] | None = None,
    generation_config: str = "auto",
    override_generation_config: Mapping[str, Any] | None = None,
    download_dir: str | None = None,
    weights: bool = True,
) -> Checkpoint:
    """Find and open a model: a folder, a .gguf file, a bundled alias or a hub id.

    `generation_config` is "auto" (the model's own), "vllm" (none: neutral defaults) or a folder or file to take it from.
    `weights=False` fetches no weights from the hub. Raises `CheckpointError` or `TokenizerError` with what is wrong and what to do.
    """
    if load_format not in LOAD_FORMATS:
        raise CheckpointError(f"load_format = {load_format!r} is not supported; use {', '.join(LOAD_FORMATS)}")
    source = find_model(model, revision=revision, download_dir=download_dir, weights=weights and load_format != "dummy")
    if source.is_dir() and not (source / "config.json").is_file():
        source = _only_gguf(source)
    gguf = None if source.is_dir() else read_gguf(source)
    wrong = {"safetensors": gguf is not None, "gguf": gguf is None}
    if wrong.get(load_format):
        raise CheckpointError(f"load_format = {load_format!r} does not fit {source}; use 'auto'")
    config = hugging_face_config(gguf) if gguf is not None else read_config(source / "config.json")
    own = None
    if tokenizer is not None:
        own = find_model(tokenizer, revision=tokenizer_revision, download_dir=download_dir, weights=False, field="tokenizer")
    return Checkpoint(
        name=model,
        source=source,
        load_format=load_format if load_format == "dummy" else "safetensors" if gguf is None else "gguf",
        config=merged(config, hf_overrides or {}),
        generation_config=merged(_generation_config(generation_config, source), override_generation_config or {}),
        tokenizer_source=own,
        gguf=gguf,
    )


def read_config(path: Path) -> dict[str, Any]:
    """A config.json. Raises `CheckpointError`."""
    try:
        config = read_json(path)
    except TokenizerError as error:
        raise CheckpointError(str(error)) from error
    if not config:
        raise CheckpointError(f"{path}: there is no config in it")
    return config


def merged(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with the overrides put over it; objects inside are merged too, everything else is replaced."""
    result = dict(config)
    for key, value in overrides.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def _generation_config(asked: str, source: Path) -> dict[str, Any]:
    if asked == "vllm":
        return {}
    if asked == "auto":
        return read_json(source / "generation_config.json") if source.is_dir() else {}
    path = Path(asked)
    path = path / "generation_config.json" if path.is_dir() else path
    if not path.is_file():
        raise CheckpointError(f"generation_config = {asked!r}: there is no such file; use 'auto', 'vllm' or a folder that has one")
    return read_json(path)


def _only_gguf(folder: Path) -> Path:
    found = sorted(folder.glob("*.gguf"))
    if len(found) != 1:
        names = f"; name one of {', '.join(path.name for path in found)}" if found else " nor a .gguf file"
        raise CheckpointError(f"{folder}: there is no config.json{names}")
    return found[0]


def _ids(config: Mapping[str, Any]) -> list[int]:
    """The end ids of a config, which are one number or a list."""
    value = config.get("eos_token_id")
    values = value if isinstance(value, list) else [value]
    return [number for number in values if isinstance(number, int) and not isinstance(number, bool)]

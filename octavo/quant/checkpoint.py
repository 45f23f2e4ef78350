"""Which scheme each layer's weights get, from what a checkpoint holds for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from octavo.quant.gguf import BLOCK_BYTES, GGUFBlocks
from octavo.quant.mxfp4 import experts_in_mxfp4
from octavo.quant.none import Plain
from octavo.quant.scheme import Scheme

ChooseScheme = Callable[[Sequence[str]], Scheme]  # by the paths of the tensors that may fill a layer: the whole, and each part


def plain_scheme(paths: Sequence[str]) -> Scheme:
    return Plain()


def choose_scheme(quantization: str, kinds: Mapping[str, str | None]) -> ChooseScheme:
    """By what was decided; `kinds` as for `as_stored`."""
    return {"none": plain_scheme, "mxfp4": experts_in_mxfp4, "gguf": as_stored(kinds)}[quantization]


def as_stored(kinds: Mapping[str, str | None]) -> ChooseScheme:
    """Packed where all tensors of a layer are of one known kind; `kinds` gives each tensor's by its name, None for plain numbers."""

    def choose(paths: Sequence[str]) -> Scheme:
        found = {kinds[name] for path in paths if (name := f"{path}.weight") in kinds}
        kind = found.pop() if len(found) == 1 else None
        return GGUFBlocks(kind) if kind in BLOCK_BYTES else Plain()

    return choose

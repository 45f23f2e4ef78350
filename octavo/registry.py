"""Names for things that live in modules which are imported only when the thing is used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any


class Registry:
    """Maps a name to "module:attribute". Looking a name up imports the module; an unknown name is an error that lists the known ones."""

    def __init__(self, what: str, places: Mapping[str, str]) -> None:
        self.what = what
        self.places = dict(places)

    def names(self) -> list[str]:
        return list(self.places)

    def load(self, name: str) -> Any:
        if name not in self.places:
            raise KeyError(f"no {self.what} is named {name!r}; there are: {', '.join(self.places)}")
        module, attribute = self.places[name].split(":")
        return getattr(import_module(module), attribute)

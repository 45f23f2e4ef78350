"""What was played so far, in a file: a command that was interrupted goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from octavo.config.fields import ConfigError


class Journal:
    """Results by name. `task` says what they are results of; a file of another task is refused."""

    def __init__(self, path: Path, task: Mapping[str, Any]) -> None:
        self.path = path
        self._task = json.loads(json.dumps(task))
        self._entries: dict[str, Any] = {}
        if path.exists():
            self._read()

    def of(self, name: str, make: Callable[[], Any]) -> Any:
        """The result of that name; made, and written at once, if there is none."""
        if name not in self._entries:
            self._entries[name] = make()
            self._write()
        return self._entries[name]

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def _read(self) -> None:
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            task, entries = data["task"], dict(data["entries"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError("state", str(self.path), f"it cannot be read ({error!r}); remove it, or name another") from None
        differ = sorted(name for name in {*task, *self._task} if task.get(name) != self._task.get(name))
        if differ:
            raise ConfigError("state", str(self.path), f"it is of another task ({', '.join(differ)} differ); remove it, or name another")
        self._entries = entries

    def _write(self) -> None:
        new = self.path.with_name(self.path.name + ".new")
        new.write_text(json.dumps({"task": self._task, "entries": self._entries}), encoding="utf-8")
        new.replace(self.path)

"""Files and batches on disk: what clients have uploaded, what batches have made of it, and how far each is.

The folder is the only truth: several API processes and a server that is started again see the same. Records are small JSON files that are
replaced at once, never written over. Everything belongs to an owner, the name of an API key, and is there for nobody else.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from octavo import env
from octavo.serve.errors import ApiError
from octavo.serve.front import Front

Record = dict[str, Any]
OWNER = "_owner"  # in a record; names that begin so are not shown
ID = re.compile(r"(file|batch)-[0-9a-f]{32}")
CHUNK_BYTES = 1 << 20


class Store:
    """Files as `files/ID.json` and `files/ID.data`; batches as `batches/ID.json`, with `ID.answers` while they run and `ID.cancel` where
    somebody has asked for it."""

    def __init__(self, root: Path, most_bytes: int, clock: Callable[[], float] = time.time) -> None:
        self.root = root
        self.clock = clock
        self._most_bytes = most_bytes
        self._files, self._batches = root / "files", root / "batches"

    def path(self, name: str, kind: str) -> Path:
        """Where "json", "data", "answers" or "cancel" of an id lies."""
        return (self._files if name.startswith("file") else self._batches) / f"{name}.{kind}"

    def new_id(self, kind: str) -> str:
        return f"{kind}-{uuid.uuid4().hex}"

    def put(self, record: Mapping[str, Any]) -> None:
        path = self.path(record["id"], "json")
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(f".{uuid.uuid4().hex}")
        beside.write_text(json.dumps(record), "utf-8")
        os.replace(beside, path)

    def get(self, name: str, owner: str | None) -> Record:
        """Raises `ApiError` where the owner has none of that name."""
        record = self._read(self.path(name, "json")) if ID.fullmatch(name) else None
        if record is None or record[OWNER] != owner:
            raise ApiError(404, f"There is no {'batch' if name.startswith('batch') else 'file'} {name[:64]!r}.", code="not_found")
        return record

    def all(self, kind: str, owner: str | None) -> list[Record]:
        """The newest first."""
        return [record for record in self.everything(kind) if record[OWNER] == owner]

    def everything(self, kind: str, but: Collection[str] = ()) -> list[Record]:
        """Of all owners, the newest first."""
        found = [self._read(path) for path in (self.root / kind).glob("*.json") if path.stem not in but]
        return sorted((record for record in found if record is not None), key=lambda record: (-record["created_at"], record["id"]))

    def add_file(self, source: BinaryIO, filename: str, purpose: str, owner: str | None) -> Record:
        """Keep a copy of what can be read. Raises `ApiError` where there is no room, and `OSError`."""
        name = self.new_id("file")
        path = self.path(name, "data")
        path.parent.mkdir(parents=True, exist_ok=True)
        room = self._most_bytes - sum(record["bytes"] for record in self.everything("files"))
        try:
            with path.open("xb") as copy:
                while chunk := source.read(CHUNK_BYTES):
                    room -= len(chunk)
                    if room < 0:
                        raise ApiError(413, "The store is full (--max-files-gb); delete files.", code="store_full")
                    copy.write(chunk)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        record = {
            "id": name, "object": "file", "bytes": path.stat().st_size, "created_at": int(self.clock()), "filename": filename,
            "purpose": purpose, "status": "processed", "expires_at": None, OWNER: owner,
        }  # fmt: skip
        self.put(record)
        return record

    def delete(self, record: Mapping[str, Any]) -> None:
        for kind in ("json", "data"):
            self.path(record["id"], kind).unlink(missing_ok=True)

    def _read(self, path: Path) -> Record | None:
        try:
            return json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            return None


def shown(record: Mapping[str, Any]) -> Record:
    return {name: value for name, value in record.items() if not name.startswith("_")}


def store_of(front: Front) -> Store:
    """In --files-dir, else under the model's name in the cache folder."""
    config = front.config
    root = Path(config.files_dir) if config.files_dir else env.cache_root() / "files" / quote(front.model.names[0], safe="")
    return Store(root, int(config.max_files_gb * 1e9))

"""OpenAI's batch form: a line of input is one call of a route, a line of output its answer, matched by `custom_id`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BEGINNING = b'{"id": "batch_req_'  # of each line of output
ROUTES = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings")


@dataclass(frozen=True)
class BadLine:
    """A line that is no call. `number` counts from 1."""

    number: int
    custom_id: str | None
    reason: str

    def record(self) -> dict[str, Any]:
        error = {"code": "invalid_line", "message": f"line {self.number}: {self.reason}", "line": self.number}
        return {"id": f"batch_req_{self.number}", "custom_id": self.custom_id, "response": None, "error": error}


@dataclass(frozen=True)
class Line:
    """One call."""

    number: int
    custom_id: str
    url: str
    body: Mapping[str, Any]

    def record(self, status: int, body: Any) -> dict[str, Any]:
        response = {"status_code": status, "request_id": f"batch-{self.number}", "body": body}
        return {"id": f"batch_req_{self.number}", "custom_id": self.custom_id, "response": response, "error": None}


def read_lines(texts: Iterable[str]) -> Iterator[Line | BadLine]:
    """Every line that is not blank, as a call or as what is wrong with it."""
    seen: set[str] = set()
    for number, text in enumerate(texts, 1):
        if text.strip():
            line = _read_line(number, text)
            if isinstance(line, Line) and line.custom_id in seen:
                line = BadLine(number, line.custom_id, f"custom_id {line.custom_id!r} stands on an earlier line too")
            elif isinstance(line, Line):
                seen.add(line.custom_id)
            yield line


def _read_line(number: int, text: str) -> Line | BadLine:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return BadLine(number, None, f"it is not JSON: {error}")
    if not isinstance(value, dict):
        return BadLine(number, None, "an object is needed")
    custom_id, body = value.get("custom_id"), value.get("body")
    if not isinstance(custom_id, str) or not custom_id:
        return BadLine(number, None, "custom_id is needed, a text of at least one character")
    if value.get("method", "POST") != "POST":
        return BadLine(number, custom_id, 'method must be "POST"')
    if value.get("url") not in ROUTES:
        return BadLine(number, custom_id, f"url must be one of {', '.join(ROUTES)}")
    if not isinstance(body, dict):
        return BadLine(number, custom_id, "body is needed, an object")
    if body.get("stream"):
        return BadLine(number, custom_id, "body.stream cannot be used in a batch")
    return Line(number, custom_id, value["url"], body)


def settled(record: Mapping[str, Any]) -> bool:
    """Whether asking again would give the same; what failed inside the server may go well another time."""
    return record["error"] is not None or record["response"]["status_code"] < 500


def answered_well(record: Mapping[str, Any]) -> bool:
    return record["error"] is None and record["response"]["status_code"] == 200


@dataclass(frozen=True)
class Answered:
    """What an output file holds already."""

    custom_ids: frozenset[str]
    bad_lines: frozenset[int]

    def has(self, line: Line | BadLine) -> bool:
        return line.custom_id in self.custom_ids if isinstance(line, Line) else line.number in self.bad_lines


class NoAnswers(ValueError):
    """A file that is to take answers, and holds something else; it is left as it is."""


def resume(path: Path) -> Answered:
    """What is answered already. A last line that was cut off is removed; answers that failed inside the server count as open.

    Raises `NoAnswers`.
    """
    custom_ids: set[str] = set()
    bad_lines: set[int] = set()
    if not path.exists():
        return Answered(frozenset(), frozenset())
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    for number, text in enumerate(whole.splitlines(), 1):
        record = _answer(path, number, text)
        if record["error"] is not None:
            bad_lines.add(record["error"].get("line"))
        elif settled(record):
            custom_ids.add(record["custom_id"])
    begun = data[len(whole) :]
    if not (begun.startswith(BEGINNING) or BEGINNING.startswith(begun)):
        raise NoAnswers(f"{path} holds no answers of a batch: its last line")
    if begun:
        with path.open("r+b") as file:
            file.truncate(len(whole))
    return Answered(frozenset(custom_ids), frozenset(bad_lines))


def _answer(path: Path, number: int, text: bytes) -> dict[str, Any]:
    try:
        record = json.loads(text)
        if record["id"].startswith("batch_req_") and {"custom_id", "response", "error"} <= record.keys():
            return record
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        pass
    raise NoAnswers(f"{path} holds no answers of a batch: line {number}")

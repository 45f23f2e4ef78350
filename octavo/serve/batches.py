"""/v1/batches: many calls from one file, answered when there is room."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from octavo.serve.batch_file import ROUTES
from octavo.serve.errors import ApiError
from octavo.serve.files import owner_of, page, stored
from octavo.serve.files_store import OWNER, Record, Store, shown
from octavo.serve.routes import reply
from octavo.serve.schemas import convert, parse_json
from octavo.types import InvalidRequest

WINDOW, WINDOW_S = "24h", 24 * 3600
OPEN = ("validating", "in_progress", "finalizing")
MOST_METADATA = 16


class BatchBody(msgspec.Struct):
    input_file_id: str
    endpoint: str
    completion_window: str = WINDOW
    metadata: dict[str, str] | None = None


def batch_routes(store: Store) -> list[Route]:
    return [
        stored(store, "/v1/batches", "POST", create),
        stored(store, "/v1/batches", "GET", batches),
        stored(store, "/v1/batches/{id}", "GET", batch),
        stored(store, "/v1/batches/{id}/cancel", "POST", cancel),
    ]


async def create(store: Store, request: Request) -> Response:
    """Answer the calls in a file"""
    body = convert(parse_json(await request.body()), BatchBody)
    if body.endpoint not in ROUTES:
        raise InvalidRequest("endpoint", body.endpoint, f"use {', '.join(ROUTES)}")
    if body.completion_window != WINDOW:
        raise InvalidRequest("completion_window", body.completion_window, f"use {WINDOW}")
    if len(body.metadata or {}) > MOST_METADATA:
        raise InvalidRequest("metadata", f"{len(body.metadata or {})} entries", f"use at most {MOST_METADATA}")
    owner = owner_of(request)
    if not body.input_file_id.startswith("file"):
        raise InvalidRequest("input_file_id", body.input_file_id, "use the id of a file that was uploaded")
    store.get(body.input_file_id, owner)
    record = new_record(store, body, owner)
    store.put(record)
    return reply(shown(record))


def new_record(store: Store, body: BatchBody, owner: str | None) -> Record:
    now = int(store.clock())
    times = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
    return {
        "id": store.new_id("batch"), "object": "batch", "endpoint": body.endpoint, "errors": None, "input_file_id": body.input_file_id,
        "completion_window": WINDOW, "status": "validating", "output_file_id": None, "error_file_id": None, "created_at": now,
        "expires_at": now + WINDOW_S, **{f"{name}_at": None for name in times},
        "request_counts": {"total": 0, "completed": 0, "failed": 0}, "metadata": body.metadata, OWNER: owner,
    }  # fmt: skip


async def batches(store: Store, request: Request) -> Response:
    """Your batches, the newest first"""
    return page([seen(store, record) for record in store.all("batches", owner_of(request))], request, 20)


async def batch(store: Store, request: Request) -> Response:
    """How far a batch is"""
    return reply(shown(seen(store, _named(store, request))))


async def cancel(store: Store, request: Request) -> Response:
    """Answer no more calls of a batch; what is answered stays"""
    record = _named(store, request)
    if record["status"] not in OPEN:
        raise ApiError(409, f"The batch is {record['status']} already.", param="id")
    store.path(record["id"], "cancel").touch()
    return reply(shown(seen(store, record)))


def seen(store: Store, record: Record) -> Record:
    """As clients see it: who asked for an end is told that it comes."""
    wish = store.path(record["id"], "cancel")
    if record["status"] in OPEN and wish.exists():
        return {**record, "status": "cancelling", "cancelling_at": int(wish.stat().st_mtime)}
    return record


def _named(store: Store, request: Request) -> dict[str, Any]:
    name = request.path_params["id"]
    if not name.startswith("batch"):
        raise ApiError(404, f"There is no batch {name[:64]!r}.", code="not_found")
    return store.get(name, owner_of(request))

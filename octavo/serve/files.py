"""/v1/files: what batches read and write."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from octavo.serve.accounts import ACCOUNT
from octavo.serve.errors import ApiError
from octavo.serve.files_store import Record, Store, shown
from octavo.serve.routes import reply
from octavo.types import InvalidRequest

PURPOSE = "batch"
MOST_LISTED = 10_000


def file_routes(store: Store) -> list[Route]:
    return [
        stored(store, "/v1/files", "POST", upload),
        stored(store, "/v1/files", "GET", files),
        stored(store, "/v1/files/{id}", "GET", file),
        stored(store, "/v1/files/{id}", "DELETE", delete),
        stored(store, "/v1/files/{id}/content", "GET", content),
    ]


def stored(store: Store, path: str, method: str, answer: Callable[[Store, Request], Awaitable[Response]]) -> Route:
    """A route to what is done with the store. What the disk refuses is told as it is."""

    async def endpoint(request: Request) -> Response:
        try:
            return await answer(store, request)
        except OSError as error:
            raise ApiError(503, f"The server cannot use its store: {error.strerror}.", code="store_failed") from error

    endpoint.__doc__ = answer.__doc__
    return Route(path, endpoint, methods=[method])


def owner_of(request: Request) -> str | None:
    """The name of the key that was shown; None where none is asked for."""
    account = request.scope.get(ACCOUNT)
    return None if account is None else account.name


def page(records: list[Record], request: Request, most: int) -> Response:
    """A list in OpenAI's form, by the queries `after` and `limit`."""
    query = request.query_params
    limit = query.get("limit", str(most))
    if not limit.isdecimal() or not 1 <= int(limit) <= MOST_LISTED:
        raise InvalidRequest("limit", limit, f"use 1 to {MOST_LISTED}")
    ids = [record["id"] for record in records]
    first = ids.index(query["after"]) + 1 if query.get("after") in ids else 0
    listed = [shown(record) for record in records[first : first + int(limit)]]
    ends = {"first_id": listed[0]["id"] if listed else None, "last_id": listed[-1]["id"] if listed else None}
    return reply({"object": "list", "data": listed, **ends, "has_more": first + len(listed) < len(records)})


async def upload(store: Store, request: Request) -> Response:
    """Keep a file: a form with `file` and `purpose`"""
    try:
        async with request.form(max_files=1, max_fields=16) as form:
            given, purpose = form.get("file"), form.get("purpose")
            if not isinstance(given, UploadFile):
                raise ApiError(400, "`file` is needed, as a part of a multipart/form-data body with a file name.", param="file")
            if purpose != PURPOSE:
                raise InvalidRequest("purpose", purpose, f"use {PURPOSE}")
            name = given.filename or "file"
            record = await asyncio.to_thread(store.add_file, given.file, name[:256], PURPOSE, owner_of(request))
    except HTTPException as error:
        raise ApiError(400, f"The body is no form: {error.detail}") from None
    return reply(shown(record))


async def files(store: Store, request: Request) -> Response:
    """Your files, the newest first"""
    records = store.all("files", owner_of(request))
    purpose = request.query_params.get("purpose")
    if request.query_params.get("order") == "asc":
        records.reverse()
    return page([record for record in records if purpose in (None, record["purpose"])], request, MOST_LISTED)


async def file(store: Store, request: Request) -> Response:
    """What is known of a file"""
    return reply(shown(_named(store, request)))


async def content(store: Store, request: Request) -> Response:
    """What is in a file"""
    return FileResponse(store.path(_named(store, request)["id"], "data"), media_type="application/octet-stream")


async def delete(store: Store, request: Request) -> Response:
    """Forget a file"""
    record = _named(store, request)
    store.delete(record)
    return reply({"id": record["id"], "object": "file", "deleted": True})


def _named(store: Store, request: Request) -> dict[str, Any]:
    name = request.path_params["id"]
    if not name.startswith("file"):
        raise ApiError(404, f"There is no file {name[:64]!r}.", code="not_found")
    return store.get(name, owner_of(request))

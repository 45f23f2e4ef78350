"""The description of the API: /openapi.json in OpenAPI 3.1, and as a page at /docs. Made from the routes and their typed bodies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from octavo.serve.batches import BatchBody
from octavo.serve.calls import Running
from octavo.serve.errors import ErrorReply
from octavo.serve.messages_input import CountBody
from octavo.serve.schemas import ChatBody, DetokenizeBody, TokenizeBody, TokenizeChatBody

BODIES: Mapping[str, tuple[type[msgspec.Struct], ...]] = {  # of routes that run no requests: any of these
    "/v1/messages/count_tokens": (CountBody,),
    "/tokenize": (TokenizeBody, TokenizeChatBody),
    "/detokenize": (DetokenizeBody,),
    "/render": (ChatBody,),
    "/v1/batches": (BatchBody,),
}
REF = "#/components/schemas/{name}"
STYLE = """body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem;color-scheme:light dark}
summary{cursor:pointer;padding:.4rem 0}code{font-size:.95em}
b{display:inline-block;min-width:3.5rem}
table{border-collapse:collapse;margin:.5rem 0 1rem 1rem}
td{padding:.15rem 1rem .15rem 0;vertical-align:top}"""


def description_routes(described: list[BaseRoute]) -> list[BaseRoute]:
    """Routes that describe the others."""

    async def openapi(request: Request) -> Response:
        """This API, in OpenAPI's form"""
        return Response(msgspec.json.encode(describe(described, request.scope.get("root_path", ""))), media_type="application/json")

    async def docs(request: Request) -> Response:
        """This API, as a page"""
        return HTMLResponse(as_page(describe(described, request.scope.get("root_path", ""))))

    return [Route("/openapi.json", openapi), Route("/docs", docs)]


def describe(routes: Iterable[BaseRoute], root_path: str = "") -> dict[str, Any]:
    """The OpenAPI document. Bodies take fields that are not listed: they are ignored, as OpenAI's API does."""
    from octavo import __version__

    served = [route for route in routes if isinstance(route, Route)]
    kinds: set[type[Any]] = {ErrorReply, *(kind for bodies in BODIES.values() for kind in bodies)}
    for route in served:
        if isinstance(route.endpoint, Running):
            kinds |= {route.endpoint.endpoint.body, route.endpoint.endpoint.answer}
    _, components = msgspec.json.schema_components(kinds, ref_template=REF)
    paths: dict[str, Any] = {}
    for route in served:
        path = route.path.replace(":path}", "}")
        for method in sorted((route.methods or {"GET"}) - {"HEAD"}):
            paths.setdefault(path, {})[method.lower()] = _operation(route, path)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Octavo", "version": __version__},
        "servers": [{"url": root_path or "/"}],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{"key": []}, {}],
    }


def _operation(route: Route, path: str) -> dict[str, Any]:
    answers: dict[str, Any] = {"default": {"description": "An error", "content": _json(ErrorReply)}}
    operation: dict[str, Any] = {"responses": answers}
    if isinstance(route.endpoint, Running):
        endpoint = route.endpoint.endpoint
        operation["summary"] = endpoint.summary
        operation["requestBody"] = {"required": True, "content": _json(endpoint.body)}
        content = _json(endpoint.answer)
        if "stream" in endpoint.body.__struct_fields__:
            content["text/event-stream"] = {"schema": {"type": "string"}}
        answers["200"] = {"description": "The answer", "content": content}
        return operation
    operation["summary"] = (route.endpoint.__doc__ or path).strip().split("\n")[0].rstrip(".")
    if path in BODIES and "POST" in (route.methods or ()):
        operation["requestBody"] = {"required": True, "content": _json(*BODIES[path])}
    if route.param_convertors:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in route.param_convertors
        ]
    answers["200"] = {"description": "The answer"}
    return operation


def _json(*kinds: type[msgspec.Struct]) -> dict[str, Any]:
    schemas = [{"$ref": REF.format(name=kind.__name__)} for kind in kinds]
    return {"application/json": {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}}


def as_page(document: Mapping[str, Any]) -> str:
    """One page without scripts and without anything from elsewhere."""
    schemas = document["components"]["schemas"]
    parts = [
        _section(method, path, operation, schemas)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    info = document["info"]
    head = "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
    intro = f"<h1>{info['title']} {info['version']}</h1><p>The same for programs: <a href='openapi.json'>openapi.json</a>.</p>"
    return f"{head}<title>{info['title']}</title><style>{STYLE}</style>{intro}{''.join(parts)}</html>"


def _section(method: str, path: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    title = f"<b>{method.upper()}</b> <code>{escape(path)}</code> &nbsp; {escape(operation['summary'])}"
    schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    tables = "".join(_table(schemas[one["$ref"].rpartition("/")[2]]) for one in schema.get("anyOf", [schema]) if one)
    return f"<details><summary>{title}</summary>{tables}</details>"


def _table(schema: Mapping[str, Any]) -> str:
    needed = schema.get("required", ())
    rows = [
        f"<tr><td><code>{escape(name)}</code><td>{escape(_kind(field))}<td>{'needed' if name in needed else ''}"
        for name, field in schema.get("properties", {}).items()
    ]
    return f"<table>{''.join(rows)}</table>"


def _kind(field: Mapping[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(kind for kind in map(_kind, field["anyOf"]) if kind != "null")
    if "enum" in field:
        return " or ".join(f'"{value}"' for value in field["enum"] if value is not None)
    if "$ref" in field:
        return field["$ref"].rpartition("/")[2]
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items', {}))}"
    return str(field.get("type", "any"))

"""The API's description: every route is in it, the page needs nothing from elsewhere, and what is made from it is answered."""

import re

from starlette.routing import Route

from octavo.serve.app import create_app
from octavo.serve.endpoints import ENDPOINTS
from tests.serve.fuzz import fuzz
from tests.serve.serving import client, make_front


async def test_every_route_is_described() -> None:
    async with client() as api:
        document = (await api.http.get("/openapi.json")).json()
        described = {(method.upper(), path) for path, operations in document["paths"].items() for method in operations}
        served = {
            (method, route.path.replace(":path}", "}"))
            for route in create_app(make_front()).routes
            if isinstance(route, Route)
            for method in (route.methods or set()) - {"HEAD"}
        }
        known = {("GET", "/docs"), ("GET", "/openapi.json")} | {pair for pair in served if pair[1].startswith("/dashboard")}
        assert served - described <= known
        assert {("POST", path) for endpoint in ENDPOINTS for path in endpoint.paths} <= described
        for operations in document["paths"].values():
            for operation in operations.values():
                assert operation["summary"]
        schemas = document["components"]["schemas"]
        assert set(re.findall(r'#/components/schemas/(\w+)"', (await api.http.get("/openapi.json")).text)) <= set(schemas)
        assert schemas["ChatBody"]["required"] == ["messages"]


async def test_the_page_needs_nothing_from_elsewhere() -> None:
    async with client(root_path="/llm") as api:
        page = (await api.http.get("/docs")).text
        for word in ("/v1/chat/completions", "messages", "temperature", "needed", "/rerank"):
            assert word in page
        assert "://" not in page
        assert "<script" not in page


def test_requests_made_from_the_description_never_break_the_server() -> None:
    """A few; the long run is `python -m tests.serve.fuzz 5000`."""
    counts = fuzz(150)
    assert sum(counts.values()) >= 150
    for path in ("completions", "chat/completions", "responses", "messages", "embeddings"):
        assert counts[f"POST /v1/{path} 200"], "some calls are good"

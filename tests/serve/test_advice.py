"""GET /advice gives what the engine finds."""

from __future__ import annotations

from tests.serve.serving import client


async def test_findings_are_given_as_the_engine_has_them() -> None:
    async with client() as api:
        answer = (await api.http.get("/advice")).json()
    assert [finding["kind"] for finding in answer["findings"]] == ["saturated"]
    assert answer["findings"][0]["flags"] == ["--data-parallel-size"]

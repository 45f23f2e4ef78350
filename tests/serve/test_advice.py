"""GET /advice and the dashboard give what the engine finds."""

from __future__ import annotations

from tests.serve.serving import client

FINDING = {"kind": "saturated", "evidence": "a script", "advice": "another script", "flags": ["--data-parallel-size"]}


async def test_findings_are_given_as_the_engine_has_them() -> None:
    async with client() as api:
        assert (await api.http.get("/advice")).json() == {"findings": []}
        api.engine.findings = [FINDING]
        assert (await api.http.get("/advice")).json() == {"findings": [FINDING]}
        assert (await api.http.get("/dashboard/data")).json()["advice"] == [FINDING]

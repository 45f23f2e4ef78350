"""Requests made at random from the API's own description, at a scripted engine: `python -m tests.serve.fuzz 5000`.

No answer may be a 5xx, but 503 with Retry-After; afterwards the engine must be alive with nothing left in it.
"""

from __future__ import annotations

import sys
from collections import Counter

import schemathesis
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from schemathesis.generation import GenerationMode
from starlette.testclient import TestClient

from octavo.serve.app import create_app
from tests.scripted_engine import ScriptedEngine
from tests.serve.serving import make_front

HELLO = [{"role": "user", "content": "Hi"}]
GOOD = {  # what a call cannot do without: at random it is hardly ever right
    "/v1/completions": {"prompt": "Hi"},
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/messages": {"messages": HELLO, "max_tokens": 9},
    "/v1/responses": {"input": "Hi"},
    "/v1/embeddings": {"input": "Hi"},
    "/render": {"messages": HELLO},
}
KEPT = 3  # fields beside those


def nearly_good(case: schemathesis.Case) -> schemathesis.Case:
    """The case with what its body needs made right, and few other fields, so that each of them is reached."""
    needed = GOOD.get(case.path)
    if needed is not None and isinstance(case.body, dict):
        others = {name: value for name, value in case.body.items() if name not in (*needed, "model")}
        case.body = {**dict(list(others.items())[:KEPT]), **needed}
    return case


def fuzz(num_requests: int, first_seed: int = 0) -> Counter[str]:
    """Send at least `num_requests`; how often each status came, by route."""
    front = make_front()
    app = create_app(front)
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    operations = [found.ok() for found in schema.get_all_operations()]
    counts: Counter[str] = Counter()
    client = TestClient(app, raise_server_exceptions=False)
    turn = first_seed
    while sum(counts.values()) < num_requests:
        for operation in operations:
            if turn % 2 and not operation.body:
                continue  # nothing about it can be wrong
            mode = GenerationMode.NEGATIVE if turn % 2 else GenerationMode.POSITIVE
            cases = operation.as_strategy(generation_mode=mode)
            if turn % 4 >= 2:
                cases = cases.map(nearly_good)
            each = max(1, num_requests // (4 * len(operations))) if operation.body else 2

            @seed(turn)
            @settings(
                max_examples=each, database=None, deadline=None, phases=[Phase.generate], verbosity=Verbosity.quiet,
                suppress_health_check=list(HealthCheck),
            )  # fmt: skip
            @given(case=cases)
            def send(case: schemathesis.Case) -> None:
                response = case.call(session=client)
                told = f"{case.method} {case.path} {case.body!r:.2000}: {response.status_code} {response.text[:2000]}"
                assert response.status_code < 500 or (response.status_code == 503 and "retry-after" in response.headers), told
                counts[f"{case.method} {case.path} {response.status_code}"] += 1

            send()
        turn += 1
    engine = front.engine
    assert isinstance(engine, ScriptedEngine)
    answer = client.post("/v1/completions", json={"prompt": "Hi"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"] == "Hello, world!"
    assert not engine.active
    assert not front.running
    return counts


if __name__ == "__main__":
    found = fuzz(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    for name, count in sorted(found.items()):
        print(f"{count:6d} {name}")
    print(f"{sum(found.values())} requests, no 5xx, the engine lives")

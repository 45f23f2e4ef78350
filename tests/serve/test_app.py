"""What holds for every route: keys, limits, health, unknown routes, and that no body ever stops the server."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.serve.schemas import ChatBody, CompletionBody, DetokenizeBody, TokenizeChatBody
from tests.scripted_engine import Script
from tests.serve.serving import client

GUARDED = [
    ("GET", "/v1/models"), ("POST", "/v1/completions"), ("POST", "/v1/chat/completions"), ("POST", "/tokenize"), ("POST", "/detokenize"),
    ("GET", "/metrics"), ("GET", "/load"), ("GET", "/version"), ("POST", "/reset_prefix_cache"), ("GET", "/nothing"),
    ("GET", "/health/other"), ("GET", "/dashboards"),
    ("POST", "/v1/responses"), ("POST", "/v1/messages"), ("POST", "/v1/messages/count_tokens"), ("POST", "/render"),
    ("POST", "/v1/embeddings"), ("POST", "/score"), ("POST", "/rerank"),
]  # fmt: skip


async def test_every_route_is_behind_the_keys_but_the_probes() -> None:
    async with client(api_key=("one", "two")) as api:
        for method, path in GUARDED:
            for headers in (
                {},
                {"Authorization": "Bearer three"},
                {"Authorization": "one"},
                {"Authorization": "Basic one"},
                {"Authorization": "Bearer "},
            ):
                response = await api.http.request(method, path, headers=headers, json={})
                assert response.status_code == 401, (path, headers)
                assert response.json()["error"]["code"] == "invalid_api_key"
                assert response.headers["www-authenticate"] == "Bearer"
            for key in ("one", "two"):
                assert (await api.http.request(method, path, headers={"Authorization": f"Bearer {key}"}, json={})).status_code != 401
        for path in ("/health", "/health/live", "/health/ready", "/ping"):
            assert (await api.http.get(path)).status_code == 200


async def test_unknown_routes_and_methods() -> None:
    async with client() as api:
        for method, path, status in (
            ("GET", "/v2/x", 404),
            ("GET", "/v1/completions", 405),
            ("DELETE", "/v1/models", 405),
            ("GET", "/v1/models/", 404),
        ):
            response = await api.http.request(method, path)
            assert response.status_code == status
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}


async def test_models() -> None:
    async with client() as api:
        listed = (await api.http.get("/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == ["tiny", "alias"]
        assert listed["data"][0]["max_model_len"] == 128
        assert (await api.http.get("/v1/models/alias")).json()["id"] == "alias"
        assert (await api.http.get("/v1/models/org/other")).status_code == 404


async def test_the_prompt_that_a_chat_becomes() -> None:
    async with client() as api:
        body = {"messages": [{"role": "user", "content": "Hi"}]}
        shown = (await api.post("/render", body)).json()
        assert shown["prompt"] == "<user>Hi\n<assistant>"
        await api.post("/v1/chat/completions", body)
        assert shown["prompt_token_ids"] == list(api.engine.requests[-1].prompt_token_ids)
        assert shown["count"] == len(shown["prompt_token_ids"])
        assert (await api.post("/render", {"messages": 5})).status_code == 400


async def test_a_body_may_be_only_so_large() -> None:
    async with client(max_body_bytes=1000) as api:

        async def dribble():
            for _ in range(20):
                yield b" " * 100

        for content in (b" " * 2000, dribble()):
            response = await api.http.post("/v1/completions", content=content)
            assert response.status_code == 413
            assert response.json()["error"]["code"] == "body_too_large"
        await api.alive()


async def test_cors() -> None:
    async with client(allowed_origins=("http://page",), api_key=("k",)) as api:
        headers = {"Origin": "http://page", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        preflight = await api.http.options("/v1/completions", headers=headers)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "http://page"
        refused = await api.http.post("/v1/completions", headers={"Origin": "http://page"})
        assert refused.headers["access-control-allow-origin"] == "http://page", "a page can read errors too"


async def test_health_tells_the_truth() -> None:
    async with client() as api:
        assert (await api.http.get("/health/ready")).status_code == 200
        api.front.draining = True
        assert (await api.http.get("/health")).status_code == 200
        assert (await api.http.get("/health/ready")).status_code == 503
        response = await api.post("/v1/completions", {"prompt": "a"})
        assert response.status_code == 503
        assert response.headers["retry-after"]
        api.front.draining = False
        api.engine.dead = "RuntimeError: out of luck"
        for path in ("/health", "/health/live", "/health/ready", "/ping"):
            response = await api.http.get(path)
            assert response.status_code == 503
            assert "out of luck" in response.json()["reason"]
        response = await api.post("/v1/completions", {"prompt": "a"})
        assert response.status_code == 503
        assert "out of luck" in response.json()["error"]["message"]


async def test_a_full_queue_says_when_to_come_again() -> None:
    async with client(Script(prefill_s=0.2), max_num_queued_reqs=2) as api:
        answers = await asyncio.gather(*(api.post("/v1/completions", {"prompt": "a"}) for _ in range(5)))
        assert sorted(answer.status_code for answer in answers) == [200, 200, 429, 429, 429]
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.headers["retry-after"]
        assert refused.json()["error"]["type"] == "rate_limit_error"
        await api.alive()


async def test_a_queue_full_of_tokens() -> None:
    async with client(Script(prefill_s=0.2), max_num_queued_tokens=50) as api:
        answers = await asyncio.gather(*(api.post("/v1/completions", {"prompt": [5] * 40, "max_tokens": 1}) for _ in range(3)))
        assert sorted(answer.status_code for answer in answers) == [200, 429, 429]
        assert (await api.post("/v1/completions", {"prompt": [5] * 60, "max_tokens": 1})).status_code == 200, "one alone is always taken"


async def test_the_prefix_cache_can_be_reset() -> None:
    async with client() as api:
        assert (await api.post("/reset_prefix_cache")).json() == {"reset": True}


async def test_what_nobody_foresaw_is_500_without_details(caplog: pytest.LogCaptureFixture) -> None:
    async with client() as api:
        api.front.check_model = lambda name: 1 / 0  # pyright: ignore
        response = await api.post("/v1/completions", {"prompt": "a"})
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "internal_error"
        assert "division" not in response.text
        assert "division" in caplog.text


ANYTHING = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.integers(-3, 300), st.floats(), st.text(max_size=8), st.sampled_from(["auto", "none"])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5) | st.sampled_from(["role", "content", "5"]), inner, max_size=3)
    ),
    max_leaves=6,
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "tool"])}, optional={"content": ANYTHING, "tool_calls": ANYTHING}),
    max_size=3,
)
BODIES = {
    "/v1/completions": (CompletionBody, {"prompt": "a", "max_tokens": 3}),
    "/v1/chat/completions": (ChatBody, {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3}),
    "/tokenize": (TokenizeChatBody, {"messages": [{"role": "user", "content": "a"}]}),
    "/detokenize": (DetokenizeBody, {"tokens": [5]}),
}


@settings(max_examples=300, deadline=None)
@given(data=st.data(), path=st.sampled_from(sorted(BODIES)))
def test_any_body_is_answered_and_the_engine_lives(data: st.DataObject, path: str) -> None:
    kind, good = BODIES[path]
    fields = data.draw(st.lists(st.sampled_from(sorted(kind.__struct_fields__)), max_size=3, unique=True))
    body = good | {name: data.draw(MESSAGES if name == "messages" else ANYTHING) for name in fields}

    async def send() -> None:
        async with client() as api:
            response = await api.http.post(path, content=json.dumps(body))
            assert response.status_code in (200, 400, 404), response.text
            if response.status_code != 200:
                assert set(response.json()["error"]) == {"message", "type", "param", "code"}
                assert len(response.content) < 8192
            await api.alive()

    asyncio.run(send())


@settings(max_examples=100, deadline=None)
@given(
    content=st.one_of(st.binary(max_size=60), ANYTHING.map(lambda value: json.dumps(value).encode())), path=st.sampled_from(sorted(BODIES))
)
def test_any_bytes_are_answered(content: bytes, path: str) -> None:
    async def send() -> None:
        async with client() as api:
            response = await api.http.post(path, content=content)
            assert response.status_code in (400, 404), response.text

    asyncio.run(send())


def test_every_field_of_the_schemas_is_fuzzed() -> None:
    fields: set[Any] = {name for kind, _ in BODIES.values() for name in kind.__struct_fields__}
    assert {"prompt", "messages", "temperature", "chat_template_kwargs", "logit_bias", "tokens"} <= fields


async def test_a_request_is_logged_only_where_asked_and_never_with_its_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="octavo.serve")
    for asked in (False, True):
        caplog.clear()
        async with client(enable_log_requests=asked) as api:
            await api.post("/v1/completions", {"prompt": "a secret", "max_tokens": 7, "request_id": "mine"})
        assert ("cmpl-mine" in caplog.text and "max_tokens=7" in caplog.text) is asked
        assert "secret" not in caplog.text
        assert "Hello" not in caplog.text, "the answer is not told either"

"""/v1/embeddings, /score and /rerank: forms of input and answer, what is refused, and what is counted."""

import base64
import math
import struct
from typing import Any

import pytest

from tests.scripted_engine import Script
from tests.serve.serving import MAX_MODEL_LEN, client

EMBEDDINGS = "/v1/embeddings"


def direction(ids: list[int]) -> list[float]:
    counts = [sum(i % 4 == k for i in ids) for k in range(4)]
    return [count / math.hypot(*counts) for count in counts]


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        ("ab", [[256, 97, 98]]),
        (["ab", "b"], [[256, 97, 98], [256, 98]]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
async def test_inputs_in_every_form(given: Any, ids: list[list[int]]) -> None:
    async with client() as api:
        answer = (await api.post(EMBEDDINGS, {"input": given, "model": "alias"})).json()
        assert [list(request.prompt_token_ids) for request in api.engine.requests] == ids
        assert [one["embedding"] for one in answer["data"]] == [pytest.approx(direction(one)) for one in ids]
        assert [(one["index"], one["object"]) for one in answer["data"]] == [(i, "embedding") for i in range(len(ids))]
        assert (answer["object"], answer["model"]) == ("list", "tiny")
        assert answer["usage"] == {"prompt_tokens": sum(map(len, ids)), "total_tokens": sum(map(len, ids))}
        coded = (await api.post(EMBEDDINGS, {"input": given, "encoding_format": "base64"})).json()
        for one, other in zip(answer["data"], coded["data"], strict=True):
            assert struct.unpack("<4f", base64.b64decode(other["embedding"])) == tuple(one["embedding"])
        await api.alive()


async def test_shorter_and_unscaled_vectors() -> None:
    async with client() as api:
        answer = (await api.post(EMBEDDINGS, {"input": [0, 1, 1, 2], "dimensions": 2})).json()
        assert answer["data"][0]["embedding"] == pytest.approx([1 / math.sqrt(5), 2 / math.sqrt(5)])
        answer = (await api.post(EMBEDDINGS, {"input": [0, 1, 1, 2], "normalize": False})).json()
        assert answer["data"][0]["embedding"] == [1, 2, 1, 0]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"), ({"input": []}, "input"), ({"input": [[]]}, "input"), ({"input": [4096]}, "input"), ({"input": [-1]}, "input"),
        ({"input": {"a": 1}}, "input"), ({"input": ["a", [1]]}, "input"), ({"input": ["a"] * 2049}, "input"),
        ({"input": [5] * MAX_MODEL_LEN}, "input"), ({"input": "a", "dimensions": 3}, "dimensions"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"), ({"input": "a", "cache_salt": ""}, "cache_salt"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ],
)  # fmt: skip
async def test_what_is_refused(body: dict[str, Any], param: str) -> None:
    async with client() as api:
        response = await api.post(EMBEDDINGS, body)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"].startswith(param)
        assert len(response.content) < 8192
        assert (await api.post(EMBEDDINGS, {"input": "a", "model": "other"})).status_code == 404
        await api.alive()


async def test_a_long_input_can_be_cut() -> None:
    async with client() as api:
        answer = (await api.post(EMBEDDINGS, {"input": [5] * 500, "truncate_prompt_tokens": -1})).json()
        assert answer["usage"]["prompt_tokens"] == MAX_MODEL_LEN - 1


async def test_failures_are_told_and_counted() -> None:
    async with client(Script(fail_after=0)) as api:
        response = await api.post(EMBEDDINGS, {"input": ["a", "b"]})
        assert (response.status_code, response.json()["error"]["code"]) == (500, "engine_error")
    async with client(Script(die_after=0)) as api:
        response = await api.post(EMBEDDINGS, {"input": ["a", "b"]})
        assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_dead")


async def test_vectors_count_as_prompts_read_not_as_texts_written() -> None:
    async with client() as api:
        await api.post(EMBEDDINGS, {"input": ["ab", "c"]})
        metrics = api.front.metrics
        assert (metrics.prompt_tokens, metrics.generation_tokens, metrics.finished["stop"] + metrics.finished["length"]) == (5, 0, 2)
        await api.alive()


async def test_scores_are_cosines() -> None:
    async with client() as api:
        one = (await api.post("/score", {"text_1": "a", "text_2": ["a", "b"]})).json()
        assert [(item["index"], item["object"]) for item in one["data"]] == [(0, "score"), (1, "score")]
        assert [item["score"] for item in one["data"]] == pytest.approx([1.0, 0.5])
        pairs = (await api.post("/v1/score", {"text_1": ["a", "b"], "text_2": ["b", "b"]})).json()
        assert [item["score"] for item in pairs["data"]] == pytest.approx([0.5, 1.0])
        for body in ({"text_1": ["a", "b"], "text_2": ["c"]}, {"text_1": [], "text_2": "a"}, {"text_1": "a", "text_2": []}):
            assert (await api.post("/score", body)).status_code == 400
        await api.alive()


async def test_documents_are_ranked() -> None:
    async with client() as api:
        body = {"query": "a", "documents": ["b", {"text": "a"}, "ab"]}
        ranking = (await api.post("/rerank", body)).json()
        assert [item["index"] for item in ranking["results"]] == [1, 2, 0]
        assert [item["document"]["text"] for item in ranking["results"]] == ["a", "ab", "b"]
        assert ranking["results"][0]["relevance_score"] == pytest.approx(1)
        best = (await api.post("/v2/rerank", {**body, "top_n": 1, "return_documents": False})).json()
        assert [set(item) for item in best["results"]] == [{"index", "relevance_score"}]
        for wrong in ({"documents": []}, {"top_n": -1}, {"documents": [5]}):
            assert (await api.post("/v1/rerank", {**body, **wrong})).status_code == 400
        await api.alive()

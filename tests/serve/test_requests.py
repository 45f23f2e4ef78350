"""What a body may say: prompts, limits, sampling fields, log-probabilities."""

import gc
import threading
from typing import Any

import pytest

from octavo.serve import schemas
from tests.scripted_engine import BOS, END_OF_TURN, EOS, Script
from tests.serve.serving import MAX_MODEL_LEN, client

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hi"}]


async def refused(api: Any, path: str, body: Any, param: str | None, status: int = 400, **kwargs: Any) -> dict[str, Any]:
    response = await api.post(path, body, **kwargs)
    assert response.status_code == status, response.text
    assert len(response.content) < 8192
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    if param is not None:
        assert (error["param"] or "").startswith(param), error
    return error


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("Hi", [[BOS, 72, 105]]),
        (["Hi", "a"], [[BOS, 72, 105], [BOS, 97]]),
        ([72, 105], [[72, 105]]),
        ([[72], [105, 106]], [[72], [105, 106]]),
    ],
)
async def test_prompts_in_every_form(prompt: Any, ids: list[list[int]]) -> None:
    async with client() as api:
        response = await api.post(COMPLETIONS, {"prompt": prompt, "model": "alias"})
        assert response.status_code == 200
        assert [list(request.prompt_token_ids) for request in api.engine.requests] == ids
        assert response.json()["model"] == "tiny"
        assert response.json()["usage"]["prompt_tokens"] == sum(map(len, ids))


@pytest.mark.parametrize(
    "prompt",
    [
        [[-1]],
        [5, -1],
        [True],
        [1.5],
        [[1.5]],
        [[]],
        [],
        [[5], "a"],
        ["a", 5],
        ["a", [5]],
        [4096],
        [[4096]],
        [None],
        None,
        5,
        {},
        {"a": 1},
        True,
    ],
)
async def test_prompts_that_are_none(prompt: Any) -> None:
    async with client() as api:
        await refused(api, COMPLETIONS, {"prompt": prompt}, "prompt")
        await refused(api, COMPLETIONS, {"prompt": prompt, "stream": True, "echo": True, "logprobs": 1}, "prompt")
        await api.alive()


async def test_an_empty_text_is_the_beginning_token_alone_or_refused() -> None:
    async with client() as api:
        assert (await api.post(COMPLETIONS, {"prompt": ""})).json()["usage"]["prompt_tokens"] == 1
        await refused(api, COMPLETIONS, {"prompt": "", "add_special_tokens": False}, "prompt")


async def test_too_many_prompts() -> None:
    async with client() as api:
        await refused(api, COMPLETIONS, {"prompt": ["a"] * 2049}, "prompt")
        await refused(api, COMPLETIONS, {"prompt": ["a"] * 20, "n": 1000}, "n")
        await refused(api, COMPLETIONS, {"prompt": "a", "n": 10**6}, "n")


async def test_the_context_is_exactly_as_long_as_told() -> None:
    async with client(Script(forever=True)) as api:
        error = await refused(api, COMPLETIONS, {"prompt": [5] * MAX_MODEL_LEN, "max_tokens": 1}, "prompt")
        assert error["code"] == "context_length_exceeded"
        assert f"maximum context length is {MAX_MODEL_LEN} tokens" in error["message"]
        assert f"the prompt of {MAX_MODEL_LEN} leaves no room" in error["message"]
        answer = (await api.post(COMPLETIONS, {"prompt": [5] * (MAX_MODEL_LEN - 1), "max_tokens": 1})).json()
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 1
        error = await refused(api, COMPLETIONS, {"prompt": [5] * 100, "max_tokens": 29}, "max_tokens")
        assert error["code"] == "context_length_exceeded"
        error = await refused(api, CHAT, {"messages": [{"role": "user", "content": "x" * MAX_MODEL_LEN}]}, "messages")
        assert error["code"] == "context_length_exceeded"


async def test_how_many_tokens_when_nothing_is_said() -> None:
    async with client(Script(forever=True)) as api:
        assert (await api.post(COMPLETIONS, {"prompt": [5] * 8})).json()["usage"]["completion_tokens"] == 16
        assert (await api.post(COMPLETIONS, {"prompt": [5] * 120})).json()["usage"]["completion_tokens"] == 8
        chat = (await api.post(CHAT, {"messages": HELLO})).json()
        assert chat["usage"]["total_tokens"] == MAX_MODEL_LEN
        for name in ("max_tokens", "max_completion_tokens"):
            assert (await api.post(CHAT, {"messages": HELLO, name: 3})).json()["usage"]["completion_tokens"] == 3


async def test_truncation_keeps_the_end() -> None:
    async with client() as api:
        await api.post(COMPLETIONS, {"prompt": list(range(100)), "truncate_prompt_tokens": 3})
        assert api.engine.requests[-1].prompt_token_ids == (97, 98, 99)
        answer = await api.post(COMPLETIONS, {"prompt": "abcdef", "truncate_prompt_tokens": 3, "echo": True})
        assert answer.json()["choices"][0]["text"].startswith("defHello"), "the echo shows what was used"
        assert (await api.post(COMPLETIONS, {"prompt": [5] * 500, "truncate_prompt_tokens": -1, "max_tokens": 1})).status_code == 200
        await refused(api, COMPLETIONS, {"prompt": [5], "truncate_prompt_tokens": 0}, "truncate_prompt_tokens")
        await refused(api, COMPLETIONS, {"prompt": [5], "truncate_prompt_tokens": 10**6}, "truncate_prompt_tokens")


BAD_FIELDS = [
    ("temperature", -1), ("temperature", "hot"), ("top_p", 0), ("top_p", 1.1), ("top_k", -2), ("top_k", 1.5), ("min_p", 2), ("n", 0),
    ("n", -1), ("n", True), ("max_tokens", -1), ("max_tokens", 1.5), ("max_tokens", "5"), ("min_tokens", -1),
    ("presence_penalty", 3), ("frequency_penalty", -3), ("repetition_penalty", 0), ("seed", 2**64), ("seed", "x"), ("stop", ""),
    ("stop", [""]), ("stop", [3]), ("stop", {"a": 1}), ("stop", ["x" * 40_000]), ("stop_token_ids", [-1]), ("stop_token_ids", [4096]),
    ("stop_token_ids", 5), ("logit_bias", {"999999": 5}), ("logit_bias", {"abc": 1}), ("logit_bias", {"-1": 1}),
    ("logit_bias", {"5": 1000}),
    ("logit_bias", {"5": "x"}), ("logit_bias", [1]), ("allowed_token_ids", []), ("allowed_token_ids", [4096]), ("bad_words", [""]),
    ("bad_words", "x"), ("bad_words", ["x"] * 2000), ("prompt_logprobs", 21), ("prompt_logprobs", -2), ("stream", "yes"),
    ("stream_options", 5), ("priority", "high"), ("cache_salt", ""), ("cache_salt", 5), ("request_id", 5), ("model", 5),
    ("truncate_prompt_tokens", -2), ("skip_special_tokens", 3), ("ignore_eos", "no"), ("use_beam_search", True),
    ("structured_outputs", 3), ("guided_json", {"type": "a"}), ("response_format", {"type": "xml"}),
    ("logits_processors", ["x"]), ("prompt_embeds", "AAAA"), ("truncation_side", "right"), ("logprob_token_ids", [5]),
    ("watermarking", True), ("mm_payload", {"a": 1}), ("stream_interval", 0), ("stream_interval", "2"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD_FIELDS)
async def test_a_bad_field_is_named(name: str, value: Any) -> None:
    async with client() as api:
        for path, own in ((COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": HELLO})):
            await refused(api, path, own | {name: value}, name)
        await api.alive()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("max_tokens", "5", "max_tokens = '5' is not possible: expected `int | null`, got `str`"),
        ("max_tokens", 1.5, "max_tokens = 1.5 is not possible: expected `int | null`, got `float`"),
        ("stop", ["a", 3], "stop[1] = 3 is not possible: expected `str`, got `int`"),
        ("stop_token_ids", [1, "x" * 999], f"stop_token_ids[1] = '{'x' * 76}... is not possible: expected `int`, got `str`"),
        ("stream_options", {"include_usage": 1}, "stream_options.include_usage = 1 is not possible: expected `bool | null`, got `int`"),
        ("logit_bias", {"5": "x"}, "Expected `float`, got `str` at `logit_bias[...]`"),
    ],
)
async def test_what_has_another_type_is_told_with_its_value(name: str, value: Any, says: str) -> None:
    async with client() as api:
        for path, own in ((COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": HELLO})):
            assert (await refused(api, path, own | {name: value}, name))["message"] == says


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"prompt": "a", "best_of": 3}, "best_of"),
        (COMPLETIONS, {"prompt": "a", "suffix": "x"}, "suffix"),
        (COMPLETIONS, {"prompt": "a", "logprobs": 21}, "logprobs"),
        (COMPLETIONS, {"prompt": "a", "logprobs": -1}, "logprobs"),
        (COMPLETIONS, {"prompt": "a", "temperature": 0, "n": 2}, "n"),
        (COMPLETIONS, {}, "prompt"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 0}, "max_tokens"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 5, "min_tokens": 6}, "min_tokens"),
        (CHAT, {}, "messages"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": "Hi"}, "messages"),
        (CHAT, {"messages": [5]}, "messages[0]"),
        (CHAT, {"messages": [{"content": "x"}]}, "messages[0]"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        (CHAT, {"messages": HELLO, "logprobs": 3}, "logprobs"),
        (CHAT, {"messages": HELLO, "top_logprobs": 3}, "top_logprobs"),
        (CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        (CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": 21}, "logprobs"),
        (CHAT, {"messages": HELLO, "tools": [{"type": "function"}]}, "tools"),
        (CHAT, {"messages": HELLO, "tool_choice": "required"}, "tool_choice"),
        (CHAT, {"messages": HELLO, "functions": [{"name": "f"}]}, "functions"),
        (CHAT, {"messages": HELLO, "modalities": ["audio"]}, "modalities"),
        (CHAT, {"messages": HELLO, "chat_template": "{{ 1 }}"}, "chat_template"),
        (CHAT, {"messages": HELLO, "prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        (CHAT, {"messages": HELLO, "echo": True}, "echo"),
        (CHAT, {"messages": HELLO, "continue_final_message": True}, "continue_final_message"),
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{a:"}}]}]}, "messages[0].tool_calls[0]"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(path: str, body: dict[str, Any], param: str) -> None:
    async with client() as api:
        await refused(api, path, body, param)
        await api.alive()


FLOATS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", "nan"])
async def test_numbers_that_are_not_finite(value: str) -> None:
    async with client() as api:
        for name in FLOATS:
            response = await api.http.post(COMPLETIONS, content=f'{{"prompt": "a", "{name}": {value}}}')
            assert response.status_code == 400
        response = await api.http.post(COMPLETIONS, content=f'{{"prompt": "a", "logit_bias": {{"5": {value}}}}}')
        assert response.status_code == 400
        await api.alive()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"[]", b'"x"', b"5", b'{"prompt": "a"', b"\xff\xfe", b'{"prompt": "\xff"}', b'{"prompt": "\\ud800"}', b"prompt=a",
     b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"x":' * 100 + b"1" + b"}" * 100,
     b'{"prompt": "a", "n": ' + b"9" * 10_000 + b"}"],
)  # fmt: skip
async def test_bodies_that_are_none(content: bytes) -> None:
    async with client() as api:
        for path in (COMPLETIONS, CHAT, "/tokenize", "/detokenize"):
            response = await api.http.post(path, content=content)
            assert response.status_code == 400
            assert response.json()["error"]["type"] == "invalid_request_error"
            assert len(response.content) < 8192
        await api.alive()


async def test_an_error_never_repeats_its_input_at_length() -> None:
    async with client() as api:
        long = "x" * 100_000
        for body in ({"messages": [{"role": 5, "content": long}] * 5}, {"messages": [long] * 5}, {"messages": long, "tools": 3}):
            await refused(api, CHAT, body, "messages")
        await refused(api, COMPLETIONS, {"prompt": "a", "model": long}, "model", status=404)
        await refused(api, COMPLETIONS, {"prompt": "a", "logit_bias": {long: 1}}, "logit_bias")


async def test_unknown_fields_pass_with_one_line_for_each_name(caplog: pytest.LogCaptureFixture) -> None:
    schemas._reported.clear()
    async with client() as api:
        for _ in range(3):
            body = {"messages": [{"role": "user", "content": "Hi", "name": "user1", "weight": 1}], "foo": 1, "bar": {"a": [1]}}
            assert (await api.post(CHAT, body)).status_code == 200
    told = [record.getMessage() for record in caplog.records if "unknown field" in record.getMessage()]
    assert len(told) == 2
    assert "'foo'" in told[0]


async def test_fields_that_openai_knows_are_never_refused() -> None:
    body = {
        "messages": HELLO, "user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "parallel_tool_calls": True,
        "prediction": None, "reasoning_effort": "low", "verbosity": "low", "safety_identifier": "x", "prompt_cache_key": "k",
        "response_format": {"type": "text"}, "modalities": ["text"], "n": None, "stop": None, "logit_bias": None, "tools": [],
        "tool_choice": "none",
    }  # fmt: skip
    async with client() as api:
        assert (await api.post(CHAT, body)).status_code == 200
        with_tools = body | {"tools": [{"type": "function", "function": {"name": "f"}}]}
        assert (await api.post(CHAT, with_tools)).status_code == 200


async def test_sampling_fields_reach_the_engine() -> None:
    given = {
        "n": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "presence_penalty": 0.5, "frequency_penalty": -0.5,
        "repetition_penalty": 1.1, "seed": 42, "stop": ("x",), "stop_token_ids": (END_OF_TURN,), "min_tokens": 2, "ignore_eos": True,
        "skip_special_tokens": False, "allowed_token_ids": (65, 66), "bad_words": ("the",), "max_tokens": 9,
        "include_stop_str_in_output": True,
    }  # fmt: skip
    async with client() as api:
        for path, own in ((COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": HELLO})):
            extra = {"logit_bias": {"5": 2.5}, "priority": 3, "cache_salt": "s"}
            assert (await api.post(path, own | given | extra)).status_code == 200
            request = api.engine.requests[-1]
            assert {name: getattr(request.params, name) for name in given} == given
            assert request.params.logit_bias == {5: 2.5}
            assert request.params.eos_token_ids == (EOS,)
            assert request.params.bad_token_ids == (tuple(b"the"), tuple(b" the"))
            assert (request.priority, request.cache_salt) == (3, "s")


async def test_the_models_own_defaults_yield_to_the_request() -> None:
    async with client(generation_config={"temperature": 0.3, "top_k": 5, "max_new_tokens": 4}) as api:
        await api.post(CHAT, {"messages": HELLO})
        await api.post(CHAT, {"messages": HELLO, "temperature": 0.9})
        first, second = (request.params for request in api.engine.requests)
        assert (first.temperature, first.top_k, first.max_tokens) == (0.3, 5, 4)
        assert (second.temperature, second.top_k) == (0.9, 5)


async def test_echo_with_logprobs_has_every_prompt_token() -> None:
    async with client() as api:
        body = {"prompt": list(b"prompt"), "echo": True, "logprobs": 1, "max_tokens": 1}
        choice = (await api.post(COMPLETIONS, body)).json()["choices"][0]
        found = choice["logprobs"]
        assert choice["text"] == "promptHello"
        assert len(found["tokens"]) == len(found["token_logprobs"]) == len(found["top_logprobs"]) == len(found["text_offset"]) == 7
        assert found["token_logprobs"][0] is None
        assert found["top_logprobs"][0] is None
        for token, top in list(zip(found["tokens"], found["top_logprobs"]))[1:]:
            assert token in top, "the real token is always among them"
        assert found["text_offset"] == [0, 1, 2, 3, 4, 5, 6]


async def test_scoring_alone() -> None:
    async with client() as api:
        answer = (await api.post(COMPLETIONS, {"prompt": "abc", "echo": True, "logprobs": 0, "max_tokens": 0})).json()
        assert answer["choices"][0]["text"] == "abc"
        assert len(answer["choices"][0]["logprobs"]["tokens"]) == 4
        assert answer["usage"]["completion_tokens"] == 0


async def test_alternatives_that_are_pieces_of_characters() -> None:
    async with client(Script([0xE2, 0x80, 0x99])) as api:
        chat = (await api.post(CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": 5, "max_tokens": 3})).json()
        content = chat["choices"][0]["logprobs"]["content"]
        assert bytes(byte for token in content for byte in token["bytes"]).decode() == chat["choices"][0]["message"]["content"] == "\u2019"
        assert all(one["token"] and len(one["bytes"]) == 1 for token in content for one in token["top_logprobs"])
        assert all(len(token["top_logprobs"]) == 5 for token in content)
        legacy = (await api.post(COMPLETIONS, {"prompt": "a", "logprobs": 5, "max_tokens": 3})).json()["choices"][0]["logprobs"]
        assert legacy["tokens"] == ["bytes:\\xe2", "bytes:\\x80", "\u2019"]
        assert all(len(top) == 6 for top in legacy["top_logprobs"]), "different tokens keep different names"


async def test_tokens_named_by_id() -> None:
    async with client(Script(["a"])) as api:
        body = {"prompt": "a", "logprobs": 1, "max_tokens": 1, "return_tokens_as_token_ids": True, "return_token_ids": True}
        choice = (await api.post(COMPLETIONS, body)).json()["choices"][0]
        assert choice["logprobs"]["tokens"] == ["token_id:97"]
        assert choice["token_ids"] == [97]
        assert choice["prompt_token_ids"] == [BOS, 97]


async def test_prompt_logprobs_by_id() -> None:
    async with client() as api:
        answer = (await api.post(COMPLETIONS, {"prompt": [65, 66], "prompt_logprobs": 1})).json()
        first, second = answer["choices"][0]["prompt_logprobs"]
        assert first is None
        assert second["66"] == {"logprob": -1.5, "rank": 2, "decoded_token": "B"}
        chat = (await api.post(CHAT, {"messages": HELLO, "prompt_logprobs": 1})).json()
        assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]


async def test_the_same_id_twice_is_only_a_label() -> None:
    import asyncio

    async with client(Script(step_s=0.01)) as api:
        body = {"prompt": "a", "request_id": "x"}
        both = await asyncio.gather(api.post(COMPLETIONS, body), api.post(COMPLETIONS, body), api.post(COMPLETIONS, body))
        assert [one.status_code for one in both] == [200] * 3
        assert {one.json()["id"] for one in both} == {"cmpl-x"}
        assert len({request.id for request in api.engine.requests}) == 3
        labelled = await api.post(COMPLETIONS, {"prompt": "a"}, headers={"X-Request-Id": "mine"})
        assert labelled.json()["id"] == "cmpl-mine"
        await api.alive()


async def test_request_id_headers() -> None:
    async with client(enable_request_id_headers=True) as api:
        assert (await api.post(COMPLETIONS, {"prompt": "a"}, headers={"X-Request-Id": "mine"})).headers["x-request-id"] == "mine"
        assert (await api.post(COMPLETIONS, {"prompt": "a"})).headers["x-request-id"]
        assert (await api.post(COMPLETIONS, {"prompt": "a"}, headers={"X-Request-Id": b"\xe9\x01"})).status_code == 200


async def test_what_the_cache_gave() -> None:
    async with client(Script(num_cached_tokens=2, cache_miss="new: nothing is cached from token 2 on")) as api:
        answer = (await api.post(COMPLETIONS, {"prompt": "abc"})).json()
        assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
        assert answer["octavo"] == {"num_cached_tokens": 2}


@pytest.mark.parametrize(("path", "own"), [(COMPLETIONS, {"prompt": "abc"}), (CHAT, {"messages": HELLO})])
async def test_where_a_prefix_missed_is_told_when_asked_for_and_under_a_salt_only(path: str, own: dict[str, Any]) -> None:
    """Under no salt, or where nobody asked, no word of it is in any answer."""
    miss = "new: nothing is cached from token 2 on"
    async with client(Script(cache_miss=miss)) as api:
        for more in ({}, {"cache_salt": "own"}, {"return_cache_miss": False, "cache_salt": "own"}):
            for stream in ({}, {"stream": True, "stream_options": {"include_usage": True}}):
                assert "cache_miss" not in (await api.post(path, {**own, **more, **stream})).text
        await refused(api, path, {**own, "return_cache_miss": True}, "cache_salt")
        asked = {**own, "return_cache_miss": True, "cache_salt": "own"}
        assert (await api.post(path, asked)).json()["octavo"]["cache_miss"] == miss
        assert (await api.events(path, {**asked, "stream_options": {"include_usage": True}}))[-1]["octavo"]["cache_miss"] == miss


async def test_a_miss_that_can_be_avoided_comes_with_advice(caplog: pytest.LogCaptureFixture) -> None:
    """In the answer, and in the log where requests are logged."""
    caplog.set_level("INFO", "octavo.serve")
    async with client(Script(cache_miss="short: 3 shared tokens are under one block"), enable_log_requests=True) as api:
        answer = (await api.post(COMPLETIONS, {"prompt": "abc", "return_cache_miss": True, "cache_salt": "own"})).json()
        assert "--block-size" in answer["octavo"]["advice"]
        assert any("prefix cache: short: 3 shared" in line and "--block-size" in line for line in caplog.messages)


async def test_unknown_model() -> None:
    async with client() as api:
        assert (await api.post(COMPLETIONS, {"prompt": "a", "model": ""})).status_code == 200, "the empty name is no name"
        for path, own in (
            (COMPLETIONS, {"prompt": "a"}),
            (CHAT, {"messages": HELLO}),
            ("/tokenize", {"prompt": "a"}),
            ("/detokenize", {"tokens": []}),
        ):
            error = await refused(api, path, own | {"model": "gpt-9"}, "model", status=404)
            assert error["code"] == "model_not_found"


async def test_what_takes_long_to_read_is_read_by_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()
    real = schemas.parse_json

    def watched(body: bytes) -> dict[str, Any]:
        threads.add(threading.get_ident())
        return real(body)

    monkeypatch.setattr(schemas, "parse_json", watched)
    async with client() as api:
        assert (await api.post(COMPLETIONS, {"prompt": "Hi"})).status_code == 200
        assert threads == {threading.get_ident()}
        long = {"prompt": "Hi", "user": "u" * schemas.LARGE_BODY_BYTES}
        assert (await api.post(COMPLETIONS, long)).status_code == 200
        await refused(api, COMPLETIONS, long | {"prompt": [[[]]]}, "prompt")
        assert len(threads) > 1
        assert gc.isenabled()


async def test_a_chat_of_many_messages_is_rendered_as_any_other() -> None:
    async with client() as api:
        for number in (3, 300):
            assert (await api.post(CHAT, {"messages": HELLO * number})).status_code in (200, 400)
        few = (await api.post("/tokenize", {"messages": HELLO})).json()["count"]
        many = (await api.post("/tokenize", {"messages": HELLO * 300})).json()["count"]
        each = (await api.post("/tokenize", {"messages": HELLO * 2})).json()["count"] - few
        assert many == few + 299 * each

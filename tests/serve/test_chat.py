"""Chat options: templates, continued messages, one beginning token."""

from typing import Any

import pytest

from octavo.text.template import ChatTemplate
from tests.scripted_engine import BOS, PieceTokenizer
from tests.serve.serving import Client, client

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hi"}]


async def prompt_of(api: Client, **body: Any) -> str:
    response = await api.post(CHAT, {"messages": HELLO} | body)
    assert response.status_code == 200, response.text
    ids = api.engine.requests[-1].prompt_token_ids
    return PieceTokenizer().decode(ids, skip_special_tokens=False)


async def test_the_prompt_is_what_the_template_says() -> None:
    async with client() as api:
        assert await prompt_of(api) == "<user>Hi\n<assistant>"
        assert await prompt_of(api, add_generation_prompt=False) == "<user>Hi\n"
        parts = [{"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "15C"}]}]
        assert await prompt_of(api, messages=parts) == "<tool>15C\n<assistant>"
        open_end = [*HELLO, {"role": "assistant", "content": "Once upon"}]
        text = await prompt_of(api, messages=open_end, add_generation_prompt=False, continue_final_message=True)
        assert text == "<user>Hi\n<assistant>Once upon"


@pytest.mark.parametrize("add_special_tokens", [None, True, False])
@pytest.mark.parametrize("template", ["{{ bos_token }}{{ messages[0].content }}", "{{ messages[0].content }}"])
async def test_never_two_beginning_tokens(template: str, add_special_tokens: bool | None) -> None:
    async with client(template=template) as api:
        await prompt_of(api, add_special_tokens=add_special_tokens)
        num_beginnings = api.engine.requests[-1].prompt_token_ids.count(BOS)
        assert num_beginnings == (1 if "bos" in template or add_special_tokens else 0)


async def test_arguments_of_the_template() -> None:
    async with client(template="{{ mood }} {{ messages[0].content }}", default_chat_template_kwargs={"mood": "calm"}) as api:
        assert await prompt_of(api) == "calm Hi"
        assert await prompt_of(api, chat_template_kwargs={"mood": "wild"}) == "wild Hi"


async def test_a_template_of_the_request_only_where_trusted() -> None:
    async with client(trust_request_chat_template=True) as api:
        assert await prompt_of(api, chat_template="T{{ messages[0].content }}{{ bos_token }}") == "THi<s>"
        response = await api.post(CHAT, {"messages": HELLO, "chat_template": "{% if %}"})
        assert response.status_code == 400


async def test_a_model_without_a_template() -> None:
    async with client(template=None) as api:
        response = await api.post(CHAT, {"messages": HELLO})
        assert response.status_code == 400
        assert "--chat-template" in response.json()["error"]["message"]


async def test_what_a_template_raises_is_the_clients_error() -> None:
    async with client(template="{{ raise_exception('roles must alternate') }}") as api:
        response = await api.post(CHAT, {"messages": HELLO})
        assert response.status_code == 400
        assert "roles must alternate" in response.json()["error"]["message"]


async def test_the_role_of_answers() -> None:
    async with client(response_role="helper") as api:
        assert (await api.post(CHAT, {"messages": HELLO})).json()["choices"][0]["message"]["role"] == "helper"


async def test_tokenize_and_detokenize() -> None:
    async with client() as api:
        text = (await api.post("/tokenize", {"prompt": "Hi", "return_token_strs": True})).json()
        assert text == {"count": 3, "max_model_len": 128, "tokens": [BOS, 72, 105], "token_strs": ["<s>", "H", "i"]}
        assert (await api.post("/tokenize", {"prompt": "Hi", "add_special_tokens": False})).json()["tokens"] == [72, 105]
        chat = (await api.post("/tokenize", {"messages": HELLO})).json()
        assert (await api.post("/detokenize", {"tokens": chat["tokens"]})).json() == {"prompt": "<user>Hi\n<assistant>"}
        for tokens in ([-1], [4096], [1.5], "x", None, [True]):
            response = await api.post("/detokenize", {"tokens": tokens})
            assert response.status_code == 400
            assert response.json()["error"]["param"].startswith("tokens")


def test_templates_are_compiled_once_for_all_requests() -> None:
    template = ChatTemplate("{{ messages[0].content }}")
    assert template.render(HELLO) == template.render(HELLO) == "Hi"

"""Clients as people use them: LangChain's OpenAI classes, and curl."""

import json
import shutil
import subprocess

import pytest
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from tests.scripted_engine import Script
from tests.serve.serving import served

CALL = ["<tool_call>", '{"name":"add",', '"arguments":{"a":1}}', "</tool_call>"]


@pytest.mark.parametrize("use_responses_api", [False, True])
def test_langchain_chats_streams_and_calls_tools(use_responses_api: bool) -> None:
    with served() as server:
        chat = ChatOpenAI(model="tiny", base_url=f"{server.url}/v1", api_key="x", use_responses_api=use_responses_api)  # pyright: ignore
        answer = chat.invoke([HumanMessage("Hi")])
        assert answer.text == "Hello, world!"
        assert answer.usage_metadata is not None
        assert answer.usage_metadata["output_tokens"] == 6
        assert "".join(chunk.text for chunk in chat.stream("Hi")) == "Hello, world!"
    with served(Script(CALL), enable_auto_tool_choice=True, tool_call_parser="hermes") as server:
        chat = ChatOpenAI(model="tiny", base_url=f"{server.url}/v1", api_key="x", use_responses_api=use_responses_api)  # pyright: ignore
        tool = {"type": "function", "function": {"name": "add", "description": "Adds", "parameters": {"type": "object", "properties": {}}}}
        calls = chat.bind_tools([tool]).invoke("Hi").tool_calls  # pyright: ignore
        assert [(call["name"], call["args"]) for call in calls] == [("add", {"a": 1})]


def test_langchain_embeds() -> None:
    with served() as server:
        model = OpenAIEmbeddings(model="tiny", base_url=f"{server.url}/v1", api_key="x", check_embedding_ctx_length=False)  # pyright: ignore
        one, other = model.embed_documents(["a", "b"])
        assert len(one) == len(other) == 4
        assert one != other


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl() -> None:
    def curl(*words: str) -> str:
        return subprocess.run(["curl", "-sS", "-H", "Authorization: Bearer k", *words], capture_output=True, text=True, check=True).stdout

    with served(api_key=("k",)) as server:
        body = json.dumps({"messages": [{"role": "user", "content": "Hi"}]})
        answer = json.loads(curl(f"{server.url}/v1/chat/completions", "-d", body))
        assert answer["choices"][0]["message"]["content"] == "Hello, world!"
        stream = curl("-N", f"{server.url}/v1/completions", "-d", '{"prompt": "Hi", "stream": true}')
        assert stream.endswith("data: [DONE]\n\n")
        assert curl("-o", "/dev/null", "-w", "%{http_code}", f"{server.url}/v1/completions", "-d", "{") == "400"
        assert "octavo:prompt_tokens_total" in curl(f"{server.url}/metrics")

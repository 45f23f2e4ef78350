"""`octavo chat`: a conversation with a fake model here, and with a scripted one behind a real socket."""

from __future__ import annotations

import io

import pytest

from octavo.cli.main import main
from tests.cli.fake_llm import FakeLLM, install
from tests.scripted_engine import Script
from tests.serve.serving import served


def test_messages_add_up_to_a_conversation(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    made = install(monkeypatch)
    assert main(["chat", "some/model", "--system", "Be brief.", "-p", "one", "two", "--max-num-seqs", "1", "--temperature", "0.5"]) == 0
    assert capsys.readouterr().out == "answer to one\nanswer to two\n"
    assert (made[0].model, made[0].flags) == ("some/model", {"max_num_seqs": 1})
    messages, params = made[0].asked[1]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert [message["content"] for message in messages] == ["Be brief.", "one", "answer to one", "two"]
    assert (params.temperature, params.top_p, params.max_tokens) == (0.5, 0.9, 1024)


def test_lines_of_standard_input_are_messages(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    made: list[FakeLLM] = install(monkeypatch)
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n\n/reset\ntwo\n/exit\nthree\n"))
    assert main(["chat"]) == 0
    assert capsys.readouterr().out == "answer to one\nanswer to two\n"
    assert [message["content"] for message in made[0].asked[1][0]] == ["two"]


def test_behind_a_server_the_answer_comes_from_its_stream(capsys: pytest.CaptureFixture[str]) -> None:
    with served(api_key=("key",)) as server:
        assert main(["chat", "--url", server.url, "--api-key", "key", "-p", "Hi", "again", "--max-tokens", "3", "--top-k", "4"]) == 0
        assert capsys.readouterr().out == "Hello, wor\nHello, wor\n"
        assert [request.params.top_k for request in server.engine.requests] == [4, 4]
        last = bytes(token for token in server.engine.requests[1].prompt_token_ids if token < 256).decode()
        assert last.endswith("<user>Hi\n<assistant>Hello, wor\n<user>again\n<assistant>")

        assert main(["chat", "--url", server.url + "/v1/", "-p", "Hi"]) == 1
        assert "401" in capsys.readouterr().err
        assert main(["chat", "nobody", "--url", server.url, "--api-key", "key", "-p", "Hi"]) == 1
        assert "nobody" in capsys.readouterr().err


def test_an_error_in_the_stream_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with served(Script(fail_after=2)) as server:
        assert main(["chat", "--url", server.url, "-p", "Hi"]) == 1
        assert "logits are not finite" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nonsense"])
def test_a_server_that_is_not_there(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--url", url, "-p", "Hi"]) == 1
    assert "cannot be reached" in capsys.readouterr().err

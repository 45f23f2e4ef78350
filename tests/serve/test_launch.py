"""The life of a real server: its port, its clients, its end by signals."""

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import openai
import pytest

from octavo.config.server import ServerConfig
from octavo.serve.listen import PortBusy, bind
from tests.scripted_engine import Script
from tests.serve.serving import WAIT_S, Served, eventually, served


@pytest.fixture(scope="module")
def server():
    with served(Script(["Hello", ",", " wor", "ld", "!"], num_cached_tokens=1), api_key=("secret",)) as running:
        yield running


@pytest.fixture(scope="module")
def api(server: Served):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0) as client:
        yield client


HELLO: list = [{"role": "user", "content": "Hi"}]


def test_openai_client_chats(api: openai.OpenAI) -> None:
    answer = api.chat.completions.create(model="tiny", messages=HELLO, logprobs=True, top_logprobs=2, n=2, seed=1)
    assert [choice.message.content for choice in answer.choices] == ["Hello, world!"] * 2
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 1
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.content is not None
    assert bytes(answer.choices[0].logprobs.content[0].bytes or []).decode() == "Hello"


def test_openai_client_streams_chats(api: openai.OpenAI) -> None:
    chunks = list(api.chat.completions.create(model="tiny", messages=HELLO, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello, world!"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 6


def test_openai_client_completes(api: openai.OpenAI) -> None:
    answer = api.completions.create(model="alias", prompt=["a", "b"], logprobs=1, echo=True)
    assert [choice.text for choice in answer.choices] == ["aHello, world!", "bHello, world!"]
    text = "".join(chunk.choices[0].text for chunk in api.completions.create(model="tiny", prompt="a", stream=True))
    assert text == "Hello, world!"


def test_openai_client_sees_errors_as_they_are(api: openai.OpenAI, server: Served) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        api.completions.create(model="gpt-9", prompt="a")
    with pytest.raises(openai.BadRequestError) as caught:
        api.completions.create(model="tiny", prompt="a", temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as caught:
        api.chat.completions.create(model="tiny", messages=HELLO, max_tokens=10**6, stream=True)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.AuthenticationError), openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as other:
        other.models.list()
    assert api.models.retrieve("tiny").id == "tiny"
    assert [model.id for model in api.models.list()] == ["tiny", "alias"]


def test_openai_client_raises_on_a_failure_in_the_middle() -> None:
    with served(Script(["a", "b", "c"], fail_after=2)) as failing, openai.OpenAI(base_url=f"{failing.url}/v1", api_key="x") as api:
        chunks = api.completions.create(model="tiny", prompt="a", stream=True)
        assert [next(chunks).choices[0].text for _ in range(2)] == ["a", "b"]
        with pytest.raises(openai.APIError, match="not finite"):
            next(chunks)


def test_clients_that_misbehave_do_not_matter_to_others() -> None:
    with served() as running:
        url = running.url + "/v1/completions"
        assert httpx.post(url, content=b" " * (10 << 20)).status_code == 413
        assert httpx.post(url, content=(b" " * 100_000 for _ in range(100))).status_code == 413
        deep = b"[" * 3_000_000 + b"]" * 3_000_000
        assert httpx.post(url, content=b'{"prompt":' + deep + b"}").status_code == 400
        assert httpx.post(url, json={"prompt": "a", "stop": [f"stop {number}" for number in range(10_000)]}).status_code == 400
        address = running.front.config.host, int(url.split(":")[2].split("/")[0])
        with socket.create_connection(address) as half, socket.create_connection(address) as garbage:
            half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            garbage.sendall(b"GARBAGE\r\n\r\n")
            assert garbage.recv(100).startswith(b"HTTP/1.1 400")
            assert httpx.post(url, json={"prompt": "a"}).status_code == 200
        assert not running.engine.active


def test_a_busy_port_is_told_before_anything_is_loaded() -> None:
    first = bind(ServerConfig(port=0))
    port = first.getsockname()[1]
    with pytest.raises(PortBusy, match="--port"):
        bind(ServerConfig(port=port))
    first.close()
    bind(ServerConfig(port=port)).close()


def test_the_command_says_so_before_it_imports_what_serves() -> None:
    first = bind(ServerConfig(port=0))
    port = first.getsockname()[1]
    asked = ["serve", "smollm2-135m", "--port", str(port)]
    program = f"import sys; from octavo.cli.main import main; print(main({asked}), *(set(sys.modules) & {{'numpy', 'torch', 'uvicorn'}}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    first.close()
    assert done.stdout == "1\n", done.stderr
    assert f"port {port}: Address already in use; choose another with --port" in done.stderr


def test_a_host_that_is_none() -> None:
    with pytest.raises(OSError, match="--host"):
        bind(ServerConfig(host="no.such.host.invalid"))


@pytest.mark.skipif(not socket.has_ipv6, reason="the machine has no IPv6")
def test_ipv6() -> None:
    with served(host="::1") as running:
        assert "[::1]" in running.url
        assert httpx.get(running.url + "/health").status_code == 200


def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "octavo.sock"
    with served(uds=str(path)):
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
            assert client.get("http://octavo/health").status_code == 200
        with pytest.raises(PortBusy):
            bind(ServerConfig(uds=str(path)))
    assert not path.exists()
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    bind(ServerConfig(uds=str(path))).close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_tls(tmp_path: Path) -> None:
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run(words + names, check=True, capture_output=True)
    with served(ssl_keyfile=key, ssl_certfile=certificate) as running:
        assert running.url.startswith("https://")
        trusted = ssl.create_default_context(cafile=certificate)
        assert httpx.post(running.url + "/v1/completions", json={"prompt": "a"}, verify=trusted).status_code == 200
        with pytest.raises(httpx.HTTPError):
            httpx.get(running.url.replace("https", "http") + "/health")


def test_a_root_path() -> None:
    with served(root_path="/api", api_key=("k",)) as running:
        assert running.url.endswith("/api")
        host = running.url.removesuffix("/api")
        for path in ("/health", "/v1/models"):
            assert httpx.get(host + path, headers={"Authorization": "Bearer k"}).status_code == 200
        assert httpx.get(host + "/health").status_code == 200
        assert httpx.get(host + "/v1/models").status_code == 401


def test_a_graceful_stop_lets_running_requests_finish() -> None:
    with served(Script(["a"] * 20, step_s=0.03)) as running, httpx.Client(timeout=WAIT_S) as client:
        with client.stream("POST", running.url + "/v1/completions", json={"prompt": "x", "max_tokens": 20, "stream": True}) as response:
            lines = response.iter_lines()
            next(lines)
            running.call(running.stops.note)
            eventually(lambda: running.front.draining)
            assert httpx.get(running.url + "/health/ready").status_code == 503
            assert httpx.post(running.url + "/v1/completions", json={"prompt": "x"}).status_code == 503
            assert list(lines)[-2:] == ["data: [DONE]", ""]
        assert running.wait() == 0
        assert running.engine.closed
        assert running.front.metrics.finished["length"] == 1


@pytest.mark.parametrize("by", ["deadline", "second signal"])
def test_a_stop_ends_what_takes_too_long_in_order(by: str) -> None:
    deadline_s = 0.2 if by == "deadline" else 60.0
    with served(Script(["a"], step_s=0.02, forever=True), shutdown_timeout=deadline_s) as running, httpx.Client(timeout=WAIT_S) as client:
        body = {"prompt": "x", "max_tokens": 120, "stream": True}
        with client.stream("POST", running.url + "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            running.call(running.stops.note)
            if by == "second signal":
                running.call(running.stops.note)
            told = list(lines)
        assert told[-2] == "data: [DONE]"
        assert '"finish_reason":"abort"' in told[-4]
        assert running.wait() == 0
        assert running.engine.closed
        assert running.front.metrics.finished["abort"] == 1


def test_an_engine_that_dies_is_told_and_ends_the_server() -> None:
    with served(Script(["a", "b", "c"], die_after=2)) as running:
        response = httpx.post(running.url + "/v1/completions", json={"prompt": "x"})
        assert response.status_code == 503
        assert "the engine dies" in response.json()["error"]["message"]
        assert response.headers["retry-after"]
        health = httpx.get(running.url + "/health")
        assert health.status_code == 503
        assert "the engine dies" in health.json()["reason"]
        assert running.wait() == 1
        assert running.front.metrics.finished["error"] == 1


def test_a_signal_while_starting_ends_the_start() -> None:
    program = """
import asyncio, sys
from octavo.config.server import ServerConfig
from octavo.serve.launch import run_until_done
from octavo.serve.listen import bind
async def start():
    print("starting", flush=True)
    try:
        await asyncio.sleep(60)
    finally:
        print("cleaned up", flush=True)
config = ServerConfig(port=0)
sys.exit(run_until_done(config, bind(config), start))
"""
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.getcwd()}
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "starting\n"
    child.send_signal(signal.SIGTERM)
    assert child.stdout.readline() == "cleaned up\n"
    assert child.wait(WAIT_S) == 0

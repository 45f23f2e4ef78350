"""Files and batches, asked by the official client."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from octavo.serve.batch_file import read_lines, resume
from tests.scripted_engine import Script
from tests.serve.serving import Served, client, served

WAIT_S = 20.0
OVER = ("completed", "failed", "cancelled", "expired")


def lines(count: int, **body: Any) -> bytes:
    chat = {"method": "POST", "url": "/v1/chat/completions", "body": {"messages": [{"role": "user", "content": "Hi"}], **body}}
    calls = ({"custom_id": f"c{number}", **chat} for number in range(count))
    return "".join(json.dumps(call) + "\n" for call in calls).encode()


def ask(server: Served, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def begin(api: openai.OpenAI, content: bytes, **named: Any) -> openai.types.Batch:
    file = api.files.create(file=("calls.jsonl", content), purpose="batch")
    return api.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", **named)


def over(api: openai.OpenAI, batch_id: str) -> openai.types.Batch:
    end_s = time.monotonic() + WAIT_S
    while (batch := api.batches.retrieve(batch_id)).status not in OVER:
        assert time.monotonic() < end_s, batch
        time.sleep(0.02)
    return batch


def records(api: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    assert file_id is not None
    found = [json.loads(line) for line in api.files.content(file_id).text.splitlines()]
    return {record["custom_id"]: record for record in found}


def test_a_batch_from_upload_to_answers(tmp_path: Path) -> None:
    with served(files_dir=str(tmp_path)) as server:
        api = ask(server)
        wrong = json.dumps({"custom_id": "bad", "url": "/v1/chat/completions", "body": {"messages": [], "temperature": -1}}).encode()
        content = lines(20) + wrong
        batch = begin(api, content, metadata={"of": "test"})
        assert batch.status == "validating"
        done = over(api, batch.id)
        assert done.status == "completed"
        assert done.request_counts is not None
        assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (21, 20, 1)
        assert done.metadata == {"of": "test"}
        answers = records(api, done.output_file_id)
        assert set(answers) == {f"c{number}" for number in range(20)}
        assert answers["c3"]["response"]["body"]["choices"][0]["message"]["content"] == "Hello, world!"
        assert records(api, done.error_file_id)["bad"]["response"]["status_code"] == 400
        assert [one.id for one in api.batches.list()] == [batch.id]
        assert {one.purpose for one in api.files.list()} == {"batch", "batch_output"}
        assert api.files.content(done.input_file_id).content == content
        assert api.files.retrieve(done.input_file_id).bytes == len(content)
        assert api.files.delete(done.input_file_id).deleted
        with pytest.raises(openai.NotFoundError):
            api.files.retrieve(done.input_file_id)
        with pytest.raises(openai.ConflictError):
            api.batches.cancel(batch.id)
        assert {request.priority for request in server.engine.requests} == {1 << 30}


def test_a_batch_that_is_cancelled_keeps_what_was_answered(tmp_path: Path) -> None:
    def script(request: Any, index: int) -> Script:
        return Script(step_s=0.001 if request.id.startswith("batch-1-") else 0.05, forever=True)

    with served(script, files_dir=str(tmp_path), batch_concurrency=2) as server:
        api = ask(server)
        batch = begin(api, lines(50, max_tokens=20))
        journal = tmp_path / "batches" / f"{batch.id}.answers"
        while not journal.exists() or not journal.read_text():
            time.sleep(0.01)
        assert api.batches.cancel(batch.id).status == "cancelling"
        done = over(api, batch.id)
        assert done.status == "cancelled"
        assert done.cancelling_at is not None
        assert "c0" in records(api, done.output_file_id)
        assert len(records(api, done.output_file_id)) < 50
        assert not server.engine.active


def test_a_server_goes_on_with_what_another_left(tmp_path: Path) -> None:
    with served(Script(step_s=0.01), files_dir=str(tmp_path), batch_concurrency=2) as server:
        batch = begin(ask(server), lines(40))
        journal = tmp_path / "batches" / f"{batch.id}.answers"
        while not journal.exists() or journal.read_text().count("\n") < 5:
            time.sleep(0.01)
        asked_first = server.engine
    answered = resume(journal).custom_ids
    assert 5 <= len(answered) < 40
    with journal.open("a") as cut:
        cut.write('{"id": "batch_re')  # as a power failure leaves it
    with served(files_dir=str(tmp_path)) as server:
        done = over(ask(server), batch.id)
        assert done.status == "completed"
        assert set(records(ask(server), done.output_file_id)) == {f"c{number}" for number in range(40)}
        assert len(server.engine.requests) == 40 - len(answered)
        assert len(asked_first.requests) >= len(answered)


def test_a_key_sees_its_own_only(tmp_path: Path) -> None:
    with served(files_dir=str(tmp_path), api_key=("one", "two")) as server:
        mine, theirs = ask(server, "one"), ask(server, "two")
        batch = begin(mine, lines(2))
        done = over(mine, batch.id)
        assert not list(theirs.files.list())
        assert not list(theirs.batches.list())
        for attempt in (
            lambda: theirs.files.content(done.output_file_id or ""),
            lambda: theirs.files.delete(batch.input_file_id),
            lambda: theirs.batches.retrieve(batch.id),
            lambda: theirs.batches.cancel(batch.id),
            lambda: theirs.batches.create(input_file_id=batch.input_file_id, endpoint="/v1/chat/completions", completion_window="24h"),
        ):
            with pytest.raises(openai.NotFoundError):
                attempt()
        with pytest.raises(openai.AuthenticationError):
            ask(server, "three").files.list()
        assert len(records(mine, done.output_file_id)) == 2
        assert server.front.accounts.counts()["key-0"]["requests"] == 2


def test_a_file_that_is_no_batch_fails_with_its_lines(tmp_path: Path) -> None:
    with served(files_dir=str(tmp_path)) as server:
        api = ask(server)
        other = b'{"custom_id": "e", "url": "/v1/embeddings", "body": {"input": "x"}}\n'
        failed = over(api, begin(api, lines(1) + b"{\n" + other).id)
        assert failed.status == "failed"
        assert failed.errors is not None
        assert [error.line for error in failed.errors.data or []] == [2, 3]
        assert over(api, begin(api, b"\n").id).status == "failed"
        assert not server.engine.requests


def test_requests_of_batches_let_others_go_first(tmp_path: Path) -> None:
    prefills_s = iter([3.0])  # the first is under way when the others come
    with served(lambda request, index: Script(prefill_s=next(prefills_s, 0.05)), files_dir=str(tmp_path), batch_concurrency=1) as server:
        api = ask(server)
        batch = begin(api, lines(3))
        while not server.engine.requests:
            time.sleep(0.005)
        others = [httpx.post(f"{server.url}/v1/completions", json={"prompt": "Hi"}, timeout=WAIT_S) for _ in range(2)]
        assert all(other.status_code == 200 for other in others)
        over(api, batch.id)
        kinds = [request.id.partition("-")[0] for request in server.engine.requests]
        assert kinds[0] == "batch"
        assert kinds.index("cmpl") == 1, "no further one of the batch began while somebody waited"


def test_what_is_refused_for_now_is_asked_again(tmp_path: Path) -> None:
    with served(files_dir=str(tmp_path), api_key_file=_limited(tmp_path), batch_concurrency=8) as server:
        api = ask(server, "secret")
        done = over(api, begin(api, lines(6)).id)
        assert done.request_counts is not None
        assert done.request_counts.completed == 6
        assert server.front.accounts.counts()["few"]["requests_refused"] > 0


def _limited(folder: Path) -> str:
    path = folder / "keys.yaml"
    path.write_text("few: {key: secret, max_concurrent_requests: 2}")
    return str(path)


async def test_uploads_are_bounded_and_checked(tmp_path: Path) -> None:
    async with client(files_dir=str(tmp_path), max_file_mb=1, max_files_gb=0.001) as api:

        async def upload(content: bytes, purpose: str = "batch") -> httpx.Response:
            return await api.http.post("/v1/files", files={"file": ("f.jsonl", content)}, data={"purpose": purpose})

        assert (await upload(b"x" * 1_200_000)).status_code == 413
        assert (await upload(b"x" * 600_000)).status_code == 200
        full = await upload(b"x" * 600_000)
        assert full.status_code == 413
        assert full.json()["error"]["code"] == "store_full"
        assert len(list((tmp_path / "files").iterdir())) == 2
        assert (await upload(b"", "fine-tune")).json()["error"]["param"] == "purpose"
        assert (await api.post("/v1/files", {"file": "x"})).status_code == 400
        assert (await api.http.post("/v1/files", content=b"x", headers={"content-type": "multipart/form-data"})).status_code == 400
        asked = {"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        assert (await api.post("/v1/batches", {**asked, "endpoint": "/v1/models"})).status_code == 400
        assert (await api.post("/v1/batches", {**asked, "completion_window": "1h"})).status_code == 400
        assert (await api.post("/v1/batches", {**asked, "input_file_id": "../x"})).status_code == 400
        assert (await api.post("/v1/batches", {**asked, "input_file_id": "file-.."})).status_code == 404
        for path in ("/v1/files/..%2Fx", "/v1/files/file-1/content", "/v1/batches/batch-1", "/v1/batches/file-1"):
            assert (await api.http.get(path)).status_code == 404
        assert (await api.http.get("/v1/files?limit=0")).status_code == 400


async def test_lists_come_in_pages(tmp_path: Path) -> None:
    async with client(files_dir=str(tmp_path)) as api:
        for number in range(5):
            await api.http.post("/v1/files", files={"file": (f"{number}", b"{}")}, data={"purpose": "batch"})
        first = (await api.http.get("/v1/files?limit=3")).json()
        rest = (await api.http.get(f"/v1/files?limit=3&after={first['last_id']}")).json()
        assert first["has_more"]
        assert not rest["has_more"]
        assert len({one["id"] for one in first["data"] + rest["data"]}) == 5


def test_lines_are_read_as_the_command_reads_them() -> None:
    assert [line.number for line in read_lines(lines(3).decode().splitlines(keepends=True))] == [1, 2, 3]

"""`octavo batch`: the form of its files, resuming, and lines that are wrong."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.main import main
from octavo.engine.client import EngineDead
from octavo.serve.batch_calls import answer
from octavo.serve.batch_file import BadLine, Line, read_lines, resume
from octavo.serve.front import Front
from octavo.types import Request
from tests.scripted_engine import Script
from tests.serve.serving import make_front


def call(custom_id: str, **body: Any) -> str:
    chat = {"messages": [{"role": "user", "content": "Hi"}], **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": chat})


def completion(custom_id: str, **body: Any) -> str:
    return json.dumps({"custom_id": custom_id, "url": "/v1/completions", "body": {"prompt": "Hi", **body}})


BAD_LINES = [
    ("{", "not JSON"),
    ("[1]", "an object"),
    ("3", "an object"),
    ("{}", "custom_id"),
    ('{"custom_id": ""}', "custom_id"),
    ('{"custom_id": 7}', "custom_id"),
    ('{"custom_id": "a", "method": "GET", "url": "/v1/completions", "body": {}}', "method"),
    ('{"custom_id": "a", "url": "/v1/models", "body": {}}', "/v1/chat/completions"),
    ('{"custom_id": "a", "url": "/v1/completions"}', "body"),
    ('{"custom_id": "a", "url": "/v1/completions", "body": {"stream": true}}', "stream"),
    ("[" * 100_000, "not JSON"),
]


@pytest.mark.parametrize(("text", "says"), BAD_LINES, ids=range(len(BAD_LINES)))
def test_a_bad_line_becomes_an_error_record_with_its_number(text: str, says: str) -> None:
    _, bad = read_lines([completion("good"), "", text][::2])
    assert isinstance(bad, BadLine)
    record = bad.record()
    assert record["response"] is None
    assert record["error"]["code"] == "invalid_line"
    assert says in record["error"]["message"]
    assert record["error"]["line"] == 2


def test_blank_lines_are_no_lines_and_an_id_used_twice_is_refused() -> None:
    first, second = read_lines(["", completion("a"), "  ", completion("a")])
    assert isinstance(first, Line)
    assert (first.number, first.custom_id) == (2, "a")
    assert isinstance(second, BadLine)
    assert "earlier line" in second.reason


def run(front: Front, texts: list[str], concurrency: int = 4) -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = []
    asyncio.run(answer(front, list(read_lines(texts)), kept.append, concurrency))
    return kept


@pytest.mark.parametrize("concurrency", [1, 3, 100])
def test_every_line_gets_one_record_with_what_the_route_answers(concurrency: int) -> None:
    texts = [call(f"chat-{n}") if n % 2 else completion(f"text-{n}", max_tokens=2) for n in range(20)]
    records = {record["custom_id"]: record for record in run(make_front(), texts, concurrency)}
    assert len(records) == 20
    assert all(record["error"] is None and record["response"]["status_code"] == 200 for record in records.values())
    assert records["chat-1"]["response"]["body"]["choices"][0]["message"]["content"] == "Hello, world!"
    assert records["text-2"]["response"]["body"]["choices"][0] | {"text": "Hello,"} == records["text-2"]["response"]["body"]["choices"][0]
    assert records["text-2"]["response"]["body"]["usage"]["completion_tokens"] == 2


def test_no_more_run_at_once_than_asked() -> None:
    numbers: list[int] = []

    def script(request: Request, index: int) -> Script:
        numbers.append(len(front.running))
        return Script(step_s=0.001)

    front = make_front(script)
    run(front, [completion(str(n)) for n in range(12)], 3)
    assert len(numbers) == 12
    assert max(numbers) == 3


def test_a_line_that_the_route_refuses_gets_its_answer_and_the_others_go_on() -> None:
    texts = [
        completion("hot", temperature=-1),
        "nonsense",
        completion("good"),
        completion("who", model="nobody"),
        completion("long", max_tokens=999),
    ]
    records = run(make_front(), texts)
    status = {record["custom_id"]: (record["response"] or {}).get("status_code") for record in records}
    assert status == {"hot": 400, None: None, "good": 200, "who": 404, "long": 400}
    hot = next(record for record in records if record["custom_id"] == "hot")
    assert hot["response"]["body"]["error"]["param"] == "temperature"


def test_a_dead_engine_ends_the_run() -> None:
    with pytest.raises(EngineDead):
        run(make_front(Script(die_after=1)), [completion(str(n)) for n in range(5)])


@pytest.fixture
def fronts(monkeypatch: pytest.MonkeyPatch) -> list[Front]:
    made: list[Front] = []

    async def start_front(asked: object, config: object, template: object) -> Front:
        made.append(make_front())
        return made[-1]

    monkeypatch.setattr("octavo.serve.start.start_front", start_front)
    return made


def test_a_run_goes_on_where_it_was_cut_off(fronts: list[Front], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    requests, answers = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    requests.write_text("\n".join([completion("a"), "nonsense", completion("b", temperature=-1), completion("c"), completion("d")]) + "\n")
    words = ["batch", "-i", str(requests), "-o", str(answers), "--concurrency", "2"]
    assert main(words) == 0
    assert fronts[0].engine.closed  # type: ignore[attr-defined]
    whole = {json.loads(line)["id"]: line for line in answers.read_text().splitlines()}
    assert len(whole) == 5

    kept = [whole["batch_req_1"], whole["batch_req_2"], whole["batch_req_3"]]
    answers.write_text("\n".join([*kept, whole["batch_req_4"][:40]]))  # the last line was being written
    assert main(words) == 0
    lines = answers.read_text().splitlines()
    assert lines[:3] == kept
    assert {json.loads(line)["custom_id"] for line in lines[3:]} == {"c", "d"}
    assert len(fronts[1].engine.requests) == 2  # type: ignore[attr-defined]

    assert main(words) == 0
    assert len(fronts) == 2, "no engine is started where nothing is left"
    assert "nothing is left" in capsys.readouterr().err


def test_answers_that_failed_inside_are_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    line = Line(1, "a", "/v1/completions", {})
    path.write_text(json.dumps(line.record(500, {})) + "\n")
    assert not resume(path).has(line)
    path.write_text(json.dumps(line.record(400, {})) + "\n")
    assert resume(path).has(line)


ANSWER = json.dumps(Line(1, "a", "", {}).record(200, {}))


@pytest.mark.parametrize(
    "content", [completion("a"), completion("a") + "\n", "notes", "[1]\n", '{"id": 3}\n', "\xff\n", f"{ANSWER}\nx", f"x\n{ANSWER}\n"]
)
def test_a_file_that_holds_no_answers_is_left_as_it_is(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "same.jsonl"
    path.write_text(content)
    assert main(["batch", "-i", str(path), "-o", str(path)]) == 2
    assert "holds no answers of a batch" in capsys.readouterr().err
    assert path.read_text() == content


def test_a_text_may_hold_any_character(fronts: list[Front], tmp_path: Path) -> None:
    """Also those that end lines elsewhere, and a mark of the byte order before the first line."""
    requests, answers = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    text = "one\u2028two\x85three"
    line = json.dumps({"custom_id": text, "url": "/v1/completions", "body": {"prompt": text}}, ensure_ascii=False)
    requests.write_text("\ufeff" + line + "\r\n", encoding="utf-8", newline="")
    assert main(["batch", "-i", str(requests), "-o", str(answers)]) == 0
    (record,) = map(json.loads, answers.read_text().splitlines())
    assert (record["custom_id"], record["response"]["status_code"]) == (text, 200)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "-i"),
        (["-i", "a"], "-o"),
        (["-i", "no/such", "-o", "/dev/null"], "no/such"),
        (["-i", "/dev/null", "-o", "no/such"], "no/such"),
        (["-i", "/bin/sh", "-o", "/dev/null"], "cannot be read"),
    ],
)
def test_asked_wrongly(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["batch", *words]) == 2
    assert says in capsys.readouterr().err

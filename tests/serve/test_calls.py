"""Clients that leave before their answer is complete: the work for them ends, that for others does not, and the counts add up."""

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest

from tests.scripted_engine import Script
from tests.serve.serving import WAIT_S, Served, eventually, served

HELLO: list = [{"role": "user", "content": "Hi"}]
PATHS = ["/v1/completions", "/v1/chat/completions"]


def leave(url: str, body: dict, *, after_first_event: bool) -> None:
    """Ask, and go away before the answer is complete."""
    with httpx.Client(timeout=0.3) as client:
        if after_first_event:
            with client.stream("POST", url, json=body) as response:
                assert next(response.iter_lines())
        else:
            with pytest.raises(httpx.TimeoutException):
                client.post(url, json=body)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", [Script(prefill_s=30.0), Script(step_s=0.02, forever=True)], ids=["in prefill", "while generating"])
@pytest.mark.parametrize("path", PATHS)
def test_work_ends_when_the_client_leaves(path: str, script: Script, stream: bool) -> None:
    with served(script) as running:
        body = {"prompt": ["a", "b"]} if path == "/v1/completions" else {"messages": HELLO}
        leave(running.url + path, body | {"max_tokens": 100, "stream": stream}, after_first_event=stream and not script.prefill_s)
        eventually(lambda: not running.engine.active)
        assert len(running.engine.aborted) == len(running.engine.requests)
        eventually(lambda: not running.front.running)
        assert running.front.queue.num_requests == 0
        assert running.front.metrics.finished["abort"] == running.front.metrics.num_started == len(running.engine.requests)


def body_of(path: str, text: str) -> dict:
    return {"prompt": text} if path == PATHS[0] else {"messages": [{"role": "user", "content": text}]}


def nothing_is_left(running: Served) -> bool:
    return not running.engine.active and not running.front.running and not running.front.queue.num_requests


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_who_leaves_takes_no_other_of_the_same_id_along(path: str, stream: bool) -> None:
    """Of three live requests to which clients gave one id, two leave: the third is answered whole, and so is a later one."""
    with served(Script(["a"], step_s=0.02, forever=True)) as running, ThreadPoolExecutor() as pool:
        url = running.url + path
        own = {**body_of(path, "x"), "request_id": "mine", "stream": stream}
        leaving = [pool.submit(leave, url, own | {"max_tokens": 100}, after_first_event=stream)]
        eventually(lambda: len(running.engine.requests) == 1)
        staying = pool.submit(httpx.post, url, json=own | {"max_tokens": 40}, timeout=WAIT_S)
        eventually(lambda: len(running.engine.requests) == 2)
        leaving.append(pool.submit(leave, url, own | {"max_tokens": 100}, after_first_event=stream))
        for one in leaving:
            one.result()
        answers = [staying.result(), httpx.post(url, json=own | {"max_tokens": 40}, timeout=WAIT_S)]
        for answer in answers:
            assert answer.status_code == 200
            assert answer.text.count('"finish_reason":"length"') == 1
            assert len("".join(re.findall(r'"(?:text|content)":"(a*)"', answer.text))) == 40
            assert '-mine"' in answer.text
        eventually(lambda: nothing_is_left(running))
        metrics = running.front.metrics
        assert len({request.id for request in running.engine.requests}) == metrics.num_started == 4
        assert (metrics.finished["abort"], metrics.finished["length"]) == (2, 2)


SCRIPTS = {  # by the prompt
    "forever": Script(["a"], step_s=0.02, forever=True),
    "late": Script(prefill_s=30.0),
    "whole": Script(),
    "fails": Script(["a"], fail_after=1),
}


def counts_of(url: str, pattern: str) -> dict[str, float]:
    """What `/metrics` counts under names and labels that the pattern finds, by its group. What is 0 is left out."""
    found = re.findall(rf"^octavo:{pattern} (\S+)$", httpx.get(url + "/metrics").text, re.MULTILINE)
    return {name: float(number) for name, number in found if float(number)}


def test_started_streams_are_finished_by_reason_and_first_tokens_are_counted_once() -> None:
    """Ten streams: four left after their first token and one before it, two stopped, two cut by length, one that fails after a token."""
    with served(lambda request, _: SCRIPTS[bytes(request.prompt_token_ids[1:]).decode()]) as running:
        url = running.url + PATHS[0]
        with ExitStack() as streams, httpx.Client(timeout=WAIT_S) as client:
            for _ in range(4):
                response = streams.enter_context(client.stream("POST", url, json={"prompt": "forever", "max_tokens": 100, "stream": True}))
                assert next(response.iter_lines())
        leave(url, {"prompt": "late", "stream": True}, after_first_event=False)
        for prompt, max_tokens in (("whole", 16), ("whole", 16), ("whole", 2), ("whole", 1), ("fails", 16)):
            httpx.post(url, json={"prompt": prompt, "max_tokens": max_tokens, "stream": True})
        eventually(lambda: nothing_is_left(running))
        reasons = counts_of(running.url, r'request_success_total\{.*finished_reason="(\w+)".*\}')
        assert reasons == {"stop": 2, "length": 2, "abort": 5, "error": 1}
        totals = {"requests_started_total": 10, "time_to_first_token_seconds_count": 9, "e2e_request_latency_seconds_count": 10}
        assert counts_of(running.url, rf"({'|'.join(totals)})\{{.*\}}") == totals

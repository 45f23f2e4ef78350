"""Workers in other processes: outcomes in order, failures where they belong, and no rank outlives the group."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from octavo.core.plan import Plan, Slice
from octavo.engine.executor import ExecutorDead
from octavo.engine.processes import ProcessExecutor, StepFailed
from octavo.engine.workers import Workers

BUILD = "tests.engine.fake_worker:build"


def plan(step: int, *rows: int, masked=()) -> Plan:
    return Plan(step, tuple(Slice(row, 1, 1, 0, True) for row in rows), masked=masked)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def executor():
    made = ProcessExecutor([Workers(BUILD, ("good",), 2)])
    yield made
    made.close()
    assert not any(alive(told["pid"]) for told in made.told)


def test_the_last_rank_gives_the_outcomes_in_order(executor):
    assert [told["rank"] for told in executor.told] == [0, 1]
    steps = [executor.submit(plan(number, number, number + 1)) for number in range(5)]
    assert steps[4].result().tokens == [[105], [106]]
    for number in range(4):
        assert steps[number].result().tokens == [[101 + number], [102 + number]]


def test_two_halves(executor):
    half = plan(1, 5, masked=(0,))
    step = executor.submit(half)
    later = plan(2, 6)
    executor.sample(half, [77])
    after = executor.submit(later)
    assert step.result().tokens == [[77]]
    assert after.result().tokens == [[107]]


def test_a_step_that_raises_fails_alone_where_there_is_one_rank():
    executor = ProcessExecutor([Workers(BUILD, ("good",))])
    bad, good = executor.submit(plan(13, 1)), executor.submit(plan(16, 1))
    with pytest.raises(StepFailed, match="ValueError: unlucky step"):
        bad.result()
    assert good.result().tokens == [[101]]
    executor.close()


def test_a_step_that_raises_ends_several_ranks_since_they_wait_for_each_other(executor):
    step = executor.submit(plan(13, 1))
    with pytest.raises(ExecutorDead, match=r"worker \d: ValueError: unlucky step"):
        step.result()


def test_an_outcome_that_cannot_be_sent_ends_the_group(executor):
    step = executor.submit(plan(17, 1))
    with pytest.raises(ExecutorDead, match="worker 1: TypeError: Encoding objects of type object"):
        step.result()


def test_a_dead_rank_ends_the_group(executor):
    step = executor.submit(plan(14, 1))
    with pytest.raises(ExecutorDead, match=r"worker \d: its process ended with code 3"):
        step.result()


def test_a_killed_rank_that_nobody_reads_from_ends_the_group(executor):
    step = executor.submit(plan(15, 1))
    os.kill(executor.told[0]["pid"], signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(ExecutorDead, match="worker 0: its process ended with signal 9"):
        step.result()
    assert time.monotonic() - begin < 10


def check_for(executor: ProcessExecutor, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        executor.check()
        time.sleep(0.01)


def test_a_death_is_noticed_when_nothing_runs(executor):
    executor.check()
    os.kill(executor.told[1]["pid"], signal.SIGKILL)
    with pytest.raises(ExecutorDead, match="worker 1: its process ended with signal 9"):
        check_for(executor, seconds=10)


def test_a_failed_start_names_rank_and_error():
    with pytest.raises(ExecutorDead, match="worker 1: ValueError: this rank has no device"):
        ProcessExecutor([Workers(BUILD, ("broken",), 2)])


def test_a_real_model_in_a_worker_process():
    from octavo import LLM, SamplingParams

    flags = {"max_model_len": 128, "kv_cache_memory_bytes": 32 << 20}
    params = SamplingParams(temperature=0, max_tokens=8)
    texts = []
    for backend in ("uni", "mp"):
        llm = LLM("smollm2-135m", distributed_executor_backend=backend, **flags)
        texts.append(llm.generate("The capital of France is", params, use_tqdm=False)[0].outputs[0].text)
        llm.close()
    assert texts[0] == texts[1]
    assert "Paris" in texts[0]


def test_ranks_that_hang_are_named_with_what_they_do(monkeypatch):
    monkeypatch.setenv("OCTAVO_EXECUTE_MODEL_TIMEOUT_SECONDS", "0.5")
    executor = ProcessExecutor([Workers(BUILD, ("good",), 2)])
    assert executor.submit(plan(1, 1)).result().tokens == [[102]]
    step = executor.submit(plan(15, 1))
    with pytest.raises(ExecutorDead, match=r"within 0.5 s on host .*worker 0 \(process \d+\) launches step 15; worker 1"):
        step.result()
    assert not any(alive(told["pid"]) for told in executor.told)


def test_a_rank_that_dies_in_a_collective_is_the_one_that_is_named():
    from octavo import LLM, SamplingParams

    llm = LLM("smollm2-135m", tensor_parallel_size=3, max_model_len=128, kv_cache_memory_bytes=32 << 20, skip_tokenizer_init=True)
    pid = llm._engine.executor.parties[0].ranks[1].child.process.pid
    prompt, params = {"prompt_token_ids": [5, 6, 7]}, SamplingParams(temperature=0, max_tokens=100, ignore_eos=True, detokenize=False)
    os.kill(pid, signal.SIGSTOP)  # the others wait for it in the first sum
    begin = time.monotonic()
    threading.Timer(1.0, os.kill, (pid, signal.SIGKILL)).start()
    with pytest.raises(ExecutorDead, match="worker 1: its process ended with signal 9"):
        llm.generate(prompt, params, use_tqdm=False)
    assert time.monotonic() - begin < 10
    llm.close()

"""Figures follow from counts and the clock."""

import itertools

import pytest

from octavo.bench.offline import latency, throughput, warm_up
from octavo.bench.workloads import Workload
from tests.cli.fake_llm import FakeLLM


def ticking(step_s: float) -> object:
    """A clock that moves by the same step at each reading."""
    return map(lambda n: n * step_s, itertools.count()).__next__


def test_throughput() -> None:
    result = throughput(FakeLLM(), Workload(10, 20, 30), vocab_size=1000, seed=1, clock=ticking(2.0))  # type: ignore[arg-type]
    assert result["seconds"] == 2.0
    assert (result["input_tokens"], result["output_tokens"]) == (200, 300)
    assert (result["output_tokens_per_s"], result["prompt_tokens_per_s"], result["requests_per_s"]) == (150.0, 100.0, 5.0)
    assert result["ms_per_output_token"] == pytest.approx(2000 / 30)


def test_latency_draws_new_prompts_for_each_run() -> None:
    llm = FakeLLM()
    result = latency(llm, Workload(2, 20, 30), vocab_size=1000, seed=1, num_iters=5, clock=ticking(1.5))  # type: ignore[arg-type]
    assert (result["mean_s"], result["runs"]) == (1.5, 5)
    assert set(result["percentiles_s"].values()) == {1.5}
    assert result["ms_per_output_token"] == pytest.approx(50.0)
    assert len({str(prompts) for prompts, _ in llm.asked}) == 5


def test_runs_are_greedy_and_of_exact_length() -> None:
    llm = FakeLLM()
    warm_up(llm, 1000)
    params = llm.asked[0][1][0]
    assert (params.greedy, params.ignore_eos, params.detokenize, params.max_tokens) == (True, True, False, 4)

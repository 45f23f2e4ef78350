"""Measures an `LLM` on workloads: greedy, no end token, no text."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from octavo.bench.workloads import Drawn, Workload, draw
from octavo.types import RequestOutput, SamplingParams

Clock = Callable[[], float]
WARM_UP = Workload(1, 16, 4)
PERCENTILES = (10, 25, 50, 75, 90, 99)


class Generator(Protocol):
    """The part of `LLM` that is measured."""

    def generate(
        self, prompts: Sequence[Mapping[str, Any]], sampling_params: Sequence[SamplingParams], use_tqdm: bool
    ) -> Sequence[RequestOutput]: ...


def run_once(llm: Generator, drawn: Drawn, clock: Clock = time.perf_counter) -> tuple[float, int]:
    """Seconds, and output tokens made."""
    prompts = [{"prompt_token_ids": list(prompt)} for prompt in drawn.prompts]
    params = [SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=length, detokenize=False) for length in drawn.output_lens]
    begin_s = clock()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return clock() - begin_s, sum(len(output.outputs[0].token_ids) for output in outputs)


def decode(
    llm: Generator, vocab_size: int, input_len: int, output_len: int, clock: Clock = time.perf_counter
) -> tuple[float, tuple[int, ...], list[int]]:
    """Seconds of one request with nothing beside it, its prompt, and the tokens that it made."""
    (prompt,) = draw(Workload(1, input_len, output_len), vocab_size).prompts
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=output_len, detokenize=False)
    begin_s = clock()
    (output,) = llm.generate([{"prompt_token_ids": list(prompt)}], [params], use_tqdm=False)
    return clock() - begin_s, prompt, list(output.outputs[0].token_ids)


def throughput(llm: Generator, workload: Workload, vocab_size: int, seed: int, clock: Clock = time.perf_counter) -> dict[str, float]:
    """All requests at once, until the last is done."""
    drawn = draw(workload, vocab_size, seed)
    seconds, num_output_tokens = run_once(llm, drawn, clock)
    return {
        "requests": workload.num_prompts,
        "input_tokens": drawn.num_input_tokens,
        "output_tokens": num_output_tokens,
        "seconds": seconds,
        "requests_per_s": workload.num_prompts / seconds,
        "output_tokens_per_s": num_output_tokens / seconds,
        "prompt_tokens_per_s": drawn.num_input_tokens / seconds,
        "ms_per_output_token": seconds * 1000 * workload.num_prompts / num_output_tokens,
    }


def latency(
    llm: Generator, workload: Workload, vocab_size: int, seed: int, num_iters: int, clock: Clock = time.perf_counter
) -> dict[str, Any]:
    """The same batch again and again: how long it takes, over the runs. Each run has prompts of its own, so that none is cached."""
    runs = [run_once(llm, draw(workload, vocab_size, seed + number), clock)[0] for number in range(num_iters)]
    ordered = sorted(runs)
    percentiles = {f"p{percent}": ordered[min(len(ordered) - 1, round(percent / 100 * (len(ordered) - 1)))] for percent in PERCENTILES}
    mean = sum(runs) / len(runs)
    longest_output = workload.output_len if isinstance(workload.output_len, int) else workload.output_len[1]
    return {
        "requests": workload.num_prompts,
        "runs": num_iters,
        "mean_s": mean,
        "percentiles_s": percentiles,
        "ms_per_output_token": mean * 1000 / longest_output,
    }


def check(flags: Mapping[str, Any], workloads: Mapping[str, Workload], seed: int, limit: int = 256) -> dict[str, dict[str, Any]]:
    """Whether the level that `flags` ask for is right at the workloads' shapes, with at most `limit` prompts of each
    (`octavo.bench.check`). Raises `ConfigError` and `ExecutorDead`."""
    from octavo.bench.check import compare_with_reference
    from octavo.bench.check_ranks import compare_ranks
    from octavo.config.architecture import Architecture
    from octavo.config.engine import EngineConfig
    from octavo.config.resolve import resolve
    from octavo.engine.build import open_model
    from octavo.worker.device import detect

    config = EngineConfig.from_flags(**flags)
    checkpoint = open_model(config)
    architecture = Architecture.from_config(checkpoint.config)
    settings = resolve(config, checkpoint.config, detect(num_needed=config.parallel.world_size), offline=True)
    most = min(limit, settings.max_num_seqs)
    prompts = {name: draw(workload, architecture.vocab, seed).prompts[:most] for name, workload in workloads.items()}
    if config.parallel.world_size == 1 and not config.parallel.lock_step:
        found = compare_with_reference(settings, architecture, checkpoint, prompts)
    else:
        found = compare_ranks(config, settings, prompts)
    return {name: {**one, "prompts": len(prompts.get(name, [0]))} for name, one in found.items()}


def warm_up(llm: Generator, vocab_size: int, num_replicas: int = 1) -> float:
    """Seconds until the first tokens after the start, of a request to each replica."""
    return run_once(llm, draw(replace(WARM_UP, num_prompts=num_replicas), vocab_size, seed=0))[0]

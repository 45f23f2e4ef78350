"""Which sequences run in a step, and with how many tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from octavo.config.fields import ConfigError, Flag, at_least


@dataclass(frozen=True)
class SchedulerConfig:
    """The step's token budget and the order of requests."""

    max_num_batched_tokens: Annotated[
        int | None, Flag("tokens a step, over all sequences; by default 2048 on CPU, 2048 or 8192 on GPU (LLM: 8192 or 16384)")
    ] = None
    max_num_seqs: Annotated[int | None, Flag("sequences that run at once; default by device: 32 on CPU, 256 or 1024 on GPU")] = None
    enable_chunked_prefill: Annotated[bool, Flag("cut long prompts into pieces that share steps with running decodes")] = True
    max_num_partial_prefills: Annotated[int, Flag("prompts that may be in the middle of their prefill at once")] = 1
    max_long_partial_prefills: Annotated[int, Flag("how many of those may be long, so that short prompts overtake long ones")] = 1
    long_prefill_token_threshold: Annotated[
        int, Flag("prompt tokens from which a prompt counts as long; 0: none does, or 4 % of the length with several partial prefills")
    ] = 0
    scheduling_policy: Annotated[
        Literal["fcfs", "priority", "fair"],
        Flag("order of requests: first come first served, the request's priority (lower first), or fair shares by API key or `user`"),
    ] = "fcfs"
    target_itl_ms: Annotated[
        float | None,
        Flag("milliseconds between a request's tokens, for 99 of 100; steps read as many prompt tokens as this allows, by the cost model"),
    ] = None
    target_ttft_ms: Annotated[
        float | None, Flag("milliseconds to a request's first token; within them prompts are spread over steps, so that tokens come evenly")
    ] = None
    stream_interval: Annotated[
        int, Flag("tokens that a stream tells at once: fewer and larger events; a text's first token comes alone, its last at once")
    ] = 1
    async_scheduling: Annotated[bool | None, Flag("plan the next step while this one runs; default: on, but for one process on CPU")] = None

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_seqs", "max_num_partial_prefills", "max_long_partial_prefills", "stream_interval"):
            at_least(name, getattr(self, name), 1)
        for name in ("target_itl_ms", "target_ttft_ms"):
            target = getattr(self, name)
            if target is not None and target <= 0:
                raise ConfigError(name, target, "it must be greater than 0, in milliseconds")
            if target is not None and not self.enable_chunked_prefill:
                raise ConfigError(name, target, "steps are made shorter by cutting prompts; it needs --enable-chunked-prefill")
        at_least("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        if self.max_long_partial_prefills > self.max_num_partial_prefills:
            raise ConfigError(
                "max_long_partial_prefills",
                self.max_long_partial_prefills,
                f"at most --max-num-partial-prefills = {self.max_num_partial_prefills}",
            )
        if self.max_num_partial_prefills > 1 and not self.enable_chunked_prefill:
            raise ConfigError(
                "max_num_partial_prefills", self.max_num_partial_prefills, "partial prefills need --enable-chunked-prefill; use 1"
            )
        tokens, seqs = self.max_num_batched_tokens, self.max_num_seqs
        if tokens is not None and seqs is not None and tokens < seqs:
            raise ConfigError(
                "max_num_batched_tokens", tokens, f"each of --max-num-seqs = {seqs} sequences needs a token a step; use at least {seqs}"
            )

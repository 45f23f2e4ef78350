"""What the front counts, and how it is told to Prometheus together with the engine's own readings.

Plain integers and lists are counted up on the path of every token; `prometheus_client` only writes them out. There are no shared files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from octavo.engine.client import EngineStats, together
from octavo.engine_metrics import ENGINE_COUNTERS, FURTHER_COUNTERS, FURTHER_GAUGES, GAUGES
from octavo.expert_metrics import expert_families
from octavo.histogram import Histogram, bound_text, cumulative, one_two_five
from octavo.ledger import Counts, Ledger
from octavo.types import FinishReason, RequestMetrics

TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
FINE_TOKEN_S = (0.001, 0.0025, 0.005, *TOKEN_S)
REQUEST_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
CONTINUATIONS = (1, 2, 5, 10, 20)
FINE = 8

LABELS = ("model_name", "engine")
FRONT = "0"  # what the front counts stands under the first engine: sums over engines are right
REFUSALS = ("queue_full", "wait_too_long", "rate_limit_exceeded")
KEY_COUNTS = {
    "requests": ("Requests that an API key has sent to the engine", CounterMetricFamily),
    "requests_refused": ("Requests that were over a limit of the API key", CounterMetricFamily),
    "prompt_tokens": ("Prompt tokens of an API key's requests", CounterMetricFamily),
    "generation_tokens": ("Tokens given to an API key's requests", CounterMetricFamily),
    "requests_running": ("Requests of an API key that have not ended", GaugeMetricFamily),
}
MISSES = "prefix_misses_"  # the engine's counts of misses by reason begin so


class FrontMetrics:
    """What all API processes have counted. Requests started always equal requests finished by reason plus those running."""

    def __init__(self, model_name: str, max_model_len: int, namespace: str = "octavo", ledger: Ledger | None = None) -> None:
        ledger = ledger or Ledger()
        self._namespace, self._model_name = namespace, model_name
        tokens = one_two_five(max_model_len)
        self.engines = [EngineStats()]  # the last reading of each
        self.startup_s: Mapping[str, float] = {}  # seconds by stage of the engine's start
        self.counts = Counts(("started", "prompt_tokens", "prompt_tokens_cached", "generation_tokens"), ledger)
        self.finished = Counts([reason.value for reason in FinishReason], ledger)
        self.refused = Counts(REFUSALS, ledger)  # by code, before they were requests of the engine
        self.by_key: Mapping[str, Counts] = {}  # counts by the name of each API key
        self.time_to_first_token = Histogram(TTFT_S, FINE, ledger=ledger)  # fine ones are shown live
        self.inter_token_latency = Histogram(FINE_TOKEN_S, FINE, ledger=ledger)
        self.time_per_output_token = Histogram(FINE_TOKEN_S, ledger=ledger)
        self.e2e_request_latency = Histogram(REQUEST_S, ledger=ledger)
        self.request_queue_time = Histogram(REQUEST_S, ledger=ledger)
        self.request_prefill_time = Histogram(REQUEST_S, ledger=ledger)
        self.request_decode_time = Histogram(REQUEST_S, ledger=ledger)
        self.request_inference_time = Histogram(REQUEST_S, ledger=ledger)
        self.request_prompt_tokens = Histogram(tokens, ledger=ledger)
        self.request_generation_tokens = Histogram(tokens, ledger=ledger)
        self.request_params_max_tokens = Histogram(tokens, ledger=ledger)
        self.request_params_n = Histogram(CONTINUATIONS, ledger=ledger)
        self._registry = CollectorRegistry()
        if ledger.num_rows == 1:  # of several processes each would tell of itself alone
            for collector in (ProcessCollector, PlatformCollector, GCCollector):
                collector(registry=self._registry)
        self._registry.register(self)

    def started(self, n: int, max_tokens: int | None) -> None:
        self.counts.add("started")
        self.request_params_n.observe(n)
        if max_tokens is not None:
            self.request_params_max_tokens.observe(max_tokens)

    def first_token(self, times: RequestMetrics, num_prompt_tokens: int, num_cached_tokens: int) -> None:
        assert times.first_token_time is not None
        self.prompt_read(num_prompt_tokens, num_cached_tokens)
        self.time_to_first_token.observe(times.first_token_time - times.arrival_time)

    def prompt_read(self, num_prompt_tokens: int, num_cached_tokens: int) -> None:
        self.counts.add("prompt_tokens", num_prompt_tokens)
        self.counts.add("prompt_tokens_cached", num_cached_tokens)

    def ended(self, reason: FinishReason, times: RequestMetrics, now_s: float, num_prompt_tokens: int, num_output_tokens: int) -> None:
        self.finished.add(reason.value)
        self.e2e_request_latency.observe(now_s - times.arrival_time)
        self.request_prompt_tokens.observe(num_prompt_tokens)
        self.request_generation_tokens.observe(num_output_tokens)
        if times.time_in_queue is not None:
            self.request_queue_time.observe(times.time_in_queue)
        if times.first_token_time is None:
            return
        scheduled = times.arrival_time + (times.time_in_queue or 0.0)
        self.request_prefill_time.observe(max(0.0, times.first_token_time - scheduled))
        self.request_decode_time.observe(now_s - times.first_token_time)
        self.request_inference_time.observe(now_s - scheduled)
        if num_output_tokens > 1:
            self.time_per_output_token.observe((now_s - times.first_token_time) / (num_output_tokens - 1))

    @property
    def num_started(self) -> int:
        return self.counts["started"]

    @property
    def num_running(self) -> int:
        return self.num_started - self.finished.total()

    @property
    def prompt_tokens(self) -> int:
        return self.counts["prompt_tokens"]

    @property
    def prompt_tokens_cached(self) -> int:
        return self.counts["prompt_tokens_cached"]

    @property
    def generation_tokens(self) -> int:
        return self.counts["generation_tokens"]

    @property
    def stats(self) -> EngineStats:
        """The last reading of all engines together."""
        return together(self.engines)

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Called by the registry's exposition."""
        for name, (help_text, read) in GAUGES.items():
            yield self._by_engine(GaugeMetricFamily, name, help_text, read)
        for name, (help_text, read) in ENGINE_COUNTERS.items():
            yield self._by_engine(CounterMetricFamily, name, help_text, read)
        yield from self._further()
        yield self._family(CounterMetricFamily, "prompt_tokens", "Prompt tokens computed or found in the cache", self.prompt_tokens)
        yield self._family(CounterMetricFamily, "prompt_tokens_cached", "Prompt tokens found in the cache", self.prompt_tokens_cached)
        yield self._family(CounterMetricFamily, "generation_tokens", "Tokens given to clients", self.generation_tokens)
        yield self._family(CounterMetricFamily, "requests_started", "Requests handed to the engine", self.num_started)
        yield self._by_label("request_success", "Requests that have ended, by reason", "finished_reason", dict(self.finished.items()))
        yield self._by_label("requests_refused", "Requests answered with 429, by code", "code", dict(self.refused.items()))
        for name, (help_text, kind) in KEY_COUNTS.items():
            yield self._by_label(f"api_key_{name}", help_text, "api_key", {key: counts[name] for key, counts in self.by_key.items()}, kind)
        yield self._by_label("startup_seconds", "Seconds of the engine's start, by stage", "stage", self.startup_s, GaugeMetricFamily)
        yield from expert_families(self._namespace, LABELS, self._model_name, [stats.expert_tokens for stats in self.engines])
        for name, help_text, histogram in self._histograms():
            yield self._family(HistogramMetricFamily, name, help_text, histogram.buckets(), histogram.total)
        for name in self.engines[0].histograms:
            yield self._by_engine(HistogramMetricFamily, name, name.replace("_", " "), partial(_buckets, name), None)

    def _further(self) -> Iterator[Metric]:
        """The engines' further counts, and those under names of their own that nobody knows here."""
        for name, help_text in FURTHER_GAUGES.items():
            yield self._by_engine(GaugeMetricFamily, name, help_text, partial(_count, name))
        for name, (engine_name, help_text) in FURTHER_COUNTERS.items():
            yield self._by_engine(CounterMetricFamily, name, help_text, partial(_count, engine_name))
        own = self.engines[0].counters
        misses = CounterMetricFamily(f"{self._namespace}:prefix_cache_misses", "Prefixes not cached, by reason", labels=[*LABELS, "reason"])
        for number, stats in enumerate(self.engines):
            for name in (name for name in own if name.startswith(MISSES)):
                misses.add_metric((self._model_name, str(number), name.removeprefix(MISSES)), _count(name, stats))
        yield misses
        known = {*FURTHER_GAUGES, *(engine_name for engine_name, _ in FURTHER_COUNTERS.values())}
        for name in own:
            if name not in known and not name.startswith(MISSES):
                yield self._by_engine(CounterMetricFamily, name, name.replace("_", " "), partial(_count, name))

    def _histograms(self) -> Iterator[tuple[str, str, Histogram]]:
        yield "time_to_first_token_seconds", "From arrival to the first token", self.time_to_first_token
        yield "inter_token_latency_seconds", "Between successive news of tokens of a request", self.inter_token_latency
        yield "time_per_output_token_seconds", "Mean time a token of each request after its first", self.time_per_output_token
        yield "request_time_per_output_token_seconds", "Same as time_per_output_token_seconds", self.time_per_output_token
        yield "e2e_request_latency_seconds", "From arrival to the end", self.e2e_request_latency
        yield "request_queue_time_seconds", "From arrival to the first step", self.request_queue_time
        yield "request_prefill_time_seconds", "From the first step to the first token", self.request_prefill_time
        yield "request_decode_time_seconds", "From the first token to the end", self.request_decode_time
        yield "request_inference_time_seconds", "From the first step to the end", self.request_inference_time
        yield "request_prompt_tokens", "Prompt tokens of each request", self.request_prompt_tokens
        yield "request_generation_tokens", "Tokens made for each request", self.request_generation_tokens
        yield "request_params_max_tokens", "Most tokens that each request allowed", self.request_params_max_tokens
        yield "request_params_n", "Continuations that each request asked for", self.request_params_n

    def _family(self, kind: Callable[..., Any], name: str, help_text: str, *values: object) -> Metric:
        """What the front counts of all engines together."""
        family = kind(f"{self._namespace}:{name}", help_text, labels=LABELS)
        family.add_metric((self._model_name, FRONT), *values)
        return family

    def _by_engine(
        self, kind: Callable[..., Any], name: str, help_text: str, read: Callable[[EngineStats], object], *values: object
    ) -> Metric:
        family = kind(f"{self._namespace}:{name}", help_text, labels=LABELS)
        for number, stats in enumerate(self.engines):
            family.add_metric((self._model_name, str(number)), read(stats), *values)
        return family

    def _by_label(
        self, name: str, help_text: str, label: str, counts: Mapping[str, float], kind: type[Any] = CounterMetricFamily
    ) -> Metric:
        family = kind(f"{self._namespace}:{name}", help_text, labels=[*LABELS, label])
        for value, count in counts.items():
            family.add_metric((self._model_name, FRONT, value), count)
        return family


def _count(name: str, stats: EngineStats) -> float:
    return stats.counters.get(name, 0)


def _buckets(name: str, stats: EngineStats) -> list[tuple[str, float]]:
    return cumulative((bound_text(bound) if bound != float("inf") else "+Inf", count) for bound, count in stats.histograms[name])

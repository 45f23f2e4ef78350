"""Traces of requests to an OpenTelemetry collector: a span for each request of the engine, with sizes and times and without any text.

The only file that knows opentelemetry, which is an extra (`octavo[otlp]`).
"""

from __future__ import annotations

import time
from typing import Any, Protocol
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.config.fields import ConfigError
from octavo.text.state import State
from octavo.types import FinishReason, Request

PATH = "/v1/traces"


class Traces(Protocol):
    """Is told of requests as they start and end."""

    def started(self, request: Request) -> Any:
        """What `ended` is given of this request. Called in the context of the client's call."""
        ...

    def ended(self, span: Any, state: State[Any], reason: FinishReason, e2e_s: float) -> None: ...


class NoTraces:
    """Nobody listens."""

    def started(self, request: Request) -> None:
        pass

    def ended(self, span: Any, state: State[Any], reason: FinishReason, e2e_s: float) -> None:
        pass


class Spans:
    """Sends spans by OTLP over HTTP, from a thread of its own; what cannot be sent is dropped, with a line in the log."""

    def __init__(self, endpoint: str, model_name: str) -> None:
        """Raises `ConfigError` where opentelemetry is not installed."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise ConfigError("otlp_traces_endpoint", endpoint, f"it needs pip install 'octavo[otlp]': {error}") from None
        resource = Resource({"service.name": "octavo"}).merge(OTELResourceDetector().detect())  # OTEL_SERVICE_NAME goes first
        self.provider = TracerProvider(resource=resource)
        whole = endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + PATH
        self.provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=whole)))
        self._tracer = self.provider.get_tracer("octavo.serve")
        self._model_name = model_name

    def started(self, request: Request) -> Any:
        from opentelemetry.trace import SpanKind

        span = self._tracer.start_span("llm_request", kind=SpanKind.SERVER, start_time=time.time_ns())
        params = request.params
        asked = {"id": request.id, "max_tokens": params.max_tokens, "temperature": params.temperature, "top_p": params.top_p, "n": params.n}
        span.set_attributes({f"gen_ai.request.{name}": value for name, value in asked.items() if value is not None})
        return span

    def ended(self, span: Any, state: State[Any], reason: FinishReason, e2e_s: float) -> None:
        times = state.metrics
        known = {
            "gen_ai.response.model": self._model_name,
            "gen_ai.response.finish_reason": reason.value,
            "gen_ai.usage.prompt_tokens": len(state.request.prompt_token_ids),
            "gen_ai.usage.completion_tokens": state.num_output_tokens,
            "gen_ai.usage.cached_tokens": state.num_cached_tokens,
            "gen_ai.latency.e2e": e2e_s,
            "gen_ai.latency.time_in_queue": times.time_in_queue,
            "gen_ai.latency.time_to_first_token": times.first_token_time and times.first_token_time - times.arrival_time,
        }
        span.set_attributes({name: value for name, value in known.items() if value is not None})
        span.end()


def traces_to(endpoint: str | None, model_name: str) -> Traces:
    return NoTraces() if endpoint is None else Spans(endpoint, model_name)


class Parents:
    """Spans of a call belong to the trace that its header `traceparent` names."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        from opentelemetry.context import attach, detach
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        token = attach(TraceContextTextMapPropagator().extract(dict(Headers(scope=scope))))
        try:
            await self._app(scope, receive, send)
        finally:
            detach(token)

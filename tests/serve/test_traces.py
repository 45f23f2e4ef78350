"""Spans, as a collector gets them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from octavo.serve.traces import Spans
from tests.serve.serving import client

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@contextmanager
def collector() -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """Its address, and the paths and spans that it was sent."""
    spans: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
            for resource in told.resource_spans:
                spans.extend((self.path, span) for scope in resource.scope_spans for span in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", spans
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_each_request_is_a_span_without_its_text() -> None:
    with collector() as (url, spans):
        async with client(otlp_traces_endpoint=url) as api:
            body = {"prompt": "a secret", "max_tokens": 3, "temperature": 0.5}
            assert (await api.post("/v1/completions", body, headers={"traceparent": PARENT})).status_code == 200
            assert (await api.post("/v1/completions", {"prompt": ["Hi", "Ho"]})).status_code == 200
            assert isinstance(api.front.traces, Spans)
            api.front.traces.provider.shutdown()
    assert [path for path, _ in spans] == ["/v1/traces"] * 3
    first = next(span for _, span in spans if span.parent_span_id.hex() == "b7ad6b7169203331")
    assert first.trace_id.hex() == PARENT.split("-")[1]
    assert first.name == "llm_request"
    assert first.end_time_unix_nano > first.start_time_unix_nano
    told = {item.key: next(iter(item.value.ListFields()))[1] for item in first.attributes}
    assert told["gen_ai.response.model"] == "tiny"
    assert told["gen_ai.response.finish_reason"] == "length"
    assert told["gen_ai.usage.prompt_tokens"] == len(b"a secret") + 1
    assert told["gen_ai.usage.completion_tokens"] == told["gen_ai.request.max_tokens"] == 3
    assert 0 < told["gen_ai.latency.time_to_first_token"] <= told["gen_ai.latency.e2e"]
    assert b"secret" not in b"".join(span.SerializeToString() for _, span in spans)

"""The span of a request through the endpoint, on the SDK's in-memory exporter."""

import asyncio
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from workers.api import create_app
from workers.otel_requests import RequestTelemetry

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def ask_traced(backend: Any, path: str, **body: Any) -> ReadableSpan:
    """The span of one request to an endpoint that makes spans."""
    exporter, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    app = create_app(backend, RequestTelemetry(tracers, MeterProvider(), "tiny", "tiny", "127.0.0.1", 8000))

    async def send() -> None:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://kadence") as http:
            await http.post(path, json={"model": "tiny", **body}, headers=headers)

    asyncio.run(send())
    (span,) = exporter.get_finished_spans()
    return span


@pytest.mark.parametrize("stream", [False, True])
def test_the_endpoint_takes_the_trace_up_and_passes_it_on_to_the_worker(backend: Any, stream: bool) -> None:
    span = ask_traced(backend, "/v1/completions", prompt="CANARY", max_tokens=5, stream=stream)
    assert span.context is not None
    traceparent = f"00-{TRACE}-{span.context.span_id:016x}-01"
    assert [request.traceparent for request in backend.requests] == [traceparent]
    attributes = dict(span.attributes or {})
    assert attributes["gen_ai.usage.output_tokens"] == 5
    assert attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert attributes["kadence.cohort"] == "default"
    assert "CANARY" not in str(attributes)
    assert backend.reply[:5] not in str(attributes)


def test_a_request_that_is_refused_has_a_span_with_the_reason(backend: Any) -> None:
    span = ask_traced(backend, "/v1/chat/completions", messages="CANARY")
    attributes = dict(span.attributes or {})
    assert (attributes["error.type"], attributes["http.response.status_code"]) == ("invalid_type", 400)
    assert "CANARY" not in str(attributes)


def test_without_it_no_request_has_a_trace(complete: Any, backend: Any) -> None:
    complete()
    assert backend.requests[0].traceparent is None

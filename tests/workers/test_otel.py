"""OpenTelemetry on the SDK's in-memory exporter, and once over HTTP to a collector that takes whatever comes."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from starlette.datastructures import Headers

import workers.otel
from controlplane.settings import Settings, SettingsError
from controlplane.telemetry import RequestRecord
from workers.otel import check_otel, phase_spans, request_telemetry
from workers.otel_requests import RequestTelemetry
from workers.otel_worker import PhaseSpans
from workers.request_facts import RequestFacts
from workers.sequence import Chunk, SamplingParams

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
CHAT = "/v1/chat/completions"


class Seen:
    """What was exported."""

    def __init__(self) -> None:
        self._exporter, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers, self.meters = TracerProvider(), MeterProvider([self._reader])
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.telemetry = RequestTelemetry(self.tracers, self.meters, "tiny", "tiny", "127.0.0.1", 8000)
        self.phases = PhaseSpans(self.tracers)

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    @property
    def metrics(self) -> dict[str, list[Any]]:
        data = self._reader.get_metrics_data()
        found = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics] if data else []
        return {metric.name: list(metric.data.data_points) for metric in found}

    def request(self, status: int = 200, headers: dict[str, str] | None = None, **facts: Any) -> ReadableSpan:
        known = RequestFacts()
        begun = self.telemetry.begin(CHAT, Headers(headers or {}), 1000.0, known)
        assert begun is not None
        for name, value in facts.items():
            setattr(known, name, value)
        self.telemetry.end(begun, known, status)
        return self.spans[-1]


@pytest.fixture
def seen() -> Seen:
    return Seen()


def test_a_span_has_the_attributes_of_the_conventions(seen: Seen) -> None:
    sampling = SamplingParams(max_tokens=5, temperature=0.5, seed=7, stop=("CANARY",))
    span = seen.request(
        completion_id="chatcmpl-1", prompt_tokens=12, completion_tokens=5, finish_reasons=("stop",), cohort="code",
        sampling=sampling, choices=1, accepted_tokens=3, key="team",
    )  # fmt: skip
    assert (span.name, span.kind) == ("chat tiny", SpanKind.SERVER)
    assert span.attributes is not None
    expected = {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "kadence", "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny", "gen_ai.response.id": "chatcmpl-1", "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 5, "gen_ai.response.finish_reasons": ("stop",), "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.5, "gen_ai.request.seed": 7, "server.port": 8000, "kadence.cohort": "code",
        "kadence.accepted_tokens": 3, "kadence.key": "team", "http.response.status_code": 200,
    }  # fmt: skip
    assert expected.items() <= dict(span.attributes).items()
    assert "gen_ai.request.choice.count" not in span.attributes
    assert "CANARY" not in str(dict(span.attributes))
    assert span.start_time == 1000 * 10**9


def test_a_span_is_the_child_of_the_clients(seen: Seen) -> None:
    span = seen.request(headers={"traceparent": TRACEPARENT})
    assert span.parent is not None
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)


@pytest.mark.parametrize("broken", ["", "nonsense", f"ff-{TRACE}-{PARENT}-01", f"00-{'0' * 32}-{PARENT}-01"])
def test_a_traceparent_that_is_none_begins_a_trace(seen: Seen, broken: str) -> None:
    assert seen.request(headers={"traceparent": broken}).parent is None


def test_a_client_that_does_not_sample_is_not_traced(seen: Seen) -> None:
    facts = RequestFacts()
    begun = seen.telemetry.begin(CHAT, Headers({"traceparent": f"00-{TRACE}-{PARENT}-00"}), 1000.0, facts)
    assert begun is not None
    seen.telemetry.end(begun, facts, 200)
    assert seen.spans == ()
    assert facts.traceparent is not None
    assert facts.traceparent.endswith("-00")
    assert seen.metrics["gen_ai.server.request.duration"][0].count == 1


@pytest.mark.parametrize(
    ("status", "facts", "failed", "is_error"),
    [
        (200, {"finish_reasons": ("length",)}, None, False),
        (400, {"error": "invalid_value"}, "invalid_value", False),
        (503, {}, "503", True),
        (200, {"finish_reasons": ("error",)}, "error", True),
        (200, {"finish_reasons": ("unfinished",)}, "unfinished", True),
        (0, {}, "499", True),
    ],
)
def test_how_it_ended_is_in_span_and_metric(
    seen: Seen, status: int, facts: dict[str, Any], failed: str | None, is_error: bool
) -> None:
    span = seen.request(status, **facts)
    (point,) = seen.metrics["gen_ai.server.request.duration"]
    assert (span.attributes or {}).get("error.type") == failed
    assert point.attributes.get("error.type") == failed
    assert (span.status.status_code is StatusCode.ERROR) == is_error


def test_the_metrics_of_a_server_are_counted_in_the_buckets_of_the_conventions(seen: Seen) -> None:
    seen.request(ttft_s=0.05, tpot_s=0.02, prompt_tokens=12, completion_tokens=5)
    metrics = seen.metrics
    (ttft,) = metrics["gen_ai.server.time_to_first_token"]
    (tpot,) = metrics["gen_ai.server.time_per_output_token"]
    assert (ttft.sum, ttft.explicit_bounds[:3]) == (0.05, (0.001, 0.005, 0.01))
    assert (tpot.sum, tpot.explicit_bounds[:3]) == (0.02, (0.01, 0.025, 0.05))
    tokens = {p.attributes["gen_ai.token.type"]: p for p in metrics["gen_ai.client.token.usage"]}
    assert {kind: p.sum for kind, p in tokens.items()} == {"input": 12, "output": 5}
    assert tokens["input"].explicit_bounds[:3] == (1, 4, 16)
    assert metrics["gen_ai.server.request.duration"][0].explicit_bounds[-1] == 81.92


def test_what_was_not_measured_is_not_counted(seen: Seen) -> None:
    seen.request(429, error="rate_limit_exceeded")
    assert seen.metrics.keys() == {"gen_ai.server.request.duration"}


def test_other_paths_have_no_span(seen: Seen) -> None:
    assert seen.telemetry.begin("/metrics", Headers({}), 1000.0, RequestFacts()) is None


RECORD = RequestRecord(
    "chatcmpl-1", "worker-0", "tiny", "ngram@1", "code", None, CHAT, False, 1000.0, 1003.0, 12, 5, 2, 0, 6, 3, 12, 8,
    0, 4, 1.0, 0.5, "stop", 1,
)  # fmt: skip


def phases(seen: Seen) -> dict[str, tuple[float, float]]:
    return {span.name: (span.start_time / 1e9, span.end_time / 1e9) for span in seen.spans}


def test_queue_prefill_and_decode_follow_each_other_under_the_requests_span(seen: Seen) -> None:
    seen.phases.end(TRACEPARENT, Chunk("chatcmpl-1", (), "", finish_reason="stop", record=RECORD, queue_s=0.25))
    assert phases(seen) == {"queue": (1000, 1000.25), "prefill": (1000.25, 1001), "decode": (1001, 1003)}
    assert {f"{span.parent.span_id:016x}" for span in seen.spans if span.parent} == {PARENT}
    decode = dict(seen.spans[-1].attributes or {})
    assert decode["kadence.accepted_tokens"] == 3


@pytest.mark.parametrize(
    ("queue_s", "ttft_s", "expected"),
    [
        (None, None, {"queue": (1000, 1003)}),
        (0.25, None, {"queue": (1000, 1000.25), "prefill": (1000.25, 1003)}),
        (9.0, 0.1, {"queue": (1000, 1003), "prefill": (1003, 1003), "decode": (1003, 1003)}),  # a clock was set
    ],
)
def test_a_phase_that_was_not_reached_has_no_span(
    seen: Seen, queue_s: float | None, ttft_s: float | None, expected: Any
) -> None:
    record = replace(RECORD, ttft_s=ttft_s)
    seen.phases.end(TRACEPARENT, Chunk("chatcmpl-1", (), "", finish_reason="cancelled", record=record, queue_s=queue_s))
    assert phases(seen) == expected


def test_a_request_without_a_trace_has_no_phases(seen: Seen) -> None:
    seen.phases.end(None, Chunk("chatcmpl-1", (), "", finish_reason="stop", record=RECORD, queue_s=0.25))
    assert seen.spans == ()


def test_nothing_is_made_while_it_is_off() -> None:
    assert request_telemetry(Settings()) is None
    assert phase_spans(Settings()) is None


def test_without_the_exporter_serving_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers.otel, "EXPORTER", "opentelemetry.no_such_exporter.http")
    check_otel(Settings())
    with pytest.raises(SettingsError, match=r"kadence\[otel\]"):
        check_otel(Settings(otlp_endpoint="http://127.0.0.1:4318"))


@pytest.fixture
def collector() -> Iterator[tuple[str, dict[str, bytes]]]:
    """URL of a collector, and the last body that came to each path."""
    bodies: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies[self.path] = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", bodies
    server.shutdown()
    thread.join()
    server.server_close()


def test_spans_and_metrics_reach_a_collector(collector: tuple[str, dict[str, bytes]]) -> None:
    url, bodies = collector
    settings = Settings(otlp_endpoint=url + "/", model="tiny")
    telemetry = request_telemetry(settings)
    assert telemetry is not None
    facts = RequestFacts()
    begun = telemetry.begin(CHAT, Headers({"traceparent": TRACEPARENT}), 1000.0, facts)
    assert begun is not None
    telemetry.end(begun, facts, 200)
    telemetry.close()
    assert bodies.keys() == {"/v1/traces", "/v1/metrics"}
    (resource,) = ExportTraceServiceRequest.FromString(bodies["/v1/traces"]).resource_spans
    (span,) = resource.scope_spans[0].spans
    assert (span.trace_id.hex(), span.name) == (TRACE, "chat tiny")
    named = {a.key: a.value.string_value for a in resource.resource.attributes}
    assert (named["service.name"], named["kadence.component"]) == ("kadence", "endpoint")

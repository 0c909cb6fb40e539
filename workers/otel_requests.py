"""One span for each generating request, and the gen_ai metrics of a server, by OpenTelemetry's semantic conventions.

Names and bucket bounds: https://opentelemetry.io/docs/specs/semconv/gen-ai/ (gen-ai-spans, gen-ai-metrics), 1.40. No
attribute holds text of a prompt, of an answer, or of a stop string.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from workers.request_facts import RequestFacts

OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}
PROVIDER = "kadence"
DURATION_BOUNDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
TTFT_BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
TPOT_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
TOKEN_BOUNDS = tuple(4**i for i in range(14))
_SAMPLING = {
    "max_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "seed": "gen_ai.request.seed",
}
_propagator = TraceContextTextMapPropagator()


class RequestSpan:
    """A request that has begun: its span, and what its metrics are counted under."""

    def __init__(self, span: Span, common: dict[str, Any], received_at: float) -> None:
        self.span, self.common, self.received_at = span, common, received_at


class RequestTelemetry:
    """Of one endpoint. model: as clients ask for it; answered_by: as the ledger calls it."""

    def __init__(
        self, tracers: TracerProvider, meters: MeterProvider, model: str, answered_by: str, host: str, port: int
    ) -> None:
        self._providers: tuple[Any, Any] = tracers, meters
        self._tracer = tracers.get_tracer("kadence")
        meter = meters.get_meter("kadence")
        self._duration = meter.create_histogram(
            "gen_ai.server.request.duration",
            "s",
            "Request duration.",
            explicit_bucket_boundaries_advisory=DURATION_BOUNDS,
        )
        self._ttft = meter.create_histogram(
            "gen_ai.server.time_to_first_token", "s", "Time to the first token.",
            explicit_bucket_boundaries_advisory=TTFT_BOUNDS,
        )  # fmt: skip
        self._tpot = meter.create_histogram(
            "gen_ai.server.time_per_output_token", "s", "Time per output token after the first.",
            explicit_bucket_boundaries_advisory=TPOT_BOUNDS,
        )  # fmt: skip
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", "Input and output tokens used.",
            explicit_bucket_boundaries_advisory=TOKEN_BOUNDS,
        )  # fmt: skip
        self._common: dict[str, Any] = {
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": model,
            "gen_ai.response.model": answered_by,
            "server.address": host,
            "server.port": port,
        }
        self._model = model

    def begin(
        self, path: str, headers: Mapping[str, str], received_at: float, facts: RequestFacts
    ) -> RequestSpan | None:
        """The span of a request received at `received_at` (unix seconds), child of its traceparent where it has one;
        None for a path that generates nothing. Writes facts.traceparent.
        """
        operation = OPERATIONS.get(path)
        if operation is None:
            return None
        common: dict[str, Any] = {**self._common, "gen_ai.operation.name": operation}
        span = self._tracer.start_span(
            f"{operation} {self._model}",
            _propagator.extract(headers),
            SpanKind.SERVER,
            common,
            start_time=int(received_at * 1e9),
        )
        carrier: dict[str, str] = {}
        _propagator.inject(carrier, set_span_in_context(span))
        facts.traceparent = carrier.get("traceparent")
        return RequestSpan(span, common, received_at)

    def end(self, begun: RequestSpan, facts: RequestFacts, status: int) -> None:
        """End the span and count the request; status: the HTTP status, 0 where none was sent."""
        failed = self._error_of(facts, status)
        counted = begun.common if failed is None else {**begun.common, "error.type": failed}
        ended_at = time.time()
        span = begun.span
        if span.is_recording():
            span.set_attributes(_attributes(facts, status, failed))
            if failed is not None and (status >= 500 or status < 400):
                span.set_status(Status(StatusCode.ERROR))
        span.end(int(ended_at * 1e9))
        self._duration.record(max(ended_at - begun.received_at, 0.0), counted)
        if facts.ttft_s is not None:
            self._ttft.record(facts.ttft_s, begun.common)
        if facts.tpot_s is not None:
            self._tpot.record(facts.tpot_s, begun.common)
        for kind, tokens in (("input", facts.prompt_tokens), ("output", facts.completion_tokens)):
            if tokens:
                self._tokens.record(tokens, {**begun.common, "gen_ai.token.type": kind})

    def close(self) -> None:
        """Send what has not been sent; blocks while the collector takes it."""
        for provider in self._providers:
            provider.shutdown()

    @staticmethod
    def _error_of(facts: RequestFacts, status: int) -> str | None:
        if status >= 400 or not status:
            return facts.error or str(status or 499)
        if facts.finish_reasons and "error" in facts.finish_reasons:
            return "error"
        if facts.finish_reasons and "unfinished" in facts.finish_reasons:
            return "unfinished"
        return None


def _attributes(facts: RequestFacts, status: int, failed: str | None) -> dict[str, Any]:
    """What the span says in the end; attributes without a value are left out."""
    found = {
        "http.response.status_code": status or None,
        "error.type": failed,
        "gen_ai.response.id": facts.completion_id,
        "gen_ai.response.finish_reasons": facts.finish_reasons,
        "gen_ai.request.choice.count": facts.choices if facts.choices != 1 else None,
        "gen_ai.usage.input_tokens": facts.prompt_tokens,
        "gen_ai.usage.output_tokens": facts.completion_tokens,
        "kadence.cohort": facts.cohort,
        "kadence.tenant": facts.tenant,
        "kadence.key": facts.key,
        "kadence.stream": facts.stream,
        "kadence.draft_tokens": facts.draft_tokens,
        "kadence.accepted_tokens": facts.accepted_tokens,
        "kadence.time_to_first_token": facts.ttft_s,
    }
    if facts.sampling is not None:
        found |= {name: getattr(facts.sampling, field) for field, name in _SAMPLING.items()}
    return {name: value for name, value in found.items() if value is not None}

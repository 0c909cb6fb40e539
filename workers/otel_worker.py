"""The spans of a worker under a request's span: queue, prefill and decode, made once the request has ended.

Times are the engine's own, so that a span costs the engine's thread nothing.
"""

from __future__ import annotations

from typing import Any

from opentelemetry.trace import TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from workers.sequence import Chunk

_propagator = TraceContextTextMapPropagator()


class PhaseSpans:
    """Of one worker."""

    def __init__(self, tracers: TracerProvider) -> None:
        self._tracer = tracers.get_tracer("kadence")

    def end(self, traceparent: str | None, last: Chunk) -> None:
        """Spans of the request whose last chunk this is; nothing where it has no trace."""
        record = last.record
        if traceparent is None or record is None:
            return
        parent = _propagator.extract({"traceparent": traceparent})
        began, ended = record.started_at, max(record.finished_at, record.started_at)
        placed = None if last.queue_s is None else min(began + last.queue_s, ended)
        first = None if record.ttft_s is None or placed is None else min(max(began + record.ttft_s, placed), ended)
        common: dict[str, Any] = {"kadence.request_id": record.request_id, "kadence.worker": record.worker}
        self._span("queue", parent, began, ended if placed is None else placed, common)
        if placed is not None:
            computed = {"kadence.prompt_tokens": record.prompt_tokens, "kadence.positions": record.prefill_positions}
            self._span("prefill", parent, placed, ended if first is None else first, common | computed)
        if first is not None:
            decoded = {
                "kadence.completion_tokens": record.completion_tokens,
                "kadence.draft_tokens": record.draft_tokens,
                "kadence.accepted_tokens": record.accepted_tokens,
                "kadence.speculative_steps": record.spec_steps,
                "kadence.plain_steps": record.plain_steps,
                "kadence.drafter": record.drafter,
                "kadence.max_k": record.max_k,
                "kadence.finish_reason": record.finish_reason,
            }
            self._span("decode", parent, first, ended, common | decoded)

    def _span(self, name: str, parent: Any, began: float, ended: float, attributes: dict[str, Any]) -> None:
        span = self._tracer.start_span(name, parent, attributes=attributes, start_time=int(began * 1e9))
        span.end(int(ended * 1e9))

"""What a worker says of a request that has ended: a log line, and spans where they are asked for."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import structlog

from workers.sequence import Chunk, EngineRequest

if TYPE_CHECKING:
    from workers.otel_worker import PhaseSpans

log = structlog.wrap_logger(logging.getLogger(__name__), wrapper_class=structlog.stdlib.BoundLogger)
"""Silent until logs are configured: no line for every request on the output of a test or a benchmark."""


class RequestEnds:
    """One per worker; spans: None makes none."""

    def __init__(self, spans: PhaseSpans | None = None) -> None:
        self._spans = spans
        self._traceparents: dict[str, str] = {}

    def begin(self, request: EngineRequest) -> None:
        if self._spans is not None and request.traceparent is not None:
            self._traceparents[request.request_id] = request.traceparent

    def take(self, chunk: Chunk) -> None:
        """Any chunk; only the last one of a request is of interest."""
        if chunk.finish_reason is None:
            return
        traceparent = self._traceparents.pop(chunk.request_id, None)
        if self._spans is not None:
            self._spans.end(traceparent, chunk)
        record = chunk.record
        if record is None:
            log.warning("request not taken", completion_id=chunk.request_id, reason=chunk.error)
            return
        log.info(
            "request ended",
            completion_id=chunk.request_id,
            worker=record.worker,
            cohort=record.cohort,
            tenant=record.tenant,
            finish_reason=record.finish_reason,
            reason=chunk.error,
            prompt_tokens=record.prompt_tokens,
            completion_tokens=record.completion_tokens,
            draft_tokens=record.draft_tokens,
            accepted_tokens=record.accepted_tokens,
            max_k=record.max_k,
            queue_ms=_ms(chunk.queue_s),
            ttft_ms=_ms(record.ttft_s),
            duration_ms=_ms(record.finished_at - record.started_at),
        )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)

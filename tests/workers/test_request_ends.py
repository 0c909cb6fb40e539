from typing import Any

import pytest
from structlog.testing import capture_logs

from controlplane.telemetry import RequestRecord
from workers.request_ends import RequestEnds
from workers.sequence import Chunk, EngineRequest, SamplingParams

RECORD = RequestRecord(
    "chatcmpl-1", "worker-0", "tiny", "ngram@1", "code", "acme", "/v1/completions", False, 1000.0, 1003.0, 12, 5, 2, 0,
    6, 3, 12, 8, 0, 4, 1.0, 0.5, "stop", 1,
)  # fmt: skip
LAST = Chunk("chatcmpl-1", (7,), "CANARY", finish_reason="stop", record=RECORD, queue_s=0.25)


class Spans:
    """Takes down what spans are asked for."""

    def __init__(self) -> None:
        self.ended: list[tuple[str | None, str]] = []

    def end(self, traceparent: str | None, last: Chunk) -> None:
        self.ended.append((traceparent, last.request_id))


def request(traceparent: str | None) -> EngineRequest:
    return EngineRequest("chatcmpl-1", (1, 2), SamplingParams(max_tokens=5), "code", traceparent=traceparent)


def test_the_line_of_a_request_has_its_figures_and_no_text() -> None:
    with capture_logs() as lines:
        RequestEnds().take(LAST)
    (line,) = lines
    expected = {
        "completion_id": "chatcmpl-1", "cohort": "code", "tenant": "acme", "finish_reason": "stop", "queue_ms": 250.0,
        "ttft_ms": 1000.0, "duration_ms": 3000.0, "prompt_tokens": 12, "completion_tokens": 5, "accepted_tokens": 3,
    }  # fmt: skip
    assert expected.items() <= line.items()
    assert "CANARY" not in str(line)


def test_only_the_last_chunk_has_a_line() -> None:
    with capture_logs() as lines:
        RequestEnds().take(Chunk("chatcmpl-1", (7,), "x"))
    assert lines == []


def test_a_request_that_was_not_taken_has_a_warning_with_the_reason() -> None:
    with capture_logs() as lines:
        RequestEnds().take(Chunk("chatcmpl-1", (), "", finish_reason="error", error="no room"))
    assert [(line["log_level"], line["reason"]) for line in lines] == [("warning", "no room")]


@pytest.mark.parametrize("traceparent", [None, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"])
def test_spans_are_made_under_the_requests_own_and_forgotten_with_it(traceparent: str | None) -> None:
    spans: Any = Spans()
    ends = RequestEnds(spans)
    ends.begin(request(traceparent))
    ends.take(LAST)
    ends.take(LAST)
    assert spans.ended == [(traceparent, "chatcmpl-1"), (None, "chatcmpl-1")]

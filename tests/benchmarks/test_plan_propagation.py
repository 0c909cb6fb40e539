"""What the plan propagation benchmark makes of changes, streams and windows."""

from __future__ import annotations

import pytest

from benchmarks.plan_propagation_figures import (
    Change,
    Stream,
    WindowSeen,
    gaps,
    on_record_s,
    result_rows,
    stream_problems,
)

CHANGE = Change("policy", sent=100.0, answered=100.2, version=7)


def window(worker: str, ended_at: float, version: int) -> WindowSeen:
    return WindowSeen(worker, ended_at - 1.0, ended_at, version)


def stream(seed: int = 1, **changes: object) -> Stream:
    values = {"at": (99.0, 99.5, 100.1), "text": "a b", "finish_reason": "length", "tokens": 8}
    return Stream(seed, **{**values, **changes})  # type: ignore[arg-type]


def test_a_plan_is_on_record_when_the_last_replica_has_it() -> None:
    windows = [window("a", 100.4, 7), window("b", 100.3, 6), window("b", 101.3, 7), window("a", 101.4, 7)]
    assert on_record_s(CHANGE, windows, 2) == pytest.approx(1.3)


def test_a_replica_without_the_plan_is_an_error() -> None:
    with pytest.raises(ValueError, match="reached 1 of 2 replicas"):
        on_record_s(CHANGE, [window("a", 100.4, 7), window("b", 101.3, 6)], 2)


def test_whole_streams_with_equal_text_are_no_problem() -> None:
    assert stream_problems([stream(), stream(), stream(2, text="c")], max_tokens=8) == []


@pytest.mark.parametrize(
    ("broken", "word"),
    [({"error": "HTTP 503"}, "HTTP 503"), ({"tokens": 5}, "ended after 5"), ({"finish_reason": None}, "ended after"),
     ({"text": "other"}, "other text")],
)  # fmt: skip
def test_a_lost_or_restarted_stream_is_told(broken: dict[str, object], word: str) -> None:
    assert word in stream_problems([stream(), stream(**broken)], max_tokens=8)[0]


def test_a_gap_that_reaches_into_the_time_counts() -> None:
    assert gaps([stream()], 99.7, 101.0) == pytest.approx([0.6])


def test_rows_tell_gaps_before_a_change_from_those_around_it() -> None:
    windows = [window("a", 100.4, 7)]
    streams = [stream(at=(98.0, 98.1, 98.2)), stream(at=(100.5, 100.8))]
    row = result_rows([CHANGE], streams, windows, 1)[-1]
    assert (row["change"], row["gap_before_ms_max"], row["gap_around_ms_max"]) == ("all", 100.0, 300.0)
    assert (row["acknowledged_s_max"], row["on_record_s_max"]) == (0.2, 0.4)

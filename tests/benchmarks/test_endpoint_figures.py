"""What the endpoint's benchmarks call wrong, and their figures of pairs."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.endpoint_load import MOST_GROWTH_BYTES, MOST_NEW_HANDLES, Seen, percentile, problems
from benchmarks.endpoint_overhead import Turn, between, row_of
from benchmarks.endpoint_server import Held

BEFORE = Held(10**9, 100)
NOTHING_LEFT = {"kadence_running_sequences": 0.0}


def seen(**outcomes: int) -> Seen:
    return Seen(Counter(outcomes), [0.1] * 98 + [2.0] * 2)


def test_served_and_refused_requests_are_no_problem() -> None:
    assert problems(seen(ok=5, **{"429": 90}), NOTHING_LEFT, BEFORE, BEFORE, 60.0) == []


@pytest.mark.parametrize(
    ("outcomes", "left", "after", "deadline_s", "word"),
    [
        ({"ok": 5, "cut off": 1}, {}, BEFORE, 60.0, "1 request(s) ended with: cut off"),
        ({"429": 5}, {}, BEFORE, 60.0, "no request was served"),
        ({"ok": 5}, {"kadence_kv_used_tokens": 7.0}, BEFORE, 60.0, "kadence_kv_used_tokens is 7 at rest"),
        ({"ok": 5}, {}, Held(10**9 + MOST_GROWTH_BYTES + 1, 100), 60.0, "memory grew by 128 MiB"),
        ({"ok": 5}, {}, Held(10**9, 101 + MOST_NEW_HANDLES), 60.0, "17 more file handles"),
        ({"ok": 5}, {}, BEFORE, 1.0, "p99 of the time to first token is 2.0 s"),
    ],
)
def test_each_thing_that_must_not_be_is_named(outcomes, left, after, deadline_s, word) -> None:
    (found,) = problems(seen(**outcomes), NOTHING_LEFT | left, BEFORE, after, deadline_s)
    assert word in found


def test_a_percentile_is_the_nearest_rank() -> None:
    assert [percentile([3.0, 1.0, 2.0], share) for share in (0.0, 0.5, 0.99)] == [1.0, 2.0, 3.0]


def test_overheads_are_those_of_pairs() -> None:
    pairs = [
        (Turn((0.1,), (0.01, 0.012), 1.0, ("a",)), Turn((0.105,), (0.011, 0.09), 1.25, ("a",))),
        (Turn((0.2,), (0.05,), 2.0, ("a",)), Turn((0.203,), (0.015,), 2.0, ("a",))),
    ]
    row = row_of(1, 10, pairs)
    assert (row["tokens_per_s_lost_min"], row["tokens_per_s_lost_max"]) == pytest.approx((0.0, 0.2))
    assert row["ttft_added_ms_median"] == pytest.approx(4.0)
    assert (row["between_tokens_ms_in_process"], row["between_tokens_ms_endpoint"]) == pytest.approx((12.0, 15.0))
    assert row["between_tokens_lost"] == pytest.approx(0.2)


def test_times_between_tokens_are_those_within_a_stream() -> None:
    assert between([(1.0, 1.5, 2.5), (10.0, 10.25)]) == (0.5, 1.0, 0.25)

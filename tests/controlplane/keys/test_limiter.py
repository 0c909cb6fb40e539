"""Limits a minute and at once: exact, independent of how often they are looked at, and free for whom they refuse."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.keys.bucket import MINUTE_NS, full_bucket
from controlplane.keys.limiter import KeyLimiter, LimitRefusal, Ticket
from controlplane.keys.ring import KeyLimits

S = 10**9
steps = st.lists(st.tuples(st.integers(0, 90 * S), st.integers(1, 120)), min_size=1, max_size=30)
few = settings(deadline=None, max_examples=60)


@few
@given(steps, st.integers(1, 1000))
def test_looking_often_changes_nothing(looks: list[tuple[int, int]], limit: int) -> None:
    now = sum(dt for dt, _ in looks)
    empty = full_bucket(limit, 0).less(limit)
    looked, at = empty, 0
    for dt, _ in looks:
        at += dt
        looked = looked.at(at)
    assert looked == empty.at(now)
    assert Fraction(looked.level, MINUTE_NS) == min(Fraction(now * limit, MINUTE_NS), limit)


@few
@given(steps, st.integers(1, 100))
def test_no_stretch_of_time_has_more_than_its_limit(asked: list[tuple[int, int]], limit: int) -> None:
    """And nothing that would have fitted is refused: the wait that is told is the shortest one."""
    limiter, limits = KeyLimiter(), KeyLimits(tokens_per_minute=limit)
    taken, now = [], 0
    for dt, tokens in asked:
        now += dt
        said = limiter.admit("a", limits, tokens, now)
        if isinstance(said, Ticket):
            taken.append((now, tokens))
        elif said.retry_after_ns is None:
            assert tokens > limit
        else:
            wait = said.retry_after_ns
            assert isinstance(limiter.admit("a", limits, tokens, now + wait - 1), LimitRefusal)
            now += wait
            assert isinstance(limiter.admit("a", limits, tokens, now), Ticket)
            taken.append((now, tokens))
    for i, (start, _) in enumerate(taken):
        for end, _ in taken[i:]:
            used = sum(tokens for at, tokens in taken if start <= at <= end)
            assert used <= limit + Fraction((end - start) * limit, MINUTE_NS)


@few
@given(st.lists(st.tuples(st.integers(0, 30 * S), st.integers(1, 50), st.integers(0, 50)), min_size=1, max_size=25))
def test_what_was_used_stays_within_the_limit_where_reservations_are_corrected(
    asked: list[tuple[int, int, int]],
) -> None:
    limiter, limits, now, used = KeyLimiter(), KeyLimits(tokens_per_minute=60), 0, 0
    for dt, tokens, of_them in asked:
        now += dt
        ticket = limiter.admit("a", limits, tokens, now)
        if isinstance(ticket, Ticket):
            limiter.settle(ticket, min(of_them, tokens), now)
            used += min(of_them, tokens)
    assert used <= 60 + Fraction(now * 60, MINUTE_NS)
    assert limiter.running("a") == 0


def test_a_key_begins_with_a_burst_of_one_minute_and_then_its_rate() -> None:
    limiter, limits = KeyLimiter(), KeyLimits(requests_per_minute=6)
    burst = [limiter.admit("a", limits, 1, 0) for _ in range(7)]
    assert [isinstance(each, Ticket) for each in burst] == [True] * 6 + [False]
    assert burst[-1] == LimitRefusal("requests", 6, 10 * S)


def test_a_refused_request_takes_nothing_from_any_limit() -> None:
    limiter, limits = KeyLimiter(), KeyLimits(10, 100, 2)
    limiter.admit("a", limits, 60, 0)
    before = limiter.standings("a", limits, 0)
    assert isinstance(limiter.admit("a", limits, 60, 0), LimitRefusal)
    assert limiter.standings("a", limits, 0) == before
    assert limiter.running("a") == 1


def test_what_was_reserved_and_not_used_is_given_back() -> None:
    limiter, limits = KeyLimiter(), KeyLimits(tokens_per_minute=100)
    ticket = limiter.admit("a", limits, 90, 0)
    assert isinstance(ticket, Ticket)
    limiter.settle(ticket, 20, 0)
    assert limiter.standings("a", limits, 0)["tokens"].remaining == 80


def test_more_than_was_reserved_is_owed() -> None:
    limiter, limits = KeyLimiter(), KeyLimits(tokens_per_minute=60)
    ticket = limiter.admit("a", limits, 60, 0)
    assert isinstance(ticket, Ticket)
    limiter.settle(ticket, 70, 0)
    assert limiter.standings("a", limits, 0)["tokens"] == (60, 0, 70 * S)
    assert limiter.admit("a", limits, 1, 0) == LimitRefusal("tokens", 60, 11 * S)


def test_a_request_of_more_than_a_minutes_tokens_never_fits() -> None:
    said = KeyLimiter().admit("a", KeyLimits(tokens_per_minute=60), 61, 0)
    assert said == LimitRefusal("tokens", 60, None)


def test_requests_at_once_are_those_that_have_not_ended() -> None:
    limiter, limits = KeyLimiter(), KeyLimits(max_concurrent=1)
    ticket = limiter.admit("a", limits, 5, 0)
    assert isinstance(ticket, Ticket)
    assert limiter.admit("a", limits, 5, 0) == LimitRefusal("concurrent", 1, S)
    limiter.settle(ticket, 5, 0)
    assert isinstance(limiter.admit("a", limits, 5, 0), Ticket)


def test_one_key_does_not_use_up_anothers() -> None:
    limiter, limits = KeyLimiter(), KeyLimits(1, 10, 1)
    assert [isinstance(limiter.admit(key, limits, 10, 0), Ticket) for key in ("a", "b", "a")] == [True, True, False]


def test_other_limits_hold_from_the_next_request_with_what_is_under_way() -> None:
    limiter = KeyLimiter()
    ticket = limiter.admit("a", KeyLimits(1, None, 2), 5, 0)
    assert isinstance(ticket, Ticket)
    assert limiter.admit("a", KeyLimits(9, None, 1), 5, 0) == LimitRefusal("concurrent", 1, S)
    limiter.settle(ticket, 5, 0)
    assert isinstance(limiter.admit("a", KeyLimits(9, None, 1), 5, 0), Ticket)


def test_an_answer_to_a_request_from_before_other_limits_puts_none_in_force_again() -> None:
    """Its headers look at the limits it began with; each look at them would fill the buckets anew."""
    limiter, before, after = KeyLimiter(), KeyLimits(tokens_per_minute=100), KeyLimits(tokens_per_minute=10)
    limiter.admit("a", before, 50, 0)
    limiter.admit("a", after, 10, 0)
    assert limiter.standings("a", before, 0)["tokens"].limit == 100
    assert limiter.admit("a", after, 10, 0) == LimitRefusal("tokens", 10, 60 * S)


def test_looking_at_a_key_that_nobody_used_shows_full_limits() -> None:
    assert KeyLimiter().standings("a", KeyLimits(5, 10), 0) == {"requests": (5, 5, 0), "tokens": (10, 10, 0)}


def test_a_clock_that_goes_back_gives_nothing_away() -> None:
    bucket = full_bucket(60, 100 * S).less(60).at(110 * S)
    assert bucket.at(50 * S) == bucket
    assert bucket.units == 10


def test_a_limit_under_one_is_no_limit_anybody_can_keep() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        full_bucket(0, 0)

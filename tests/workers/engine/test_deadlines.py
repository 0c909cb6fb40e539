"""Requests end when their time is up: in the queue, in all, and where they get no further."""

from __future__ import annotations

import pytest

from workers.deadlines import DEADLINE, QUEUE_WAIT, STALLED, Deadlines, TimeLimits


@pytest.fixture
def elapsed(clock):
    """Another clock than that of the wall, in step with it unless a test says otherwise."""
    return clock


def limited(make_engine, clock, elapsed, slots=1, **limits):
    engine = make_engine(0, "none", slots=slots, eos=(), clock=clock)
    engine.deadlines = Deadlines(TimeLimits(**limits), elapsed)
    return engine


def until(ask, deadline_at, name="r", **options):
    from dataclasses import replace

    return replace(ask([3, 4], name, max_tokens=200, **options), deadline_at=deadline_at)


def test_a_request_past_its_deadline_ends_before_the_next_step(make_engine, ask, clock) -> None:
    engine = limited(make_engine, clock, clock)
    engine.submit(until(ask, clock() + 5))
    engine.step()
    assert engine.end_overdue() == []
    clock.now += 5
    (chunk,) = engine.end_overdue()
    assert (chunk.finish_reason, chunk.error, chunk.record.completion_tokens) == ("error", DEADLINE, 1)
    assert not engine.has_work
    assert engine.tables.used == 0


def test_a_deadline_that_passed_before_the_request_came_costs_nothing(make_engine, ask, clock) -> None:
    engine = limited(make_engine, clock, clock)
    engine.submit(until(ask, clock() - 1))
    (chunk,) = engine.end_overdue()
    assert (chunk.error, chunk.record.prefill_positions) == (DEADLINE, 0)


def test_a_request_without_a_deadline_may_take_any_time(make_engine, ask, clock) -> None:
    engine = limited(make_engine, clock, clock)
    engine.submit(ask([3], max_tokens=200))
    engine.step()
    clock.now += 1e9
    assert engine.end_overdue() == []


def test_one_that_waits_too_long_for_a_slot_is_told_so_and_the_one_with_the_slot_goes_on(
    make_engine, ask, clock
) -> None:
    engine = limited(make_engine, clock, clock, queue_wait_s=3.0)
    for name in "ab":
        engine.submit(ask([3], name, max_tokens=200))
    engine.step()
    clock.now += 3
    (chunk,) = engine.end_overdue()
    assert (chunk.request_id, chunk.error) == ("b", QUEUE_WAIT)
    assert [chunk.request_id for chunk in engine.step()] == ["a"]


def test_a_machine_whose_time_is_corrected_loses_no_request(make_engine, ask, clock) -> None:
    stopwatch = type(clock)()
    engine = limited(make_engine, clock, stopwatch, queue_wait_s=9.0, stall_s=9.0)
    engine.submit(until(ask, clock() + 60))
    engine.step()
    clock.now += 3600
    assert engine.end_overdue() == []


def test_row_34_a_sequence_is_wedged_for_hours_while_the_others_go_on(make_engine, ask, clock, monkeypatch) -> None:
    engine = limited(make_engine, clock, clock, slots=2, stall_s=10.0)
    for name in "ab":
        engine.submit(ask([3, 4], name, max_tokens=200))
    engine.step()
    schedule = engine.scheduler.schedule

    def without_b():
        """As a scheduler with a bug would: it never takes b."""
        running = engine.scheduler.running
        engine.scheduler.running = [s for s in running if s.request.request_id != "b"]
        batch = schedule()
        engine.scheduler.running = running
        return batch

    monkeypatch.setattr(type(engine.scheduler), "schedule", lambda scheduler: without_b())
    for _ in range(3):
        clock.now += 4
        ended = engine.end_overdue()
        engine.step()
    assert [(chunk.request_id, chunk.error) for chunk in ended] == [("b", STALLED)]
    assert engine.overdue == {STALLED: 1}
    assert [chunk.request_id for chunk in engine.step()] == ["a"]


def test_a_prompt_that_is_being_read_gets_further_with_each_chunk(make_engine, ask, clock) -> None:
    engine = limited(make_engine, clock, clock, stall_s=10.0)
    engine.submit(ask([3 + i % 40 for i in range(200)], max_tokens=50))
    for _ in range(4):
        assert engine.end_overdue() == []
        engine.step()
        clock.now += 9
    assert engine.overdue == {}

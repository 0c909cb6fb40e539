"""The engine on its own thread: requests in, chunks and reports out, and nothing that ends it."""

from __future__ import annotations

import itertools
import queue
import threading
import time

import pytest
import structlog

from workers.engine_loop import FAILED_STEPS_MOST, EngineLoop

LONG_S = 20.0
"""Seconds that a busy machine may take for what takes milliseconds."""


class Loop:
    """An EngineLoop on a real thread, and all that came out of it."""

    def __init__(self, engine, tick_s):
        self.engine = engine
        self.chunks = queue.SimpleQueue()
        self.reports = queue.SimpleQueue()
        self.loop = EngineLoop(
            engine, lambda given: [self.chunks.put(chunk) for chunk in given], self.reports.put, tick_s
        )

    def last_chunk(self, request_id, timeout=LONG_S):
        """Of a request; chunks of others are dropped."""
        until = time.monotonic() + timeout
        while True:
            chunk = self.chunks.get(timeout=until - time.monotonic())
            if chunk.request_id == request_id and chunk.finish_reason is not None:
                return chunk


@pytest.fixture
def start():
    """A running loop around an engine; stopped after the test."""
    running = []

    def make(engine, tick_s=0.05):
        running.append(Loop(engine, tick_s))
        running[-1].loop.start()
        return running[-1]

    yield make
    for loop in running:
        loop.loop.stop()


@pytest.fixture
def endless(make_engine):
    """An engine whose requests go on for 200 tokens."""
    return make_engine(0, "none", eos=(), clock=time.time)


def test_a_request_comes_out_as_chunks(start, make_engine, ask, drain) -> None:
    expected = make_engine(4)
    expected.submit(ask([3, 4, 5]))
    loop = start(make_engine(4))
    loop.loop.submit(ask([3, 4, 5]))
    token_ids = []
    while True:
        chunk = loop.chunks.get(timeout=LONG_S)
        token_ids += chunk.token_ids
        if chunk.finish_reason:
            break
    assert token_ids == drain(expected)["r"].token_ids
    assert chunk.record.completion_tokens == len(token_ids)


def test_a_cancelled_request_ends_within_a_step(start, endless, ask) -> None:
    loop = start(endless)
    loop.loop.submit(ask([3], max_tokens=200))
    loop.chunks.get(timeout=LONG_S)
    taken = []
    step = endless.step

    def slow_step():
        taken.append(1)
        time.sleep(0.02)
        return step()

    endless.step = slow_step
    loop.loop.cancel("r")
    already = len(taken)
    assert loop.last_chunk("r").finish_reason == "cancelled"
    assert len(taken) <= already + 2
    assert endless.tables.used == 0


def test_one_that_waits_takes_the_place_of_a_cancelled_one(start, make_engine, ask) -> None:
    loop = start(make_engine(0, "none", slots=1, eos=()))
    loop.loop.submit(ask([3], "a", max_tokens=250))
    loop.loop.submit(ask([4], "b", max_tokens=2))
    loop.loop.cancel("a")
    assert loop.last_chunk("b").finish_reason == "length"


def test_a_cancellation_of_a_request_that_ended_is_harmless(start, make_engine, ask) -> None:
    loop = start(make_engine())
    loop.loop.submit(ask([3], "a", max_tokens=1))
    loop.last_chunk("a")
    loop.loop.cancel("a")
    loop.loop.submit(ask([3], "b", max_tokens=1))
    assert loop.last_chunk("b").error is None


@pytest.fixture
def break_steps(monkeypatch):
    """Makes so many steps of an engine raise, each after its forward."""

    def make(engine, times):
        left = [times]
        score = engine.target.score

        def broken(batch, proposal):
            scored = score(batch, proposal)
            if left[0]:
                left[0] -= 1
                raise RuntimeError("the device fell over")
            return scored

        monkeypatch.setattr(engine.target, "score", broken)

    return make


def test_a_step_that_raises_ends_its_requests_and_the_next_one_works(
    start, make_engine, ask, drain, break_steps
) -> None:
    expected = make_engine(4, "close")
    expected.submit(ask([5, 6, 7]))
    engine = make_engine(4, "close")
    break_steps(engine, 1)
    with structlog.testing.capture_logs() as logs:
        loop = start(engine)
        for name in ("a", "b"):
            loop.loop.submit(ask([3, 4], name))
        ended = [loop.last_chunk("a"), loop.last_chunk("b")]
    assert [c.finish_reason for c in ended] == ["error", "error"]
    assert "the worker failed" in ended[0].error
    assert [log["event"] for log in logs] == ["engine step failed"]
    assert (engine.tables.used, engine.proposer._states) == (0, {})
    loop.loop.submit(ask([5, 6, 7], "c"))
    chunk = loop.last_chunk("c")
    assert chunk.record.completion_tokens == len(drain(expected)["r"].token_ids)
    assert loop.loop.is_healthy


def test_an_engine_whose_every_step_fails_is_not_healthy(start, make_engine, ask, break_steps) -> None:
    engine = make_engine()
    break_steps(engine, 100)
    with structlog.testing.capture_logs():
        loop = start(engine)
        for i in range(FAILED_STEPS_MOST):
            assert loop.loop.is_healthy
            loop.loop.submit(ask([3], f"{i}"))
            loop.last_chunk(f"{i}")
    assert not loop.loop.is_healthy


def test_a_bad_request_gets_an_error_and_harms_no_other(start, make_engine, ask) -> None:
    loop = start(make_engine(0, "none", eos=()))
    loop.loop.submit(ask([3], "good", max_tokens=5))
    loop.loop.submit(ask([3] * 300, "bad"))
    chunk = loop.last_chunk("bad")
    assert (chunk.finish_reason, chunk.record) == ("error", None)
    assert "this model takes 1 to 255" in chunk.error
    loop.loop.submit(ask([3], "good again", max_tokens=5))
    assert loop.last_chunk("good again").error is None


def test_windows_close_while_idle(start, make_engine) -> None:
    loop = start(make_engine(clock=time.time), tick_s=0.02)
    windows = [loop.reports.get(timeout=LONG_S).window for _ in range(3)]
    assert [w.id.sequence for w in windows] == [1, 2, 3]
    assert all(w.busy_s == 0.0 and w.cohorts == () for w in windows)


def test_windows_close_while_busy(start, endless, ask) -> None:
    loop = start(endless, tick_s=0.02)
    loop.loop.submit(ask([3], max_tokens=250))
    windows = []
    while not any(w.running for w in windows[1:-1]):
        windows.append(loop.reports.get(timeout=LONG_S).window)
    assert all(a.ended_at == b.started_at for a, b in itertools.pairwise(windows))


def test_a_record_is_reported_once_with_the_window_it_ended_in(start, make_engine, ask) -> None:
    loop = start(make_engine(0, "none", eos=(), clock=time.time), tick_s=0.02)
    for i in range(5):
        loop.loop.submit(ask([3, 4], f"{i}", max_tokens=3))
    for i in range(5):
        loop.last_chunk(f"{i}")
    loop.loop.stop()
    reports = []
    while not loop.reports.empty():
        reports.append(loop.reports.get())
    assert sorted(r.request_id for report in reports for r in report.requests) == [f"{i}" for i in range(5)]
    for report in reports:
        finished = sum(c.requests_finished for c in report.window.cohorts)
        assert len(report.requests) == finished


def test_stopping_ends_requests_and_sends_the_last_report(start, endless, ask) -> None:
    loop = start(endless, tick_s=1000.0)
    loop.loop.submit(ask([3], max_tokens=250))
    loop.chunks.get(timeout=LONG_S)
    loop.loop.stop()
    assert not loop.loop.is_healthy
    assert "shutting down" in loop.last_chunk("r").error
    report = loop.reports.get(timeout=LONG_S)
    assert [r.finish_reason for r in report.requests] == ["error"]


def test_requests_may_come_from_many_threads(start, make_engine, ask) -> None:
    loop = start(make_engine(2, slots=3))

    def submit(name):
        for i in range(4):
            loop.loop.submit(ask([3, 4, 5 + i], f"{name}{i}", max_tokens=6))

    threads = [threading.Thread(target=submit, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    finished = set()
    while len(finished) < 12:
        chunk = loop.chunks.get(timeout=LONG_S)
        if chunk.finish_reason:
            finished.add(chunk.request_id)
    assert finished == {f"{name}{i}" for name in "abc" for i in range(4)}

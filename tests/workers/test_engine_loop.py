"""The engine's thread outlives bad requests and bad steps, and says when it should be replaced."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

import workers.engine_loop
from controlplane.telemetry import WorkerWindow
from workers.engine_loop import FAILED_STEPS_MOST, EngineLoop
from workers.sequence import Chunk, EngineRequest, SamplingParams


@dataclass
class ScriptedEngine:
    """Answers every request in one step; `refusal` is raised by submit, `failing` steps raise first."""

    window: WorkerWindow
    refusal: Exception | None = None
    failing: int = 0
    requests: list[str] = field(default_factory=list)

    @property
    def has_work(self) -> bool:
        return bool(self.requests)

    def submit(self, request: EngineRequest) -> None:
        if self.refusal is not None:
            refusal, self.refusal = self.refusal, None
            raise refusal
        self.requests.append(request.request_id)

    def end_overdue(self) -> list[Chunk]:
        return []

    def step(self) -> list[Chunk]:
        if self.failing:
            self.failing -= 1
            raise RuntimeError("device-side assert")
        return self._end("stop")

    def fail_all(self, error: str) -> list[Chunk]:
        return self._end("error")

    def _end(self, reason: Any) -> list[Chunk]:
        ended, self.requests = self.requests, []
        return [Chunk(request_id, (), "", finish_reason=reason) for request_id in ended]

    def close_window(self) -> WorkerWindow:
        return self.window


@dataclass
class Served:
    """A running loop; `ask` waits for the request's last chunk."""

    loop: EngineLoop
    chunks: dict[str, Chunk]
    arrived: threading.Condition

    def ask(self, request_id: str) -> str | None:
        self.loop.submit(EngineRequest(request_id, (1,), SamplingParams(1), "c"))
        with self.arrived:
            assert self.arrived.wait_for(lambda: request_id in self.chunks, 5), "no answer"
        return self.chunks[request_id].finish_reason


@pytest.fixture
def engine(make_worker_window: Callable[..., WorkerWindow]) -> ScriptedEngine:
    return ScriptedEngine(make_worker_window())


@pytest.fixture
def served(engine: Any) -> Iterator[Served]:
    chunks: dict[str, Chunk] = {}
    arrived = threading.Condition()

    def on_chunks(given: Sequence[Chunk]) -> None:
        with arrived:
            chunks.update({chunk.request_id: chunk for chunk in given})
            arrived.notify_all()

    loop = EngineLoop(engine, on_chunks, lambda report: None)
    loop.start()
    yield Served(loop, chunks, arrived)
    loop.stop()


@pytest.mark.parametrize("refusal", [ValueError("prompt too long"), TypeError("unforeseen")])
def test_a_request_that_cannot_be_taken_ends_alone(served: Served, engine: ScriptedEngine, refusal: Exception) -> None:
    engine.refusal = refusal
    assert [served.ask("bad"), served.ask("good")] == ["error", "stop"]


def test_a_failed_step_ends_its_requests_and_the_next_one_works(served: Served, engine: ScriptedEngine) -> None:
    engine.failing = 1
    assert [served.ask("a"), served.ask("b")] == ["error", "stop"]


def test_an_engine_whose_steps_all_fail_is_not_healthy(served: Served, engine: ScriptedEngine) -> None:
    engine.failing = FAILED_STEPS_MOST
    healthy = []
    for i in range(FAILED_STEPS_MOST):
        healthy.append(served.loop.is_healthy)
        served.ask(f"r{i}")
    assert (healthy, served.loop.is_healthy) == ([True] * FAILED_STEPS_MOST, False)


def test_one_good_step_makes_an_engine_healthy_again(served: Served, engine: ScriptedEngine) -> None:
    engine.failing = FAILED_STEPS_MOST - 1
    for i in range(FAILED_STEPS_MOST):
        served.ask(f"r{i}")
    engine.failing = FAILED_STEPS_MOST - 1
    for i in range(FAILED_STEPS_MOST - 1):
        served.ask(f"s{i}")
    assert served.loop.is_healthy


@pytest.fixture
def loop_with(engine: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Served]]:
    """A running loop with work for idle times, which are idle after `quiet_s`."""
    made: list[EngineLoop] = []

    def make(idle_work: Callable[[], bool], quiet_s: float) -> Served:
        monkeypatch.setattr(workers.engine_loop, "QUIET_S", quiet_s)
        chunks: dict[str, Chunk] = {}
        arrived = threading.Condition()

        def on_chunks(given: Sequence[Chunk]) -> None:
            with arrived:
                chunks.update({chunk.request_id: chunk for chunk in given})
                arrived.notify_all()

        made.append(EngineLoop(engine, on_chunks, lambda report: None, idle_work=idle_work))
        made[-1].start()
        return Served(made[-1], chunks, arrived)

    yield make
    for loop in made:
        loop.stop()


def test_idle_work_is_done_until_there_is_none(loop_with: Callable[..., Served]) -> None:
    done: list[int] = []
    finished = threading.Event()

    def work() -> bool:
        done.append(len(done))
        if len(done) == 3:
            finished.set()
        return len(done) < 3

    served = loop_with(work, 0.0)
    assert finished.wait(5)
    assert served.ask("a") == "stop"
    assert len(done) == 3


def test_idle_work_waits_until_it_was_quiet(loop_with: Callable[..., Served]) -> None:
    done: list[int] = []
    served = loop_with(lambda: bool(done.append(1)) or True, 600.0)
    assert [served.ask(f"{i}") for i in range(3)] == ["stop"] * 3
    assert done == []


def test_a_request_is_served_between_two_pieces_of_idle_work(loop_with: Callable[..., Served]) -> None:
    served = loop_with(lambda: True, 0.0)
    assert [served.ask(f"{i}") for i in range(3)] == ["stop"] * 3


def test_idle_work_that_fails_is_not_tried_again(loop_with: Callable[..., Served]) -> None:
    tried = threading.Event()
    tries: list[int] = []

    def work() -> bool:
        tries.append(1)
        tried.set()
        raise RuntimeError("out of memory")

    served = loop_with(work, 0.0)
    assert tried.wait(5)
    assert [served.ask(f"{i}") for i in range(3)] == ["stop"] * 3
    assert (len(tries), served.loop.is_healthy) == (1, True)

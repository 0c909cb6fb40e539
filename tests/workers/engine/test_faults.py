"""The control loop breaks in every way while requests are served: real engine, reporter and controller, on threads."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import structlog

import workers.reporter
from controlplane.controller import Controller
from controlplane.policy import parse_policy
from workers.engine_loop import EngineLoop
from workers.plan_client import PlanClient, unplanned
from workers.reporter import ControllerUnreachable, Reporter

LONG_S = 30.0
"""Seconds that a busy machine may take for what takes a tenth of one."""
TTL_S = 0.6
TICK_S = 0.05
START_K, FALLBACK_K = 4, 2
POLICY = parse_policy(
    "version: 1\ncohorts:\n  - name: default\n    match: {}\n"
    f"    speculation: {{tuner: fixed, ladder: [0, 2, 4], start: {START_K}, fallback: {FALLBACK_K}}}\n"
)


class NoJournal:
    def record(self, *args, **kwargs):
        pass

    def policy_applied(self, *args, **kwargs):
        pass


class Site:
    """A worker that serves one request after the other, and whoever is the controller just now."""

    def __init__(self, engine):
        self.controllers = []
        self.slow_s = 0.0
        self.windows = []
        self.chunks = queue.SimpleQueue()
        self.client = engine.plan_client
        self.reporter = Reporter(self.send, self.client.accept)
        self.loop = EngineLoop(
            engine, lambda given: [self.chunks.put(chunk) for chunk in given], self.reporter.put, TICK_S
        )
        self.drafted, self.errors, self.finished = set(), [], 0
        self._stopping = threading.Event()
        self._client = threading.Thread(target=self._request_forever)
        self._ask = None

    def send(self, reports):
        time.sleep(self.slow_s)
        if not self.controllers:
            raise ControllerUnreachable("no controller")
        for controller in self.controllers:
            for report in reports:
                controller.observe(report)
            plan = controller.tick(time.time())
            if controller is not self.controllers[-1]:
                self.client.accept(plan)  # one that does not know that it was replaced
        self.windows += [report.window for report in reports]
        return plan

    def start(self, ask):
        self._ask = ask
        self.loop.start()
        self._client.start()

    def stop(self):
        self._stopping.set()
        self._client.join()
        self.loop.stop()
        self.reporter.stop()

    def _request_forever(self):
        n = 0
        while not self._stopping.is_set():
            n += 1
            self.loop.submit(self._ask([3 + n % 40, 4, 5], f"{n}", max_tokens=17))
            while True:
                chunk = self.chunks.get(timeout=LONG_S)
                self.drafted |= {drafted for drafted, _ in chunk.steps}
                if chunk.finish_reason:
                    break
            self.finished += 1
            self.errors += [chunk.error] if chunk.error else []

    def until(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LONG_S
        while not what():
            assert time.monotonic() < deadline, "it did not come about"
            time.sleep(0.01)

    def requests(self, n: int = 3) -> set[int]:
        """The lengths of drafts in the next `n` requests that begin from now on."""
        served = self.finished
        self.until(lambda: self.finished > served)
        self.drafted.clear()
        self.until(lambda: self.finished > served + n)
        return set(self.drafted)


def make_controller(epoch: int, first_version: int = 1) -> Controller:
    return Controller(POLICY, NoJournal(), epoch=epoch, first_version=first_version, plan_ttl_s=TTL_S)


@pytest.fixture(autouse=True)
def quick_retry(monkeypatch):
    monkeypatch.setattr(workers.reporter, "RETRY_S", 0.05)


@pytest.fixture
def site(make_engine, ask) -> Iterator[Site]:
    engine = make_engine(0, "target", eos=(), clock=time.time)
    engine.plan_client = PlanClient(unplanned(POLICY), time.time)
    with structlog.testing.capture_logs():
        made = Site(engine)
        made.start(ask)
        yield made
        made.stop()
    assert made.errors == []
    assert made.reporter.lost == 0


def is_obeyed(site: Site, epoch: int) -> Callable[[], bool]:
    return lambda: site.client.plan.epoch == epoch and not site.client.is_expired


def test_a_controller_is_killed_and_another_one_takes_over(site) -> None:
    site.controllers = [make_controller(epoch=1)]
    site.until(is_obeyed(site, 1))
    assert max(site.requests()) == START_K

    site.controllers = []
    site.until(lambda: site.client.is_expired)
    assert max(site.requests()) == FALLBACK_K
    assert site.client.age_s >= TTL_S

    site.controllers = [make_controller(epoch=2, first_version=site.client.plan.version + 1)]
    site.until(is_obeyed(site, 2))
    assert max(site.requests()) == START_K
    # Every window of the time between came in the end.
    site.until(lambda: [w.id.sequence for w in site.windows] == list(range(1, len(site.windows) + 1)))
    assert any(w.plan_expired for w in site.windows)
    assert {cell.k for w in site.windows for c in w.cohorts for cell in c.cells} <= {0, FALLBACK_K, START_K}


def test_two_controllers_answer_at_once(site) -> None:
    """The one that does not know that it was replaced says K = 0; nobody listens."""
    replaced = make_controller(epoch=1, first_version=50)
    replaced.set_kill_switch("zero", by="ada", why="before it was replaced", now=time.time())
    site.controllers = [replaced, make_controller(epoch=2)]
    site.until(is_obeyed(site, 2))
    assert max(site.requests()) == START_K
    assert site.client.plan.epoch == 2
    assert set(site.client.refused) == {"epoch"}


def test_a_controller_that_answers_late_keeps_no_request_waiting(site) -> None:
    """It takes longer than a plan is valid; then it is back."""
    site.controllers = [make_controller(epoch=1)]
    site.until(is_obeyed(site, 1))
    site.slow_s = 2 * TTL_S
    site.until(lambda: site.client.is_expired)
    assert max(site.requests()) in (FALLBACK_K, START_K)
    site.slow_s = 0.0
    site.until(is_obeyed(site, 1))


def test_a_controller_that_lives_in_the_future_is_not_obeyed(site) -> None:
    ahead = make_controller(epoch=3)
    tick = ahead.tick
    ahead.tick = lambda now: tick(now + 3600.0)
    site.controllers = [ahead]
    site.until(lambda: site.client.refused.get("future", 0) >= 3)
    assert max(site.requests()) == FALLBACK_K
    assert site.client.plan.version == 0

"""Reports reach the controller in order, whether it is there at once or much later; the engine never waits."""

from __future__ import annotations

import threading
import time

import pytest
import structlog

import workers.reporter
from controlplane.telemetry import Report
from workers.plan_client import constant_plan
from workers.reporter import MAX_BATCH, ControllerUnreachable, Reporter

LONG_S = 20.0
PLAN = constant_plan(4, ["json"])


class Controller:
    """Takes reports while it is up, and counts the tries meanwhile."""

    def __init__(self):
        self.up = threading.Event()
        self.up.set()
        self.error = ControllerUnreachable("no controller")
        self.batches = []
        self.tries = 0

    def send(self, reports):
        self.tries += 1
        if not self.up.is_set():
            raise self.error
        self.batches.append([r.window.id.sequence for r in reports])
        return PLAN

    @property
    def received(self):
        return [n for batch in self.batches for n in batch]


@pytest.fixture(autouse=True)
def quick_retry(monkeypatch):
    monkeypatch.setattr(workers.reporter, "RETRY_S", 0.01)


@pytest.fixture(autouse=True)
def logs():
    with structlog.testing.capture_logs() as captured:
        yield captured


@pytest.fixture
def controller():
    return Controller()


@pytest.fixture
def make_reporter(controller):
    made = []

    def make(accept=lambda plan: None, **options):
        made.append(Reporter(controller.send, accept, **options))
        return made[-1]

    yield make
    for reporter in made:
        reporter.stop()


@pytest.fixture
def put(make_worker_window):
    """Puts the reports of windows number first to last."""

    def make(reporter, first, last):
        for n in range(first, last + 1):
            reporter.put(Report(make_worker_window(n)))

    return make


def wait_for(condition):
    until = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.002)


def test_reports_arrive_in_order(make_reporter, controller, put) -> None:
    put(make_reporter(), 1, 20)
    wait_for(lambda: len(controller.received) == 20)
    assert controller.received == list(range(1, 21))


def test_the_answer_is_the_plan_to_obey(make_reporter, put) -> None:
    plans = []
    put(make_reporter(plans.append), 1, 1)
    wait_for(lambda: plans)
    assert plans == [PLAN]


def test_what_could_not_be_sent_is_kept_and_sent_in_order(make_reporter, controller, put) -> None:
    controller.up.clear()
    reporter = make_reporter()
    put(reporter, 1, 5)
    wait_for(lambda: controller.tries >= 3)
    put(reporter, 6, 9)
    controller.up.set()
    wait_for(lambda: len(controller.received) == 9)
    assert (controller.received, reporter.lost) == (list(range(1, 10)), 0)


def test_after_a_long_absence_the_oldest_are_lost_and_counted(make_reporter, controller, put) -> None:
    controller.up.clear()
    reporter = make_reporter(bound=4)
    put(reporter, 1, 10)
    wait_for(lambda: controller.tries >= 2)
    assert reporter.lost == 6
    controller.up.set()
    wait_for(lambda: len(controller.received) == 4)
    assert controller.received == [7, 8, 9, 10]


def test_a_backlog_travels_in_batches(make_reporter, controller, put) -> None:
    controller.up.clear()
    reporter = make_reporter()
    put(reporter, 1, MAX_BATCH + 5)
    wait_for(lambda: controller.tries >= 2)
    controller.up.set()
    wait_for(lambda: len(controller.received) == MAX_BATCH + 5)
    assert max(len(batch) for batch in controller.batches) <= MAX_BATCH
    assert controller.received == list(range(1, MAX_BATCH + 6))


def test_putting_a_report_never_waits_for_the_controller(controller, put) -> None:
    let_go = threading.Event()

    def send(reports):
        let_go.wait(LONG_S)
        return controller.send(reports)

    reporter = Reporter(send, lambda plan: None)
    began = time.monotonic()
    put(reporter, 1, 50)
    assert time.monotonic() - began < LONG_S / 4
    let_go.set()
    reporter.stop()
    assert controller.received == list(range(1, 51))


def test_an_absence_is_logged_once_and_so_is_its_end(make_reporter, controller, put, logs) -> None:
    controller.up.clear()
    reporter = make_reporter()
    put(reporter, 1, 2)
    wait_for(lambda: controller.tries >= 5)
    controller.up.set()
    wait_for(lambda: controller.received)
    reporter.stop()
    assert [log["event"] for log in logs] == [
        "controller unreachable; serving goes on",
        "controller reachable again",
    ]


def test_an_error_that_nobody_foresaw_does_not_end_the_thread(make_reporter, controller, put) -> None:
    controller.error = ZeroDivisionError("odd")
    controller.up.clear()
    put(make_reporter(), 1, 2)
    wait_for(lambda: controller.tries >= 2)
    controller.up.set()
    wait_for(lambda: controller.received)
    assert controller.received == [1, 2]


def test_stopping_sends_what_waits(make_reporter, controller, put) -> None:
    reporter = make_reporter()
    put(reporter, 1, 300)
    reporter.stop()
    assert controller.received == list(range(1, 301))


def test_stopping_does_not_wait_for_a_controller_that_is_away(make_reporter, controller, put, monkeypatch) -> None:
    monkeypatch.setattr(workers.reporter, "RETRY_S", 1000.0)
    controller.up.clear()
    reporter = make_reporter()
    put(reporter, 1, 2)
    wait_for(lambda: controller.tries)
    began = time.monotonic()
    reporter.stop(LONG_S)
    assert time.monotonic() - began < LONG_S / 2

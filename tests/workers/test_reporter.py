"""Reports reach the controller in the end, whatever happens on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from controlplane.telemetry import Report, WorkerWindow
from workers.reporter import ControllerUnreachable, Reporter

Make = Callable[..., WorkerWindow]


@pytest.mark.parametrize("failure", [ControllerUnreachable("away"), TimeoutError(), RuntimeError("unforeseen")])
def test_reports_are_sent_again_after_any_failure(
    make_worker_window: Make, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    monkeypatch.setattr("workers.reporter.RETRY_S", 0.01)
    tries: list[int] = []
    arrived = threading.Event()

    def send(reports: Sequence[Report]) -> Any:
        tries.append(len(reports))
        if len(tries) == 1:
            raise failure
        arrived.set()

    reporter = Reporter(send, lambda plan: None)
    reporter.put(Report(make_worker_window()))
    assert arrived.wait(5)
    reporter.stop()
    assert tries == [1, 1]

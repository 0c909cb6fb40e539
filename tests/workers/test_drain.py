"""Stopping: nothing new is taken in, what runs may end, and what does not is ended with an error."""

from __future__ import annotations

from typing import Any

import pytest

import workers.serving
from workers.serving import drain


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers.serving, "DRAIN_LOOK_S", 0.01)


class Workers:
    """Two, with so many requests open at each look; `orders` is what they were told."""

    def __init__(self, *left: Any) -> None:
        self.left, self.orders = list(left), []

    def __call__(self, method: str, *arguments: Any) -> list[Any]:
        self.orders.append((method, *arguments))
        if method != "drain":
            return [None, None]
        now = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        if isinstance(now, Exception):
            raise now
        return [now, TimeoutError("the other one does not answer")]


def test_with_nothing_open_it_is_over_at_once() -> None:
    workers = Workers(0)
    assert drain(workers, 60.0)
    assert workers.orders == [("drain",)]


def test_it_waits_until_the_last_request_has_ended() -> None:
    workers = Workers(3, 1, 0)
    assert drain(workers, 60.0)
    assert workers.orders == [("drain",)] * 3


def test_what_is_left_at_the_limit_is_ended_with_an_error() -> None:
    workers = Workers(2)
    assert not drain(workers, 0.03)
    assert workers.orders[-1] == ("end_all", "the server is shutting down")


def test_workers_that_are_gone_hold_nobody_up() -> None:
    assert not drain(Workers(RuntimeError("no replica")), 60.0)

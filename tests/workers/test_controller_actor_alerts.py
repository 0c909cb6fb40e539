"""An alert outlives controllers: it is on record, blocks its drafter after any start, and ends when it is cleared."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from controlplane.alerts import CanaryCheck
from controlplane.settings import Settings, load_settings
from controlplane.telemetry import Report
from workers import controller_actor
from workers.controller_actor import ControllerActor

POLICY = """version: 1
cohorts:
  - {name: default, match: {}, speculation: {tuner: fixed, ladder: [0, 2], start: 2, fallback: 0}}
"""
WRONG = CanaryCheck("r1", "w1", "default", "ngram@1", 1_790_000_000.0, "greedy", 40, 0, 3, 7.5, 1.1, 12, 90, 0.2)
NAME = "canary:ngram@1"


@pytest.fixture
def settings(sqlite_ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Ticks only when told to."""
    monkeypatch.setattr(controller_actor, "_was_restarted", lambda: False)
    policy = tmp_path / "policies.yaml"
    policy.write_text(POLICY)
    return load_settings(home=tmp_path, database_url=sqlite_ledger_url, tick_s=60.0, plan_ttl_s=100.0, policy=policy)


def run(settings: Settings, act: Callable[[ControllerActor], Awaitable[Any]]) -> Any:
    """What `act` answers, of a controller that is started and closed around it."""

    async def life() -> Any:
        actor = ControllerActor(settings, POLICY)
        answer = await act(actor)
        await actor.close()
        return answer

    return asyncio.run(life())


@pytest.fixture
def find(make_worker_window: Any) -> Callable[[ControllerActor], Awaitable[Any]]:
    """A worker reports wrong text; the plan in the answer."""
    return lambda actor: actor.report([Report(make_worker_window(), canary=(WRONG,))])


async def look(actor: ControllerActor) -> tuple[tuple[str, ...], tuple[str, ...]]:
    state = await actor.state()
    return state.plan.blocked_drafters, state.counts.alerts


def test_the_answer_to_the_report_blocks_the_drafter(settings: Settings, find: Any) -> None:
    assert run(settings, find).blocked_drafters == ("ngram@1",)


def test_a_drafter_stays_blocked_over_a_new_start(settings: Settings, find: Any) -> None:
    run(settings, find)
    assert run(settings, look) == (("ngram@1",), (NAME,))


def test_a_cleared_alert_is_over_for_the_next_start_too(settings: Settings, find: Any) -> None:
    run(settings, find)

    async def clear(actor: ControllerActor) -> Any:
        cleared = await actor.clear_alert(NAME, "ann", "fixed")
        assert cleared is not None
        assert await actor.clear_alert(NAME, "ann", "again") is None
        return cleared

    alert, plan = run(settings, clear)
    assert (alert.state, plan.blocked_drafters) == ("cleared", ())
    assert run(settings, look) == ((), ())


@pytest.mark.parametrize(("state", "names"), [("active", [NAME]), ("cleared", []), (None, [NAME])])
def test_alerts_are_told_by_state(settings: Settings, find: Any, state: Any, names: list[str]) -> None:
    run(settings, find)
    assert [alert.name for alert in run(settings, lambda actor: actor.alerts(state))] == names

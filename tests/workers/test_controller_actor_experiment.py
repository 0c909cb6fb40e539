"""The experiment in the controller's actor: started, taken up again after a restart, never in control's way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from controlplane.settings import Settings, load_settings
from controlplane.store.engine import open_database
from controlplane.store.experiments import measured, open_experiment
from workers import controller_actor
from workers.controller_actor import ControllerActor

TEXT = """
version: 1
cohorts:
  - {name: default, match: {}, speculation: {tuner: fixed, ladder: [0, 2], start: 2, fallback: 0}}
experiment: {holdout: 50%, unit: window, window: 1m, burn_in: 20s}
"""


@pytest.fixture
def settings(sqlite_ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Ticks only when told to: the first tick would come after a minute."""
    monkeypatch.setattr(controller_actor, "_was_restarted", lambda: False)
    policy = tmp_path / "policies.yaml"
    policy.write_text(TEXT)
    return load_settings(home=tmp_path, database_url=sqlite_ledger_url, tick_s=60.0, plan_ttl_s=100.0, policy=policy)


def live(settings: Settings, act: Callable[[ControllerActor], Awaitable[Any]]) -> Any:
    """A controller's life; what `act` came to."""

    async def life() -> Any:
        actor = ControllerActor(settings, TEXT)
        out = await act(actor)
        await actor.close()
        return out

    return asyncio.run(life())


async def start(actor: ControllerActor) -> Any:
    found = await actor.start_experiment({"pairs": 10}, "ann", "to see", 5)
    actor._tick()  # a pair begins at once: half of the time is control
    return found, actor._controller.plan.arm, (await actor.experiment())["under_way"]


def test_an_experiment_is_on_record_with_its_seed_and_its_first_pair(settings: Settings) -> None:
    found, arm, under_way = live(settings, start)
    assert arm in ("control", "treatment")
    assert len(under_way) == 2
    engine = open_database(settings.database_url)
    run, done = open_experiment(engine)
    assert (run.id, run.seed, done) == (found["id"], 5, 0)
    assert [m.window.state for m in measured(engine, run.id)] == ["running", "running"]


def test_a_controller_that_comes_back_gives_up_the_pair_and_goes_on_with_the_experiment(settings: Settings) -> None:
    found, _, _ = live(settings, start)

    async def look(actor: ControllerActor) -> Any:
        return await actor.experiment()

    again = live(settings, look)
    assert (again["id"], again["state"], again["under_way"]) == (found["id"], "running", None)
    windows = measured(open_database(settings.database_url), found["id"])
    assert {(m.window.state, m.window.reason) for m in windows} == {("aborted", "the controller was restarted")}


def test_stopping_it_answers_with_the_plan_that_speculates_again(settings: Settings) -> None:
    async def stop(actor: ControllerActor) -> Any:
        await start(actor)
        return await actor.stop_experiment("bob", "enough")

    found, plan = live(settings, stop)
    assert (found["state"], plan.arm) == ("stopped", "")


def test_an_experiment_that_fails_stops_no_tick(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(actor: ControllerActor) -> Any:
        await start(actor)

        def broken(now: float) -> None:
            raise RuntimeError("no")

        monkeypatch.setattr(type(actor._experiment), "advance", lambda self, now: broken(now))
        before = actor._controller.plan.issued_at
        actor._tick()
        return before, actor._controller.plan.issued_at

    before, after = live(settings, fail)
    assert after > before

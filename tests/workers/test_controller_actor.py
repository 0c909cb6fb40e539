"""What the actor adds to the Controller: how it begins, and that nothing is lost when it ends. No Ray is started."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from controlplane.decision.plan import Plan
from controlplane.policy import parse_policy
from controlplane.policy_cli import policy_app
from controlplane.policy_watch import POLL_S
from controlplane.rollout import StageOrder
from controlplane.settings import Settings, load_settings
from controlplane.store.engine import open_database
from controlplane.store.journal import SqlJournal
from controlplane.store.models import Request
from controlplane.store.policies import rollouts
from controlplane.telemetry import LOAD_BUCKETS, Report, StepCount, WindowId
from workers import controller_actor
from workers.controller_actor import ControllerActor, ControllerState, SteppedDown

FIRST, SECOND = (
    "version: 1\ncohorts:\n  - name: default\n    match: {}\n"
    f"    speculation: {{tuner: fixed, ladder: [0, 2, 4], start: {start}, fallback: 0}}\n"
    for start in (2, 4)
)


@pytest.fixture
def settings(sqlite_ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Ticks only when told to: the first tick would come after a minute."""
    monkeypatch.setattr(controller_actor, "_was_restarted", lambda: False)
    policy = tmp_path / "policies.yaml"
    policy.write_text(FIRST)
    return load_settings(home=tmp_path, database_url=sqlite_ledger_url, tick_s=60.0, plan_ttl_s=100.0, policy=policy)


def run(settings: Settings, act: Callable[[ControllerActor], Awaitable[Any]], **begin: Any) -> ControllerState:
    """Start a controller, act on it, and close it; its state before the close."""

    async def life() -> ControllerState:
        actor = ControllerActor(settings, FIRST, **begin)
        await act(actor)
        state = await actor.state()
        await actor.close()
        return state

    return asyncio.run(life())


async def nothing(actor: ControllerActor) -> None:
    pass


async def operate(actor: ControllerActor) -> None:
    await actor.apply_policy(SECOND, by="ada", why="more")
    await actor.set_kill_switch("zero", by="ada", why="incident")


def test_what_was_reported_after_the_last_tick_is_kept_at_the_end(
    settings: Settings, make_worker_window: Any, make_request_record: Any
) -> None:
    async def report(actor: ControllerActor) -> None:
        await actor.report([Report(make_worker_window(), (make_request_record("last"),))])

    run(settings, report)
    with open_database(settings.database_url).connect() as connection:
        assert connection.scalars(sa.select(Request.request_id)).all() == ["last"]


def test_a_controller_that_replaces_a_lost_one_keeps_the_kill_switch_and_the_applied_policy(settings: Settings) -> None:
    run(settings, operate)
    state = run(settings, nothing, is_revival=True)
    assert (state.plan.kill_switch, state.policy_text) == ("zero", SECOND)


def test_a_new_start_begins_with_the_policy_file(settings: Settings) -> None:
    run(settings, operate)
    state = run(settings, nothing)
    assert (state.plan.kill_switch, state.policy_text) == ("off", FIRST)


def test_plan_versions_rise_over_starts(settings: Settings) -> None:
    before, after = run(settings, operate).plan, run(settings, nothing).plan
    assert (after.version, after.epoch) > (before.version, before.epoch)


def test_the_earlier_of_two_controllers_on_one_database_steps_down(
    settings: Settings, make_worker_window: Any, make_request_record: Any
) -> None:
    """And what it acknowledged until then is in the journal, not lost."""

    async def life() -> tuple[list[bool], list[str]]:
        earlier = ControllerActor(settings, FIRST)
        await earlier.report([Report(make_worker_window(), (make_request_record("acknowledged"),))])
        later = ControllerActor(settings, FIRST)
        await later.set_kill_switch("off", by="ada", why="so that its plan is journalled")
        await asyncio.to_thread(later._journal.flush)
        refused = []
        for actor in (earlier, later):
            await actor.look_for_others()
            for act in (actor.report([]), actor.set_kill_switch("zero", by="ada", why="incident")):
                try:
                    await act
                except SteppedDown as error:
                    refused.append(str(error))
        down = [(await actor.state()).counts.stepped_down for actor in (earlier, later)]
        for actor in (earlier, later):
            await actor.close()
        return down, refused

    down, refused = asyncio.run(life())
    assert (down, len(refused)) == ([True, False], 2)
    with open_database(settings.database_url).connect() as connection:
        assert connection.scalars(sa.select(Request.request_id)).all() == ["acknowledged"]


def test_a_start_wins_over_an_earlier_one_whose_clock_was_ahead(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = controller_actor.time.time_ns()
    monkeypatch.setattr(controller_actor.time, "time_ns", lambda: now + 86_400 * 10**9)
    ahead = run(settings, nothing).plan
    monkeypatch.setattr(controller_actor.time, "time_ns", lambda: now)
    assert run(settings, nothing).plan.epoch > ahead.epoch


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what the followed file should bring about; 10 s at most."""
    for _ in range(200):
        if await condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it did not happen")


def test_a_changed_policy_file_is_in_force_within_two_seconds(settings: Settings) -> None:
    async def edit(actor: ControllerActor) -> None:
        settings.policy.write_text(SECOND)
        began = time.monotonic()

        async def in_force() -> bool:
            return (await actor.state()).policy_text == SECOND

        await until(in_force)
        assert time.monotonic() - began < 2

    state = run(settings, edit)
    assert (state.status.applied_by, state.status.file_problems) == ("policy file", ())
    assert state.plan.k["default"][0] == 4


def test_a_bad_policy_file_keeps_the_policy_in_force_and_is_reported(settings: Settings) -> None:
    async def edit(actor: ControllerActor) -> None:
        settings.policy.write_text(FIRST.replace("start: 2", "start: 3"))

        async def reported() -> bool:
            return bool((await actor.state()).status.file_problems)

        await until(reported)

    state = run(settings, edit)
    assert state.policy_text == FIRST
    assert "start: 3 is not a rung" in state.status.file_problems[0]


def test_a_policy_applied_over_http_stays_until_the_file_changes_also_over_a_restart(settings: Settings) -> None:
    async def settle(actor: ControllerActor) -> None:
        await asyncio.sleep(3 * POLL_S)

    run(settings, operate)
    assert run(settings, settle, is_revival=True).policy_text == SECOND
    settings.policy.write_text(FIRST + "# changed while no controller ran\n")
    assert run(settings, settle, is_revival=True).policy_text.startswith(FIRST)


def test_a_file_that_is_not_to_be_followed_is_not(settings: Settings) -> None:
    async def edit(actor: ControllerActor) -> None:
        settings.policy.write_text(SECOND)
        await asyncio.sleep(3 * POLL_S)

    state = run(settings.model_copy(update={"policy_watch": False}), edit)
    assert (state.policy_text, state.status.file) == (FIRST, None)


def test_a_trial_of_a_controller_that_died_is_closed(settings: Settings) -> None:
    second = (
        "  - {name: code, match: {user: a}, speculation: {tuner: fixed, ladder: [0, 2, 4], start: 2, fallback: 0}}\n"
    )
    two = FIRST.replace("cohorts:\n", f"cohorts:\n{second}")

    async def stage(actor: ControllerActor) -> None:
        await actor.apply_policy(two, by="ada", why="two cohorts")
        order = StageOrder(0.5, "cohorts", min_windows=30, max_s=60)
        await actor.apply_policy(two.replace("start: 2", "start: 4"), "ada", "deeper", order)
        assert (await actor.state()).policy_text == two

    rollout = run(settings, stage).status.rollout
    assert rollout is not None
    assert (rollout["stage"], rollout["by"]) == ("staged", "ada")
    state = run(settings, nothing, is_revival=True)
    assert (state.status.rollout, state.policy_text) == (None, two)
    (closed,) = rollouts(open_database(settings.database_url))
    assert (closed.stage, closed.sentence) == ("aborted", "aborted: the controller that tried it ended")


def test_the_history_has_everything_that_was_put_in_force(settings: Settings) -> None:
    found = []

    async def ask(actor: ControllerActor) -> None:
        await operate(actor)
        await asyncio.to_thread(actor._journal.flush)
        found.extend((e.applied_by, e.why) for e in await actor.policy_history(10))

    run(settings, ask)
    assert found == [("ada", "more"), ("kadence", "start")]


def test_a_restarted_controller_goes_on_with_the_k_and_the_beliefs_of_the_journal(
    settings: Settings, make_worker_window: Any, make_cohort_window: Any
) -> None:
    policy = parse_policy(FIRST.replace("tuner: fixed,", "tuner: threshold, acceptance_floor: 50%,"))
    by_load = (4, 0, *(2,) * (len(LOAD_BUCKETS) - 2))
    now = time.time()
    plan = Plan(time.time_ns(), 7, now - 5, now + 5, {"default": by_load}, {"default": 0}, policy.revision)
    steps = make_cohort_window("default", (StepCount(4, 3, False, 200),))
    report = Report(make_worker_window(1, (steps,), started_at=now - 6))
    journal = SqlJournal(open_database(settings.database_url))
    journal.policy_applied(policy, by="ada", why="learn", now=now - 60)
    journal.record([report], [], plan, now - 5)
    journal.close()

    async def look(actor: ControllerActor) -> None:
        believed.append(actor._controller.state.estimate.hazards().mean[0, :4].round(1).tolist())
        await actor.report([report])

    believed: list[list[float]] = []
    state = run(settings, look, is_revival=True)
    assert (state.plan.k["default"], state.plan.version > 7) == (by_load, True)
    # Of 200 drafts three tokens were kept and the fourth was not.
    assert believed == [[1.0, 1.0, 1.0, 0.0]]
    # What the journal had must not count again, when a worker that heard no answer sends it once more.
    assert state.counts.reports_refused["duplicate"] == 1
    assert (run(settings, nothing).plan.k["default"][0]) == 2


def test_what_was_decided_before_and_after_a_restart_replays(
    settings: Settings, make_worker_window: Any, make_cohort_window: Any
) -> None:
    tuned = FIRST.replace("tuner: fixed", "tuner: threshold")

    async def work(actor: ControllerActor) -> None:
        if (await actor.state()).policy_text == FIRST:
            await actor.apply_policy(tuned, by="ada", why="tuned")
        for i in range(12):
            cohort = make_cohort_window("default", (StepCount(2, 0, False, 30), StepCount(2, 2, False, 2)), 2)
            epoch = int(time.time() * 1e9)
            window = make_worker_window(i, (cohort,), started_at=time.time() - 1, id=WindowId("w", epoch, i))
            await actor.report([Report(window)])
            actor._tick()

    run(settings, work)
    run(settings, work, is_revival=True)
    flags = ["replay", "--since", "1h", "--database-url", settings.database_url, "--json"]
    result = CliRunner().invoke(policy_app, flags)
    said = json.loads(result.stdout)
    assert (result.exit_code, said["ok"], len(said["controllers"])) == (0, True, 2), said
    assert all(each["decisions"] > 0 for each in said["controllers"])

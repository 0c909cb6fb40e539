"""Budgets in the controller's actor: spent from windows, asked by endpoints, kept over a restart, dialled, replayed."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from controlplane.budgets import office
from controlplane.budgets.desk import Answer, Ask
from controlplane.finops.budget import BudgetStatus
from controlplane.policy_cli import policy_app
from controlplane.settings import Settings, load_settings
from controlplane.store.alerts import alert_log
from controlplane.store.budgets import PastReader, budget_history
from controlplane.store.engine import open_database
from controlplane.store.models import ControlEvent, DecisionEntry
from controlplane.store.webhooks import pending_messages
from controlplane.telemetry import ProfileCell, Report, StepCount, WindowId
from workers import controller_actor
from workers.controller_actor import ControllerActor

POLICY = """version: 1
cohorts:
  - {name: default, match: {}, speculation: {tuner: fixed, ladder: [0, 2], start: 2, fallback: 0},
     budget: {usd: 0.10, period: month, soft: [50%, 80%], on_exceeded: reject}}
"""
PRICES = """version: 1
prices:
  - {sku: gpu, basis: on_demand, currency: USD, per_hour: 36, source: me, as_of: 2026-01-01, effective_from: 2026-01-01}
"""
CENT = 10_000_000


@pytest.fixture
def settings(sqlite_ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Ticks only when told to; a second of a busy machine costs a cent."""
    monkeypatch.setattr(controller_actor, "_was_restarted", lambda: False)
    policy, prices = tmp_path / "policies.yaml", tmp_path / "prices.yaml"
    policy.write_text(POLICY)
    prices.write_text(PRICES)
    url = sqlite_ledger_url
    return load_settings(home=tmp_path, database_url=url, tick_s=50.0, plan_ttl_s=100.0, policy=policy, prices=prices)


@pytest.fixture
def used(make_worker_window: Any, make_cohort_window: Any) -> Callable[..., Report]:
    """A report of so many cents, the `number`th of its worker."""

    def make(number: int, cents: float, **changes: Any) -> Report:
        cohort = make_cohort_window("default", prefill_positions=10)
        at = time.time() - cents
        values = {"device": "gpu", "ended_at": at + cents, "busy_s": cents, "started_at": at, **changes}
        return Report(make_worker_window(0, (cohort,), id=WindowId("w", 1, number), **values))

    return make


def run(settings: Settings, act: Callable[[ControllerActor], Awaitable[Any]], policy: str = POLICY) -> Any:
    async def life() -> Any:
        actor = ControllerActor(settings, policy)
        try:
            return await act(actor)
        finally:
            await actor.close()

    return asyncio.run(life())


async def only(actor: ControllerActor) -> BudgetStatus:
    actor._tick()
    (status,) = await actor.budgets()
    return status


def test_a_report_is_spent_once_however_often_it_comes(settings: Settings, used: Any) -> None:
    async def act(actor: ControllerActor) -> BudgetStatus:
        for _ in range(3):
            await actor.report([first])
        return await only(actor)

    first = used(1, 6)
    status = run(settings, act)
    assert (status.spent_nano, status.standing) == (6 * CENT, "soft")


def test_an_exceeded_budget_refuses_and_says_so_in_the_state_of_the_controller(settings: Settings, used: Any) -> None:
    async def act(actor: ControllerActor) -> tuple[Answer, Any]:
        await actor.report([used(1, 11)])
        actor._tick()
        return await actor.budget_admit("e", Ask("r", "default", None, 5, 10)), (await actor.state()).counts

    answer, counts = run(settings, act)
    assert answer.refusal is not None
    assert answer.refusal.budget == "default"
    assert [(s.standing, s.rejections) for s in counts.budgets] == [("exceeded", 1)]


def test_a_restarted_controller_refuses_from_its_first_answer_on(settings: Settings, used: Any) -> None:
    async def spend(actor: ControllerActor) -> None:
        await actor.report([used(1, 11)])

    run(settings, spend)
    answer: Answer = run(settings, lambda actor: actor.budget_admit("e", Ask("r", "default", None, 5, 10)))
    assert answer.refusal is not None


def test_what_was_spent_and_told_outlives_a_restart(settings: Settings, used: Any) -> None:
    async def spend(actor: ControllerActor) -> None:
        await actor.report([used(1, 6)])
        actor._tick()

    run(settings, spend)
    status = run(settings, only)
    assert (status.spent_nano, status.standing, status.fired) == (6 * CENT, "soft", (0.5,))
    engine = open_database(settings.database_url)
    assert [(alert.kind, alert.count) for alert in alert_log(engine)] == [("budget", 1)]
    (row,) = budget_history(engine)
    assert (row.name, row.spent_nano, row.standing) == ("default", 6 * CENT, "soft")


def test_a_budget_that_is_added_knows_what_was_spent_before_it(settings: Settings, used: Any) -> None:
    async def act(actor: ControllerActor) -> list[BudgetStatus]:
        await actor.report([used(1, 6)])
        actor._tick()
        await actor.apply_policy(
            POLICY + "budgets: [{name: new, cohort: default, usd: 1, period: week}]\n", "ada", "two"
        )
        await actor.report([used(2, 1)])
        actor._tick()
        assert [s.standing for s in await actor.budgets()] == ["soft", "unknown"]
        for _ in range(200):
            await asyncio.sleep(0.05)
            actor._tick()
            if (await actor.budgets())[1].standing != "unknown":
                break
        return await actor.budgets()

    assert [(s.name, s.spent_nano) for s in run(settings, act)] == [("default", 7 * CENT), ("new", 7 * CENT)]


def test_a_database_that_is_away_stops_nobody(settings: Settings, used: Any, tmp_path: Path) -> None:
    async def act(actor: ControllerActor) -> tuple[BudgetStatus, Answer]:
        await actor.report([used(1, 6)])
        said = await only(actor), await actor.budget_admit("e", Ask("r", "default", None, 5, 10))
        await asyncio.to_thread(actor._journal.close, 0.1)
        return said

    away = settings.model_copy(update={"database_url": f"sqlite:///{tmp_path}/no/such/folder.db"})
    status, answer = run(away, act)
    assert (status.standing, answer.refusal) == ("unknown", None)
    assert "not read from the ledger" in status.why


def test_eight_threads_at_the_real_desk_overrun_the_budget_by_one_request_at_most(settings: Settings) -> None:
    """As Ray calls an async actor: from outside, all at once, taking turns on its loop. A request costs half a cent."""
    loop, ready, done = asyncio.new_event_loop(), threading.Event(), threading.Event()
    actors: list[ControllerActor] = []

    async def life() -> None:
        actors.append(ControllerActor(settings, POLICY))
        actors[0]._tick()
        ready.set()
        while not done.is_set():
            await asyncio.sleep(0.01)
        await actors[0].close()

    host = threading.Thread(target=loop.run_until_complete, args=(life(),))
    host.start()
    ready.wait(10)
    admitted = []

    def endpoint(number: int) -> None:
        for i in range(25):
            ask = Ask(f"{number}-{i}", "default", None, 10, 0)
            said = asyncio.run_coroutine_threadsafe(actors[0].budget_admit(str(number), ask), loop).result(10)
            if said.refusal is None:
                admitted.append(ask)

    threads = [threading.Thread(target=endpoint, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    host.join()
    loop.close()
    assert len(admitted) == 20  # unmeasured, a prompt token is taken to cost 0.05 s: half a cent a request


HOOKED = POLICY.replace(
    "on_exceeded: reject", "on_exceeded: reject, notify: 'http://127.0.0.1:9/hook', secret_env: HOOK"
)


def test_an_alert_is_a_message_that_outlives_the_process(settings: Settings, used: Any) -> None:
    async def act(actor: ControllerActor) -> None:
        await actor.report([used(1, 6)])
        actor._tick()
        for _ in range(500):
            if pending_messages(actor._engine):
                return
            await asyncio.sleep(0.02)

    run(settings, act, HOOKED)
    (message,) = pending_messages(open_database(settings.database_url))
    body = json.loads(message.body)
    assert (body["type"], body["threshold"], body["budget"]["spent"]) == ("budget.alert", 0.5, "0.06")
    assert body["text"].startswith("budget default (cohort default): 0.06 of 0.10 USD spent in 20")
    assert (message.secret_env, message.url) == ("HOOK", "http://127.0.0.1:9/hook")


def test_an_alert_whose_message_was_lost_with_its_process_is_sent_after_the_start(
    settings: Settings, used: Any
) -> None:
    async def spend(actor: ControllerActor) -> None:
        await actor.report([used(1, 6)])
        actor._tick()

    async def wait(actor: ControllerActor) -> None:
        actor._tick()
        for _ in range(200):
            if pending_messages(actor._engine):
                return
            await asyncio.sleep(0.05)

    run(settings, spend)  # nobody was to be told then
    run(settings, wait, HOOKED)
    assert len(pending_messages(open_database(settings.database_url))) == 1


def test_a_lost_message_is_sent_also_where_the_ledger_could_be_read_late_only(
    settings: Settings, used: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def spend(actor: ControllerActor) -> None:
        await actor.report([used(1, 6)])
        actor._tick()

    async def wait(actor: ControllerActor) -> None:
        async with asyncio.timeout(20):
            while actor._budgets._book.unread():
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.1)  # looks at what is untold, before any tick
            actor._tick()
            while not pending_messages(actor._engine):
                await asyncio.sleep(0.02)

    run(settings, spend)
    tries = iter([ConnectionError("")])

    def reader(engine: sa.Engine) -> PastReader:
        for error in tries:
            raise error
        return PastReader(engine)

    monkeypatch.setattr(office, "PastReader", reader)
    monkeypatch.setattr(office, "LOOK_EVERY_S", 0.02)
    run(settings, wait, HOOKED)
    assert len(pending_messages(open_database(settings.database_url))) == 1


def test_what_is_on_record_outlives_a_start_that_could_not_read_the_ledger(
    settings: Settings, used: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def spend(actor: ControllerActor, number: int = 1, cents: float = 6) -> None:
        await actor.report([used(number, cents)])
        actor._tick()

    def away(engine: sa.Engine) -> PastReader:
        raise ConnectionError

    run(settings, spend)
    monkeypatch.setattr(office, "PastReader", away)
    run(settings, lambda actor: spend(actor, 2, 1))
    (entry,) = budget_history(open_database(settings.database_url))
    assert (entry.standing, entry.spent_nano) == ("soft", 6 * CENT)


def test_a_restart_sends_nothing_again_for_a_budget_that_was_raised_a_little(settings: Settings, used: Any) -> None:
    """Its threshold is reached still, and its receiver knows."""
    raised = HOOKED.replace("usd: 0.10", "usd: 0.11")

    async def spend(actor: ControllerActor) -> None:
        await actor.report([used(1, 6)])
        actor._tick()
        await actor.apply_policy(raised, "ada", "a little more")
        actor._tick()
        async with asyncio.timeout(20):
            while not pending_messages(actor._engine):
                await asyncio.sleep(0.02)

    async def look(actor: ControllerActor) -> None:
        actor._tick()
        async with asyncio.timeout(20):
            while actor._budgets._untold:
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.1)

    run(settings, spend, HOOKED)
    run(settings, look, raised)
    assert len(pending_messages(open_database(settings.database_url))) == 1


DIALLED = POLICY.replace("tuner: fixed", "tuner: goodput, objective: energy").replace("reject", "dial")


def test_an_exceeded_budget_dials_its_cohort_to_cost_and_the_journal_replays(
    settings: Settings, used: Any, make_worker_window: Any, make_cohort_window: Any
) -> None:
    async def act(actor: ControllerActor) -> None:
        for i in range(12):
            counts = (StepCount(2, 1, False, 20), StepCount(2, 2, False, 10))
            profile = tuple(ProfileCell(1, k, 100, 0.02 + 0.002 * k, 0.001 * k) for k in (0, 2)) if i == 0 else ()
            at = time.time() - 1
            window = make_worker_window(
                0, (make_cohort_window("default", counts, 2),), id=WindowId("w", 1, i), started_at=at, device="gpu",
                busy_s=1.0, profile=profile,
            )  # fmt: skip
            await actor.report([Report(window)])
            actor._tick()

    run(settings, act, DIALLED)
    engine = open_database(settings.database_url)
    with engine.connect() as connection:
        events = connection.scalars(sa.select(ControlEvent.value).where(ControlEvent.kind == "rates")).all()
        sentences = connection.scalars(sa.select(DecisionEntry.sentence).order_by(DecisionEntry.at)).all()
    assert [event["dialled"] for event in events] == [[], ["default"]]
    assert "(cost instead of energy: a budget is exceeded)" in sentences[-1]
    flags = ["replay", "--since", "1h", "--database-url", settings.database_url, "--json"]
    result = CliRunner().invoke(policy_app, flags)
    assert (result.exit_code, json.loads(result.stdout)["ok"]) == (0, True), result.stdout


def test_a_kill_switch_and_a_raised_budget_while_a_cohort_is_dialled_replay_too(
    settings: Settings, make_worker_window: Any, make_cohort_window: Any
) -> None:
    async def act(actor: ControllerActor) -> list[tuple[str, ...]]:
        dialled = []
        for i in range(24):
            counts = (StepCount(2, 1, False, 20), StepCount(2, 2, False, 10))
            profile = tuple(ProfileCell(1, k, 100, 0.02 + 0.002 * k, 0.001 * k) for k in (0, 2)) if i == 0 else ()
            window = make_worker_window(
                0, (make_cohort_window("default", counts, 2),), id=WindowId("w", 1, i), started_at=time.time() - 1,
                device="gpu", busy_s=1.0, profile=profile,
            )  # fmt: skip
            await actor.report([Report(window)])
            if i == 14:
                await actor.set_kill_switch("zero", "ada", "dear")
            elif i == 17:
                await actor.set_kill_switch("off", "ada", "better")
            elif i == 20:
                await actor.apply_policy(DIALLED.replace("usd: 0.10", "usd: 10"), "ada", "more")
            actor._tick()
            dialled.append(actor._budgets.dialled)
        return dialled

    dialled = run(settings, act, DIALLED)
    assert [dialled.index(("default",)), dialled.count(("default",)), dialled[-1]] == [9, 11, ()]
    flags = ["replay", "--since", "1h", "--database-url", settings.database_url, "--json"]
    result = CliRunner().invoke(policy_app, flags)
    assert (result.exit_code, json.loads(result.stdout)["ok"]) == (0, True), result.stdout

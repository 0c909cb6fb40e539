"""A journal replayed through the production controller gives the decisions on record, to the last digit."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from controlplane.controller import Controller
from controlplane.decision.decide import Rates
from controlplane.experiment_control import ExperimentControl
from controlplane.policy import parse_policy
from controlplane.policy_cli import policy_app
from controlplane.replay import Difference, Orders, ReplayError, compare, replay
from controlplane.rollout import StageOrder
from controlplane.store import recorded
from controlplane.store.engine import open_database
from controlplane.store.journal import SqlJournal
from controlplane.store.policies import rollouts
from controlplane.store.queries import DecisionRow
from controlplane.store.time_range import TimeRange
from controlplane.telemetry import (
    CohortWindow,
    LatencyCell,
    LatencyHistogram,
    ProfileCell,
    Report,
    StepCell,
    StepCount,
    WorkerWindow,
)

Make = Callable[..., Any]
AT = 1_790_000_000.0
EVER = TimeRange(0, 2 * AT)
EPOCH = 1_790_000_000_000_000_001
TEXT = """
version: 1
cohorts:
  - {name: code, match: {api_key: [a]}, slo: {tpot_p95: 90ms}, guard: {hold: 3s, min_samples: 20, probe_every: 20s},
     speculation: {tuner: TUNER, ladder: [0, 1, 2, 4], start: 2, fallback: 1}}
  - {name: rest, match: {}, guard: {hold: 2s, min_samples: 20, probe_every: 20s},
     speculation: {tuner: threshold, ladder: [0, 1, 2], start: 1, fallback: 0}}
"""


def windows(
    rng: random.Random, i: int, plan_k: Callable[[str], int], make: Make, steps: int = 20
) -> Iterator[WorkerWindow]:
    """A second of two workers, whose drafter gets worse after 60 s and better again after 120 s."""
    accept = 0.35 if 60 <= i < 120 else 0.9
    for worker in range(2):
        cohorts = []
        for cohort in ("code", "rest"):
            k, tally = plan_k(cohort), dict[tuple[int, int], int]()
            for _ in range(steps):
                kept = next((j for j in range(k) if rng.random() > accept), k)
                tally[k, kept] = tally.get((k, kept), 0) + 1
            counts = tuple(StepCount(d, a, False, n) for (d, a), n in sorted(tally.items()))
            seconds = steps * (0.02 + 0.001 * k) * rng.uniform(1 - 2 / steps, 1 + 2 / steps)
            tpot = LatencyHistogram().observe(rng.uniform(0.02, 0.03))
            cohorts.append(CohortWindow(cohort, (StepCell(1, k, counts, seconds),), requests_finished=1, tpot=tpot))
        profile = tuple(ProfileCell(2, k, 100, 0.02 + 0.002 * k, 0.001 * k) for k in (0, 1, 2, 4)) if i == 1 else ()
        window = make(i, tuple(cohorts), started_at=AT + i - 1 + 0.01 * worker, running=2)
        yield replace(
            window,
            id=window.id._replace(worker=f"worker-{worker}"),
            busy_s=rng.uniform(0.3, 0.9),
            energy_uj=round(rng.uniform(20e6, 40e6)),
            energy_source="counter",
            latency=(LatencyCell(2, 6, 20, 20 * 0.024 * rng.uniform(0.9, 1.1), 4000, 0.02),),
            profile=profile,
        )


def live(
    url: str,
    make: Make,
    tuner: str,
    seconds: int = 150,
    staged: str | None = None,
    abort_at: int | None = None,
    experiment: bool = False,
    dialled: bool = False,
) -> None:
    """A controller on that ledger for a while: two policies, a kill switch, a drafter that changes.

    Its windows come in any order. staged: the unit of a rollout that is begun after 5 s, without the other policy.
    dialled: a budget of `code` is exceeded from 20 s to 60 s.
    """
    rng, journal = random.Random(3), SqlJournal(open_database(url))
    steps = 20 if staged is None or abort_at else 200  # a promotion needs little noise
    policy = parse_policy(TEXT.replace("TUNER", tuner))
    controller = Controller(policy, journal, epoch=EPOCH, first_version=41)
    controller.apply_policy(policy, by="kadence", why="start", now=AT)
    control = ExperimentControl(controller, journal, lambda: AT)
    if experiment:
        control.start({"unit": "window", "holdout": 0.5, "window_s": 60}, "ann", "to see", seed=5)
    for i in range(1, seconds):
        now = AT + i + rng.uniform(0.05, 0.1)
        if i == 40 and not staged:
            wider = parse_policy(policy.text.replace("hold: 3s", "hold: 4s"))
            controller.apply_policy(wider, by="ann", why="calmer", now=now - 0.01)
        if i in (90, 100):
            mode = "zero" if i == 90 else "off"
            controller.set_kill_switch(mode, by="ann", why="drill", now=now - 0.01)  # type: ignore[arg-type]
        if i == 3:
            controller.set_rates(Rates(per_second=0.0005, per_joule=1e-7))
        if dialled and i in (20, 60):
            controller.set_rates(Rates(0.0005, 1e-7, ("code",) if i == 20 else ()))
        if staged and i == 5:
            changed = parse_policy(policy.text.replace("start: 2", "start: 4").replace("hold: 2s", "hold: 1s"))
            order = StageOrder(0.5, staged, min_windows=30, max_s=900)  # type: ignore[arg-type]
            controller.apply_policy(changed, by="bob", why="deeper", now=now - 0.02, rollout=order)
        if i == abort_at:
            controller.abort_rollout(by="bob", why="enough", now=now - 0.02)
        control.advance(now - 0.005)
        plan = controller.plan
        seen = list(windows(rng, i, lambda c, plan=plan, now=now: plan.k_for(c, 2, now), make, steps))  # type: ignore[misc]
        rng.shuffle(seen)
        for window in seen:
            controller.observe(Report(window))
        controller.tick(now)
    journal.close()


def again(url: str) -> tuple[list[DecisionRow], list[DecisionRow]]:
    """The decisions on record, and those made again."""
    engine = open_database(url)
    replayed = list(replay(recorded.ticks(engine, EPOCH, EVER), orders(engine)))
    return recorded.decisions(engine, EVER), replayed


def orders(engine: sa.Engine) -> Orders:
    return Orders(recorded.applied_policies(engine, 2 * AT), rollouts(engine), recorded.events(engine, EPOCH))


TUNERS = ["threshold", "goodput", "goodput, slots: ragged, objective: cost", "goodput, objective: energy"]


@pytest.mark.parametrize("tuner", TUNERS)
def test_a_journal_replays_to_the_decisions_on_record(
    sqlite_ledger_url: str, make_worker_window: Make, tuner: str
) -> None:
    live(sqlite_ledger_url, make_worker_window, tuner)
    stored, replayed = again(sqlite_ledger_url)
    assert compare(stored, replayed) == []
    assert len({row.new_k for row in stored}) > 2
    assert {"policy_applied", "kill_switch"} & {row.reason for row in stored}


def test_a_journal_of_a_cohort_that_was_dialled_to_cost_replays_too(
    sqlite_ledger_url: str, make_worker_window: Make
) -> None:
    live(sqlite_ledger_url, make_worker_window, "goodput, objective: energy", seconds=80, dialled=True)
    stored, replayed = again(sqlite_ledger_url)
    assert compare(stored, replayed) == []
    said = [(row.at - AT, "(cost instead of energy: a budget is exceeded)" in row.sentence) for row in stored]
    assert {is_dialled for at, is_dialled in said if not 20 <= at < 60.5} == {False}
    assert any(is_dialled for at, is_dialled in said if 20 <= at < 60.5)


@pytest.mark.parametrize(
    ("unit", "abort_at", "seconds", "stage"),
    [("replicas", 30, 36, "aborted"), ("cohorts", 80, 85, "aborted"), ("replicas", None, 59, "promoted")],
)
def test_a_journal_with_a_rollout_replays_too(
    sqlite_ledger_url: str, make_worker_window: Make, unit: str, abort_at: int | None, seconds: int, stage: str
) -> None:
    live(sqlite_ledger_url, make_worker_window, "goodput", seconds, staged=unit, abort_at=abort_at)
    stored, replayed = again(sqlite_ledger_url)
    assert compare(stored, replayed) == []
    assert [entry.stage for entry in rollouts(open_database(sqlite_ledger_url))] == [stage]


def test_a_controller_that_went_on_from_an_earlier_one_replays_too(
    sqlite_ledger_url: str, make_worker_window: Make
) -> None:
    live(sqlite_ledger_url, make_worker_window, "goodput", seconds=30)
    engine = open_database(sqlite_ledger_url)
    journal, policy = SqlJournal(engine), parse_policy(TEXT.replace("TUNER", "goodput"))
    before = [window for tick in recorded.ticks(engine, EPOCH, EVER) for window in tick.windows][-10:]
    later = Controller(policy, journal, epoch=EPOCH + 1, first_version=90)
    later.apply_policy(policy, by="kadence", why="restart", now=AT + 100)
    later.resume({"code": (4,) * 9, "rest": (1,) * 9}, before, AT + 100.5)
    rng = random.Random(5)
    for i in range(101, 130):
        for window in windows(rng, i, lambda c: later.plan.k_for(c, 2, AT + i), make_worker_window):  # noqa: B023
            later.observe(Report(window))
        later.tick(AT + i + 0.1)
    journal.close()
    told = Orders(recorded.applied_policies(engine, 2 * AT), (), recorded.events(engine, EPOCH + 1))
    replayed = list(replay(recorded.ticks(engine, EPOCH + 1, EVER), told))
    assert replayed
    assert compare(recorded.decisions(engine, TimeRange(AT + 100, 2 * AT)), replayed) == []


def test_a_changed_window_is_found(sqlite_ledger_url: str, make_worker_window: Make) -> None:
    live(sqlite_ledger_url, make_worker_window, "threshold", seconds=70)
    with open_database(sqlite_ledger_url).begin() as connection:
        cells = [[1, 2, [[2, 0, False, 500]], 5.0]]
        wrong = (recorded.WindowCohort.sequence == 20, recorded.WindowCohort.cohort == "code")
        connection.execute(sa.update(recorded.WindowCohort).where(*wrong).values(cells=cells))
    difference = compare(*again(sqlite_ledger_url))[0]
    assert difference.cohort == "code"
    assert difference.at >= AT + 20


def test_a_journal_whose_beginning_is_gone_cannot_be_replayed(sqlite_ledger_url: str, make_worker_window: Make) -> None:
    live(sqlite_ledger_url, make_worker_window, "threshold", seconds=5)
    engine = open_database(sqlite_ledger_url)
    with pytest.raises(ReplayError, match="no longer on record"):
        list(replay(recorded.ticks(engine, EPOCH, TimeRange(AT + 2, 2 * AT)), orders(engine)))


def row(**changes: Any) -> DecisionRow:
    values = {"at": AT, "cohort": "code", "load_bucket": 0, "old_k": 2, "new_k": 4, "reason": "raised", "sentence": "s",
              "samples": 9, "accept_at": (0.5,), "plan_version": 1, "policy_revision": "r", **changes}  # fmt: skip
    return DecisionRow(**values)


@pytest.mark.parametrize(
    ("stored", "replayed", "says"),
    [
        ([row()], [row()], []),
        ([row()], [row(new_k=2)], ["new_k 4 on record, 2 again"]),
        ([row()], [row(sentence="t")], ["sentence 's' on record, 't' again"]),
        ([row(reason="kill_switch")], [row(reason="kill_switch", sentence="t")], []),
        ([row()], [], ["is on record, and was not made again"]),
        ([], [row()], ["is not on record"]),
        ([row(), row(load_bucket=1)], [row(load_bucket=1), row()], []),
    ],
)
def test_differences_are_named(stored: list[DecisionRow], replayed: list[DecisionRow], says: list[str]) -> None:
    found: list[Difference] = compare(stored, replayed)
    assert [difference.sentence for difference in found] == says


def command(url: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    flags = ["replay", "--since", "2026-09-01", "--until", "2026-10-01", "--database-url", url, "--json", *arguments]
    result = CliRunner().invoke(policy_app, flags)
    return result.exit_code, json.loads(result.stdout)


def test_the_command_says_that_all_is_as_on_record(sqlite_ledger_url: str, make_worker_window: Make) -> None:
    live(sqlite_ledger_url, make_worker_window, "threshold", seconds=30)
    code, said = command(sqlite_ledger_url)
    (controller,) = said["controllers"]
    assert (code, said["ok"], controller["epoch"], controller["ticks"]) == (0, True, EPOCH, 30)
    assert controller["decisions"] > 0


def test_a_range_that_begins_later_is_replayed_from_the_controllers_start(
    sqlite_ledger_url: str, make_worker_window: Make
) -> None:
    live(sqlite_ledger_url, make_worker_window, "threshold", seconds=80)
    code, said = command(sqlite_ledger_url, "--since", str(datetime.fromtimestamp(AT + 50, UTC).isoformat()))
    assert (code, said["controllers"][0]["ticks"]) == (0, 81)
    assert said["controllers"][0]["decisions"] > 0


def test_the_command_names_what_differs_and_exits_with_1(sqlite_ledger_url: str, make_worker_window: Make) -> None:
    live(sqlite_ledger_url, make_worker_window, "threshold", seconds=30)
    with open_database(sqlite_ledger_url).begin() as connection:
        connection.execute(sa.update(recorded.DecisionEntry).values(samples=12345))
    code, said = command(sqlite_ledger_url)
    (controller,) = said["controllers"]
    assert (code, controller["differences"]) == (1, controller["decisions"])
    assert "samples 12345 on record" in controller["shown"][0]


def test_a_ledger_without_ticks_has_nothing_to_replay(sqlite_ledger_url: str) -> None:
    assert command(sqlite_ledger_url) == (0, {"ok": True, "controllers": []})


def test_a_range_that_ends_before_it_begins_is_wrong_use(sqlite_ledger_url: str) -> None:
    code, said = command(sqlite_ledger_url, "--since", "2026-11-01")
    assert (code, "--since" in said["message"]) == (2, True)


@pytest.mark.parametrize("tuner", TUNERS[:2])
def test_a_journal_with_a_savings_experiment_replays_too(
    sqlite_ledger_url: str, make_worker_window: Make, tuner: str
) -> None:
    """Control windows in between: what was seen in them is on record, and taught nothing either time."""
    live(sqlite_ledger_url, make_worker_window, tuner, experiment=True)
    stored, replayed = again(sqlite_ledger_url)
    assert compare(stored, replayed) == []
    assert {row.new_k for row in stored if row.reason == "experiment"} > {0}

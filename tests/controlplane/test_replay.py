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
from controlplane.policy import parse_policy
from controlplane.policy_cli import policy_app
from controlplane.replay import Difference, ReplayError, compare, replay
from controlplane.store import recorded
from controlplane.store.engine import open_database
from controlplane.store.journal import SqlJournal
from controlplane.store.queries import DecisionRow
from controlplane.store.time_range import TimeRange
from controlplane.telemetry import CohortWindow, LatencyCell, ProfileCell, Report, StepCell, StepCount, WorkerWindow

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


def windows(rng: random.Random, i: int, plan_k: Callable[[str], int], make: Make) -> Iterator[WorkerWindow]:
    """A second of two workers, whose drafter gets worse after 60 s and better again after 120 s."""
    accept = 0.35 if 60 <= i < 120 else 0.9
    for worker in range(2):
        cohorts = []
        for cohort in ("code", "rest"):
            k, tally = plan_k(cohort), dict[tuple[int, int], int]()
            for _ in range(20):
                kept = next((j for j in range(k) if rng.random() > accept), k)
                tally[k, kept] = tally.get((k, kept), 0) + 1
            counts = tuple(StepCount(d, a, False, n) for (d, a), n in sorted(tally.items()))
            seconds = 20 * (0.02 + 0.001 * k) * rng.uniform(0.9, 1.1)
            cohorts.append(CohortWindow(cohort, (StepCell(1, k, counts, seconds),)))
        profile = tuple(ProfileCell(2, k, 100, 0.02 + 0.002 * k, 0.001 * k) for k in (0, 1, 2, 4)) if i == 1 else ()
        window = make(i, tuple(cohorts), started_at=AT + i - 1 + 0.01 * worker, running=2)
        yield replace(
            window,
            id=window.id._replace(worker=f"worker-{worker}"),
            latency=(LatencyCell(2, 6, 20, 20 * 0.024 * rng.uniform(0.9, 1.1), 4000, 0.02),),
            profile=profile,
        )


def live(url: str, make: Make, tuner: str, seconds: int = 150) -> None:
    """A controller on that ledger for a while: two policies, a kill switch, a drafter that changes."""
    rng, journal = random.Random(3), SqlJournal(open_database(url))
    policy = parse_policy(TEXT.replace("TUNER", tuner))
    controller = Controller(policy, journal, epoch=EPOCH, first_version=41)
    controller.apply_policy(policy, by="kadence", why="start", now=AT)
    for i in range(1, seconds):
        now = AT + i + rng.uniform(0.05, 0.1)
        if i == 40:
            wider = parse_policy(policy.text.replace("hold: 3s", "hold: 4s"))
            controller.apply_policy(wider, by="ann", why="calmer", now=now - 0.01)
        if i in (90, 100):
            mode = "zero" if i == 90 else "off"
            controller.set_kill_switch(mode, by="ann", why="drill", now=now - 0.01)  # type: ignore[arg-type]
        plan = controller.plan
        for window in windows(rng, i, lambda c, plan=plan, now=now: plan.k_for(c, 2, now), make):  # type: ignore[misc]
            controller.observe(Report(window))
        controller.tick(now)
    journal.close()


def again(url: str) -> tuple[list[DecisionRow], list[DecisionRow]]:
    """The decisions on record, and those made again."""
    engine = open_database(url)
    replayed = list(replay(recorded.ticks(engine, EPOCH, EVER), recorded.applied_policies(engine, 2 * AT)))
    return recorded.decisions(engine, EVER), replayed


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
        list(
            replay(recorded.ticks(engine, EPOCH, TimeRange(AT + 2, 2 * AT)), recorded.applied_policies(engine, 2 * AT))
        )


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

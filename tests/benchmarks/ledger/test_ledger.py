"""`bench ledger`, small, on a real SQLite file; what it counts, and what it calls a problem."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
import typer
from typer.testing import CliRunner

from benchmarks.ledger import record as recording
from benchmarks.ledger.command import ledger, problems, step_problems
from benchmarks.ledger.record import POLICY, Recorded, record
from benchmarks.ledger.step_cost import StepCost, measure_steps
from benchmarks.ledger.traffic import Fleet, workers_for
from controlplane.policy import parse_policy
from controlplane.store import journal
from controlplane.store.models import Request
from controlplane.window_problems import window_problem
from workers.plan_client import unplanned

GOOD = Recorded("sqlite", "sqlite 3", 2000, 60, 0, 1.5, 0.0, 0, 0.0, 90.0, 1.0, 20.0)
CHEAP = StepCost(0.05, 0.2, 1.0, 1000)

app = typer.Typer()
app.command()(ledger)


@pytest.fixture(scope="module")
def measured():
    return measure_steps(170, unplanned(parse_policy(POLICY, source="test")))


@pytest.fixture(scope="module")
def fleet(measured) -> Fleet:
    return Fleet(tuple(measured[1]), 100, 1_790_000_000_000_000_000)


def test_the_reports_of_an_engine_are_ones_that_a_controller_takes(measured) -> None:
    assert [window_problem(report.window) for report in measured[1]] == [None] * len(measured[1])


def test_a_second_of_the_engine_ends_as_many_requests_as_its_windows_say(measured) -> None:
    for report in measured[1]:
        ended = sum(tenant.requests for cohort in report.window.cohorts for tenant in cohort.tenants)
        assert ended == len(report.requests) > 0


def test_a_fleet_ends_requests_at_its_rate_and_never_the_same_twice(fleet) -> None:
    ids = [request.request_id for n in (1, 2) for report in fleet.second(n, 10.0 + n) for request in report.requests]
    assert len(ids) == len(set(ids)) == 2 * fleet.rate


def test_a_fleet_has_the_workers_that_its_rate_needs() -> None:
    assert workers_for(2000) == 60


def test_what_is_recorded_is_all_found_again(fleet, monkeypatch) -> None:
    monkeypatch.setattr(recording.time, "sleep", lambda s: None)
    found = record("sqlite", fleet, seconds=2, burst_s=1, core=None)
    assert (found.requests, found.lost) == (200, 0)
    assert found.burst_rows_per_s > 0


def test_a_row_that_never_arrived_is_counted_as_lost(fleet, monkeypatch) -> None:
    written = journal.write_items

    def lossy(connection: sa.Connection, items: list) -> None:
        written(connection, items)
        connection.execute(sa.delete(Request).where(Request.request_id == "worker-0/1/0"))

    monkeypatch.setattr(recording.time, "sleep", lambda s: None)
    monkeypatch.setattr(journal, "write_items", lossy)
    assert record("sqlite", fleet, seconds=1, burst_s=0, core=None).lost == 1


def test_a_good_run_has_no_problem() -> None:
    assert problems(GOOD, seconds=1) + step_problems(CHEAP) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"lost": 3}, "3 of 2060 rows are lost"),
        ({"seconds": 9.0}, "the rate was not held"),
        ({"rss_growth_mb": 500.0}, "memory grew by 500.0 MB"),
    ],
)
def test_a_run_that_fell_short_says_in_what(changes, text) -> None:
    assert text in " ".join(problems(replace(GOOD, **changes), seconds=1))


def test_a_step_that_pays_too_much_is_a_problem() -> None:
    assert len(step_problems(replace(CHEAP, mean_ms=0.7))) == 2


def test_the_command_answers_with_one_object_and_a_line_of_the_file(tmp_path: Path) -> None:
    output = tmp_path / "ledger.csv"
    arguments = ["--seconds", "1", "--rate", "50", "--backend", "sqlite", "--steps", "170", "--burst", "0"]
    done = CliRunner().invoke(app, [*arguments, "--output", str(output), "--json"])
    row = json.loads(done.stdout)["rows"][0]
    assert {"backend", "rows_per_s", "lost", "step_overhead_percent", "peak_rss_mb"} <= row.keys()
    assert row["lost"] == 0
    assert [line["backend"] for line in csv.DictReader(output.read_text().splitlines())] == ["sqlite"]


def test_an_unknown_backend_is_wrong_use(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["--backend", "mysql"])
    assert done.exit_code == 2
    assert "--backend mysql: is none of sqlite, postgresql" in done.stderr

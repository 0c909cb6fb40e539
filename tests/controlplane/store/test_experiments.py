"""Experiments in the ledger: orders and windows, sums made from what was recorded, and the report of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

import controlplane.store.experiments as experiments_module
from controlplane.decision.plan import Plan
from controlplane.experiment import Run, Spec, Window
from controlplane.finops.pricing import Price, PriceSheet
from controlplane.store.engine import open_database
from controlplane.store.experiment_report import experiment_report, load_hours
from controlplane.store.experiments import (
    close_pairs,
    experiments,
    fill_windows,
    find_experiment,
    last_pair,
    measured,
    open_experiment,
    write_run,
    write_windows,
)
from controlplane.store.models import Window as WindowRow
from controlplane.store.rows import Ticked, WindowSeen
from controlplane.store.time_range import TimeRange
from controlplane.store.upkeep import prune
from controlplane.store.write import write_items
from controlplane.telemetry import StepCount

Make = Callable[..., Any]
ON_SQLITE = pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
"""Where nothing depends on the dialect."""
AT = 1_790_002_800.0  # a whole hour
RUN = Run("exp-1", Spec("window", 0.5, 60.0, 10.0, 10), 7, AT, "ann", "to see")
SHEET = PriceSheet(
    (Price("cpu-2core", "on_demand", "USD", Decimal("3.6"), "", "contract", date(2026, 1, 1), 0.0, None),)
)


@pytest.fixture
def store(ledger: sa.Engine) -> Callable[..., None]:
    """Stores items as the journal does."""

    def put(*items: Any) -> None:
        with ledger.begin() as connection:
            write_items(connection, items)

    return put


def run_of(pairs: int = 1, **spec: Any) -> tuple[Run, list[Window]]:
    run = replace(RUN, spec=replace(RUN.spec, **spec))
    return run, [replace(w, policy_revision="p1", state="done") for i in range(pairs) for w in run.windows(i)]


def seconds_of(
    window: Window, make: Make, make_cohort: Make, first: int, worker: str = "worker-0", k: int = 2, **more: Any
) -> Iterator[Any]:
    """A worker's windows, one a second, over all of an experiment's; each emits 30 tokens in half a second."""
    for i in range(int(window.ended_at - window.started_at)):
        counts = (StepCount(k, k, False, 10),) if k else (StepCount(0, 0, False, 30),)
        made = make(first + i, (make_cohort("json", counts),), started_at=window.started_at + i, **more)
        yield WindowSeen(replace(made, id=made.id._replace(worker=worker)), window.started_at + i + 1)


def test_an_order_and_its_end_are_one_row(ledger: sa.Engine, store: Any) -> None:
    store(RUN)
    store(RUN.ended("stopped", "stopped by bob: enough\0", AT + 50))
    store(RUN.ended("finished", "too late", AT + 60))
    assert experiments(ledger) == [RUN.ended("stopped", "stopped by bob: enough", AT + 50)]


def test_an_experiment_is_found_by_the_beginning_of_its_name(ledger: sa.Engine, store: Any) -> None:
    store(RUN, replace(RUN, id="exp-2", started_at=AT + 1))
    assert find_experiment(ledger, None).id == "exp-2"
    assert find_experiment(ledger, "exp-1").id == "exp-1"
    assert find_experiment(ledger, "exp-") is None
    assert find_experiment(ledger, "exp%") is None


@ON_SQLITE
def test_a_window_keeps_its_order_and_how_it_ended(ledger: sa.Engine, store: Any) -> None:
    _, windows = run_of()
    store(RUN, *(replace(w, state="running") for w in windows))
    store(*(replace(w, state="aborted", reason="kill switch") for w in windows))
    store(*windows)  # what was given up stays so
    assert [m.window.state for m in measured(ledger, RUN.id)] == ["aborted", "aborted"]
    assert sorted(m.window.started_at for m in measured(ledger, RUN.id)) == [w.started_at for w in windows]


@ON_SQLITE
def test_a_restarted_controller_gives_up_the_pair_and_finds_the_experiment(ledger: sa.Engine, store: Any) -> None:
    _, windows = run_of(2)
    store(RUN, *windows[:2], *(replace(w, state="running") for w in windows[2:]))
    assert close_pairs(ledger, "the controller was restarted") == 2
    assert open_experiment(ledger) == (RUN, 1)
    assert (last_pair(ledger, RUN.id), last_pair(ledger, "exp-none")) == (1, -1)
    assert measured(ledger, RUN.id)[-1].window.reason == "the controller was restarted"


def test_sums_are_those_of_the_measured_part(
    ledger: sa.Engine, store: Any, make_worker_window: Make, make_cohort_window: Make
) -> None:
    run, (first, second) = run_of()
    store(run, first, second)
    of = {w.arm: w for w in (first, second)}
    store(
        *seconds_of(of["treatment"], make_worker_window, make_cohort_window, 1, energy_uj=1000, energy_source="counter")
    )
    store(*seconds_of(of["control"], make_worker_window, make_cohort_window, 61, k=0))
    control, treatment = measured(ledger, run.id)
    assert (treatment.windows, treatment.sums.seconds_ns, treatment.sums.busy_ns) == (50, 50 * 10**9, 25 * 10**9)
    assert (treatment.sums.tokens, treatment.sums.draft_tokens) == (50 * 30, 50 * 20)
    assert (treatment.sums.energy_uj, treatment.sums.measured_tokens) == (50_000, 1500)
    assert (treatment.sums.early_busy_ns, treatment.sums.early_tokens) == (25 * 10**9 // 2, 750)
    assert treatment.machine_ns == {"cpu-2core": 50 * 10**9}
    assert treatment.energy_sources == ("counter",)
    assert (control.sums.tokens, control.sums.draft_tokens, control.sums.energy_uj) == (1500, 0, None)


def test_requests_belong_to_the_window_in_which_they_arrived(
    ledger: sa.Engine, store: Any, make_request_record: Make
) -> None:
    run, (first, second) = run_of()
    store(run, first, second)
    arrived = {"before": -1.0, "in": 5.0, "late end": 49.0, "after": 51.0}
    for name, seconds in arrived.items():
        at = first.burn_in_end + seconds
        store(make_request_record(name, started_at=at, finished_at=at + 20, completion_tokens=100, prompt_tokens=7))
    failed = make_request_record("failed", started_at=first.burn_in_end + 6, finish_reason="error", ttft_s=None,
                                 tpot_s=None, completion_tokens=0, finished_at=first.burn_in_end + 7)  # fmt: skip
    store(failed)
    (found,) = [m for m in measured(ledger, run.id) if m.window.arm == first.arm]
    assert (found.sums.arrivals, found.sums.failed, found.sums.prompt_tokens) == (3, 1, 7 + 7 + 10)
    assert found.sums.lengths[5] == 2  # over 64, at most 128
    assert (found.sums.ttft.total, found.sums.tpot.total) == (2, 2)
    assert found.sums.tpot.sum_s == pytest.approx(0.04)


@ON_SQLITE
def test_a_window_that_arrives_late_is_in_the_next_sums_and_a_repeated_one_is_not(
    ledger: sa.Engine, store: Any, make_worker_window: Make, make_cohort_window: Make
) -> None:
    run, (first, second) = run_of()
    store(run, first, second)
    seen = list(seconds_of(first, make_worker_window, make_cohort_window, 1))
    store(*seen[:-1])
    now = second.ended_at
    assert fill_windows(ledger, now) == 2
    store(seen[-1], *seen)
    assert fill_windows(ledger, now + 10) == 0  # not stale yet
    assert fill_windows(ledger, now + 400) == 1
    assert fill_windows(ledger, now + 800) == 0
    with ledger.connect() as connection:
        stored = connection.execute(sa.text("SELECT windows, tokens FROM experiment_window WHERE windows > 0")).all()
    assert [tuple(map(int, row)) for row in stored] == [(50, 1500)]


def test_sums_outlive_the_windows_they_were_made_from(
    ledger: sa.Engine, store: Any, make_worker_window: Make, make_cohort_window: Make, make_request_record: Make
) -> None:
    run, (first, second) = run_of()
    store(run, first, second, make_request_record("r", started_at=first.burn_in_end + 1, finished_at=first.ended_at))
    store(*seconds_of(first, make_worker_window, make_cohort_window, 1))
    before = measured(ledger, run.id)
    prune(ledger, second.ended_at + 5000)
    with ledger.connect() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(WindowRow)) == 0
    assert measured(ledger, run.id) == before
    assert max(m.sums.tokens for m in before) == 1500


@ON_SQLITE
def test_a_slow_writer_of_sums_takes_nothing_back_that_another_found_since(
    ledger: sa.Engine, store: Any, make_worker_window: Make, make_cohort_window: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller and `kadence db prune` may both be at it; what was pruned meanwhile could not be made again."""
    run, (first, second) = run_of()
    seconds = list(seconds_of(first, make_worker_window, make_cohort_window, 1))
    store(run, first, second, *seconds[:40])
    real, is_first = experiments_module.newer, [True]

    def slow(connection: sa.Connection, row: Any) -> dict[str, Any]:
        found = real(connection, row)
        if is_first[0] and row["started_at"] == first.started_at:
            is_first[0] = False
            connection.rollback()
            store(*seconds[40:])
            fill_windows(ledger, second.ended_at)
        return found

    monkeypatch.setattr(experiments_module, "newer", slow)
    fill_windows(ledger, second.ended_at)
    with ledger.connect() as connection:
        kept = sa.text("SELECT max(windows) FROM experiment_window")
        assert connection.scalar(kept) == 50


@ON_SQLITE
def test_pruning_leaves_a_window_that_is_not_over_what_it_is_made_of(
    ledger: sa.Engine, store: Any, make_worker_window: Make, make_cohort_window: Make
) -> None:
    """Half of it would pass for all of it once it is over."""
    run = replace(RUN, spec=replace(RUN.spec, window_s=3600.0), started_at=float(int(time.time()) - 1800))
    first, second = run.windows(0)
    store(run, first, second)
    store(*seconds_of(replace(first, ended_at=first.started_at + 60), make_worker_window, make_cohort_window, 1))
    before = measured(ledger, run.id)
    prune(ledger, time.time())
    assert measured(ledger, run.id) == before
    assert max(m.sums.seconds_ns for m in before) == 50 * 10**9
    close_pairs(ledger, "the controller was restarted")
    assert prune(ledger, time.time()).windows == 60


def test_replicas_without_a_drafter_are_the_control_and_nobody_else(
    ledger: sa.Engine, store: Any, make_worker_window: Make, make_cohort_window: Make
) -> None:
    run, (control, treatment) = run_of(unit="replica")
    store(run, control, treatment)
    store(*seconds_of(control, make_worker_window, make_cohort_window, 1, worker="holdout-ab", k=0))
    for worker in ("worker-1", "worker-2"):
        store(*seconds_of(control, make_worker_window, make_cohort_window, 1, worker=worker))
    found = {m.window.arm: m.sums for m in measured(ledger, run.id)}
    assert found["control"].seconds_ns == 50 * 10**9
    assert found["treatment"].seconds_ns == 100 * 10**9
    assert found["control"].draft_tokens == 0


@ON_SQLITE
def test_a_replica_without_a_drafter_is_in_no_arm_of_windows(
    ledger: sa.Engine, store: Any, make_worker_window: Make, make_cohort_window: Make
) -> None:
    run, (first, second) = run_of()
    store(run, first, second)
    store(*seconds_of(first, make_worker_window, make_cohort_window, 1, worker="holdout-ab", k=0))
    assert {m.sums.seconds_ns for m in measured(ledger, run.id)} == {0}


@pytest.fixture
def experiment(
    sqlite_ledger_url: str, make_worker_window: Make, make_cohort_window: Make, make_request_record: Make
) -> tuple[sa.Engine, Run]:
    """Twelve pairs, in which a token takes 0.8 of the busy time with speculation; one of them was given up."""
    engine, rng, sequence = open_database(sqlite_ledger_url), np.random.default_rng(1), 1
    run, windows = run_of(12)
    windows[-2:] = [replace(w, state="aborted", reason="the kill switch was at zero") for w in windows[-2:]]
    items: list[Any] = [run, *windows]
    for n, window in enumerate(windows):
        factor = 0.8 if window.arm == "treatment" else 1.0
        busy = 0.8 * factor * float(np.exp(rng.normal(0, 0.01)))
        for i in range(0, 60, 5):  # every fifth second stands for five
            counts = (StepCount(2, 2, False, 10),) if window.arm == "treatment" else (StepCount(0, 0, False, 30),)
            made = make_worker_window(
                sequence, (make_cohort_window("json", counts),), started_at=window.started_at + i, busy_s=5 * busy,
                ended_at=window.started_at + i + 5,
            )  # fmt: skip
            items.append(WindowSeen(made, made.ended_at))
            at = window.started_at + i
            items.append(make_request_record(f"{n}-{i}", started_at=at, finished_at=at + 1, tpot_s=0.02 * factor))
            sequence += 1
    with engine.begin() as connection:
        write_items(connection, items)
    return engine, run


def test_the_report_says_the_saving_its_interval_and_what_it_rests_on(experiment: tuple[sa.Engine, Run]) -> None:
    engine, run = experiment
    report = experiment_report(engine, run, SHEET, AT + 86_400)
    found = report.savings["capacity"]
    assert found.pairs == 11
    assert found.low < 0.2 < found.high
    assert report.is_saving
    assert report.headline.startswith("a saving of 19.9% of capacity (interval 19.")
    assert report.savings["cash"].share == pytest.approx(0.0, abs=1e-9)
    assert report.savings["energy"].share is None
    assert [tuple(each) for each in report.refused] == [(11, "the kill switch was at zero")]
    assert report.revisions == ("p1",)
    assert any("stayed loaded" in line for line in report.not_said)


@ON_SQLITE
def test_a_price_that_changes_between_the_windows_of_a_pair_is_no_saving(
    ledger: sa.Engine, store: Any, make_worker_window: Make, make_cohort_window: Make
) -> None:
    run = replace(RUN, started_at=AT + 3540)
    windows = [replace(w, state="done") for w in run.windows(0)]  # the second one begins with the hour
    store(run, *windows)
    for n, window in enumerate(windows):
        k = 0 if window.arm == "control" else 2
        store(*seconds_of(window, make_worker_window, make_cohort_window, 100 * n + 1, k=k))
    (cheap,), hour = SHEET.prices, AT + 3600
    dear = replace(cheap, per_hour=Decimal("7.2"), effective_from=hour)
    report = experiment_report(ledger, run, PriceSheet((replace(cheap, effective_to=hour), dear)), AT + 86_400)
    assert (report.savings["cash"].pairs, report.savings["cash"].share) == (1, pytest.approx(0.0))


def test_the_report_as_json_holds_what_a_page_needs(experiment: tuple[sa.Engine, Run]) -> None:
    engine, run = experiment
    said = experiment_report(engine, run, SHEET, AT + 86_400).as_json()
    assert (said["greyed_out"], said["pairs"]["used"], said["pairs"]["pending"]) == (False, 11, 0)
    assert said["savings"]["capacity"]["estimand"] == "busy machine seconds per emitted token"
    assert {rail["name"]: rail["verdict"] for rail in said["guardrails"]}["output length"] == "kept"
    assert said["projection"]["currency"] == "USD"


def test_a_control_window_in_which_tokens_were_drafted_is_none(experiment: tuple[sa.Engine, Run]) -> None:
    engine, run = experiment
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE window_cohort SET draft_tokens = 5 WHERE draft_tokens = 0"))
    report = experiment_report(engine, run, SHEET, AT + 86_400)
    assert report.savings["capacity"].pairs == 0
    assert "tokens were drafted in its control window" in report.refused[0].reason
    assert report.headline.startswith("no verdict yet")


@ON_SQLITE
def test_an_hour_of_the_month_has_its_load_its_busy_time_and_what_that_cost(
    ledger: sa.Engine, store: Any, make_worker_window: Make, make_cohort_window: Make
) -> None:
    _, (first, _) = run_of()
    store(*seconds_of(first, make_worker_window, make_cohort_window, 1))
    (hour,) = load_hours(ledger, TimeRange(AT, AT + 3600), SHEET, "on_demand")
    assert hour.busy_ns == 30 * 10**9
    assert hour.busy_nano == 30 * 10**6  # 3.60 an hour is a thousandth a second
    assert [h.busy_nano for h in load_hours(ledger, TimeRange(AT, AT + 3600), SHEET, "spot")] == [None]


@ON_SQLITE
def test_a_tick_beside_an_experiment_is_stored_too(ledger: sa.Engine, store: Any) -> None:
    plan = Plan(1, 1, AT, AT + 10, {}, {}, "p1", arm="control")
    store(Ticked(plan, AT), RUN)
    with ledger.begin() as connection:
        write_run(connection, RUN)
        write_windows(connection, [])
    assert experiments(ledger) == [RUN]


@ON_SQLITE
def test_what_can_no_longer_be_made_is_not_tried(
    ledger: sa.Engine, store: Any, make_worker_window: Make, make_cohort_window: Make
) -> None:
    run, (first, second) = run_of()
    store(run, first, second)
    store(*seconds_of(second, make_worker_window, make_cohort_window, 1))
    far = replace(run, id="exp-2", started_at=AT - 86_400)
    store(far, *far.windows(0))
    assert fill_windows(ledger, second.ended_at + 90_000, settled_too=True) == 2
    with ledger.connect() as connection:
        filled = connection.execute(sa.text("SELECT experiment FROM experiment_window WHERE filled_at > 0")).scalars()
        assert set(filled) == {"exp-1"}

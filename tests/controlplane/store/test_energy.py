"""What machines drew over time, on both databases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from controlplane.store.energy import batch_series, power_series, rolled_up_power
from controlplane.store.rows import WindowSeen
from controlplane.store.time_range import TimeRange
from controlplane.store.write import write_items
from controlplane.telemetry import StepCount

Make = Callable[..., Any]
AT = 1_790_002_800.0  # a whole hour
HOUR = TimeRange(AT, AT + 3600)
ON_SQLITE = pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)


@pytest.fixture
def seen(ledger: sa.Engine, make_worker_window: Make, make_cohort_window: Make) -> Callable[..., None]:
    """Stores a window of one second of a worker: half of it busy, 20 drafts of which 15 were kept, 25 tokens."""

    def put(worker: str, sequence: int, **changes: Any) -> None:
        cohort = make_cohort_window("json", (StepCount(2, 1, False, 5), StepCount(2, 2, False, 5)))
        made = make_worker_window(sequence, (cohort,), started_at=AT + sequence, **changes)
        made = replace(made, id=made.id._replace(worker=worker))
        with ledger.begin() as connection:
            write_items(connection, [WindowSeen(made, made.started_at + 1)])

    return put


def test_power_is_measured_energy_over_the_time_that_it_is_of(ledger: sa.Engine, seen: Any) -> None:
    seen("a", 1, energy_uj=40_000_000, energy_source="counter")
    seen("a", 2, energy_uj=None, energy_source="counter")
    (point,) = power_series(ledger, HOUR, 10.0)
    assert (point.machine, point.sku, point.source, point.at) == ("a", "cpu-2core", "counter", AT)
    assert (point.ns, point.measured_ns, point.watts) == (2 * 10**9, 10**9, 40.0)


def test_each_machine_and_each_source_is_apart(ledger: sa.Engine, seen: Any) -> None:
    seen("a", 1, energy_uj=40_000_000, energy_source="counter")
    seen("b", 2, energy_uj=9_000_000, energy_source="model")
    seen("b", 3, energy_uj=None, energy_source="none")
    found = {(p.machine, p.source): p.watts for p in power_series(ledger, HOUR, 60.0)}
    assert found == {("a", "counter"): 40.0, ("b", "model"): 9.0, ("b", "none"): None}


@ON_SQLITE
def test_resting_energy_is_known_where_it_is_of_all_measured_windows(ledger: sa.Engine, seen: Any) -> None:
    seen("a", 1, energy_uj=40_000_000, idle_energy_uj=10_000_000, energy_source="counter")
    seen("b", 2, energy_uj=40_000_000, idle_energy_uj=10_000_000, energy_source="counter")
    seen("b", 3, energy_uj=40_000_000, energy_source="counter")
    assert {p.machine: p.resting_uj for p in power_series(ledger, HOUR, 60.0)} == {"a": 10_000_000, "b": None}


def test_the_rollups_have_the_same_energy_by_hour_and_by_day(ledger: sa.Engine, seen: Any) -> None:
    for i in (1, 2):
        seen("a", i, energy_uj=40_000_000, energy_source="counter")
    seen("b", 3, energy_uj=None, energy_source="none")
    hours = {p.source: p for p in rolled_up_power(ledger, HOUR, by_day=False)}
    assert (hours["counter"].energy_uj, hours["counter"].watts) == (80_000_000, 40.0)
    assert (hours["none"].energy_uj, hours["none"].watts) == (None, None)
    day = TimeRange(AT - 86_400, AT + 86_400)
    assert {p.energy_uj for p in rolled_up_power(ledger, day, by_day=True)} == {80_000_000, None}
    assert sum(p.idle_uj or 0 for p in hours.values()) == sum(p.idle_uj or 0 for p in power_series(ledger, HOUR, 60.0))


@ON_SQLITE
def test_an_hour_that_began_before_the_range_is_not_in_it(ledger: sa.Engine, seen: Any) -> None:
    seen("a", 1, energy_uj=40_000_000, energy_source="counter")
    assert rolled_up_power(ledger, TimeRange(AT + 1, AT + 7200), by_day=False) == []


def test_joules_by_token_stand_beside_how_full_the_batch_was(ledger: sa.Engine, seen: Any) -> None:
    seen("a", 1, energy_uj=40_000_000, idle_energy_uj=10_000_000, energy_source="counter", running=2)
    seen("a", 2, energy_uj=40_000_000, idle_energy_uj=10_000_000, energy_source="counter", running=6)
    (point,) = batch_series(ledger, HOUR, 10.0)
    assert point.running == 4.0
    assert (point.steps, point.draft_tokens, point.accepted_tokens, point.tokens) == (20, 40, 30, 50)
    assert (point.drafted_per_step, point.tokens_per_step) == (2.0, 2.5)
    assert point.active_uj + point.idle_uj == 80_000_000
    assert point.whole_j_per_token == 80 / 50
    assert point.active_j_per_token == point.active_uj / 1e6 / 50


def test_joules_by_token_are_of_measured_tokens_alone(ledger: sa.Engine, seen: Any) -> None:
    seen("a", 1, energy_uj=50_000_000, energy_source="counter")
    seen("a", 2, energy_uj=None, energy_source="counter")
    (point,) = batch_series(ledger, HOUR, 10.0)
    assert (point.tokens, point.measured_tokens, point.whole_j_per_token) == (50, 25, 2.0)


@ON_SQLITE
def test_what_was_not_measured_is_not_zero(ledger: sa.Engine, seen: Any) -> None:
    seen("a", 1, energy_uj=None, energy_source="none")
    (point,) = batch_series(ledger, HOUR, 10.0)
    assert (point.active_uj, point.active_j_per_token, point.whole_j_per_token) == (None, None, None)


@ON_SQLITE
def test_a_bucket_without_length_is_refused(ledger: sa.Engine) -> None:
    with pytest.raises(ValueError, match="bucket_s must be over 0"):
        power_series(ledger, HOUR, 0.0)

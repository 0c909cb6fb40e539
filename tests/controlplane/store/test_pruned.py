"""Which windows were pruned: few intervals, a repetition recognised, a late window counted, writers that race."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from controlplane.store.cost_models import CostHour, MachineHour, PrunedWindow
from controlplane.store.engine import open_database, writing
from controlplane.store.models import Window
from controlplane.store.pruned import merge, remember_pruned
from controlplane.store.rows import WindowSeen
from controlplane.store.upkeep import prune
from controlplane.store.write import write_items
from controlplane.telemetry import WindowId
from tests.controlplane.store.random_traffic import traffic

Make = Callable[..., Any]
AT = 1_790_000_000.0


def store(engine: sa.Engine, windows: list[Any]) -> None:
    with writing(engine).begin() as connection:
        write_items(connection, [WindowSeen(window, AT) for window in windows])


def counted(engine: sa.Engine) -> tuple[int, int]:
    """Windows that are kept, and windows that the bill has counted."""
    with engine.connect() as connection:
        kept = connection.scalar(sa.select(sa.func.count()).select_from(Window)) or 0
        return kept, int(connection.scalar(sa.select(sa.func.sum(MachineHour.windows))) or 0)


@pytest.mark.parametrize(
    ("intervals", "merged"),
    [
        ([], []),
        ([(3, 3), (1, 1), (2, 2)], [(1, 3)]),
        ([(1, 4), (6, 6), (5, 5), (9, 12)], [(1, 6), (9, 12)]),
        ([(1, 9), (3, 4), (9, 10)], [(1, 10)]),
    ],
)
def test_neighbours_become_one_interval_and_gaps_stay(
    intervals: list[tuple[int, int]], merged: list[tuple[int, int]]
) -> None:
    assert merge(intervals) == merged


def test_a_repetition_of_a_pruned_window_changes_nothing(ledger: sa.Engine, make_worker_window: Make) -> None:
    windows = [make_worker_window(i) for i in (1, 2, 3, 5)]
    store(ledger, windows)
    prune(ledger, AT + 3600)
    with ledger.connect() as connection:
        rows = connection.execute(sa.select(PrunedWindow.first, PrunedWindow.last).order_by(PrunedWindow.first)).all()
    assert [tuple(row) for row in rows] == [(1, 3), (5, 5)]
    store(ledger, windows)
    assert counted(ledger) == (0, 4)


def test_a_window_that_is_late_for_a_pruned_hour_is_counted(ledger: sa.Engine, make_worker_window: Make) -> None:
    store(ledger, [make_worker_window(i) for i in (1, 2, 3, 5)])
    prune(ledger, AT + 3600)
    store(ledger, [make_worker_window(4), make_worker_window(1, id=WindowId("another", 7, 1))])
    assert counted(ledger) == (2, 6)
    prune(ledger, AT + 3600)
    store(ledger, [make_worker_window(i) for i in range(1, 6)])
    assert counted(ledger) == (0, 6)
    with ledger.connect() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(PrunedWindow)) == 2


def test_a_window_twice_in_one_batch_is_counted_once(ledger: sa.Engine, make_worker_window: Make) -> None:
    store(ledger, [make_worker_window(1), make_worker_window(1, busy_s=0.1)])
    assert counted(ledger) == (1, 1)


def test_a_writer_that_waited_for_a_prune_sees_what_it_took(postgres_ledger_url: str, make_worker_window: Make) -> None:
    """PostgreSQL: the insert waits for the row that a prune is deleting, and must not count it again afterwards."""
    engine = open_database(postgres_ledger_url)
    window = make_worker_window(1)
    store(engine, [window])
    with engine.begin() as connection:
        connection.execute(sa.delete(Window))
        remember_pruned(connection, [tuple(window.id)])
        writer = threading.Thread(target=store, args=(engine, [window]))
        writer.start()
        writer.join(0.3)
        assert writer.is_alive()
    writer.join(30)
    assert counted(engine) == (0, 1)
    engine.dispose()


def test_writers_of_the_same_keys_do_not_lock_each_other_out(postgres_ledger_url: str) -> None:
    """PostgreSQL: two processes with the same hours and cohorts, each window in both, in opposite orders."""
    engine = open_database(postgres_ledger_url)
    windows = traffic(3, 120, hours=3.0)
    failed: list[BaseException] = []

    def write(batches: list[list[Any]]) -> None:
        try:
            for batch in batches:
                store(engine, batch)
        except BaseException as error:
            failed.append(error)

    batches = [windows[i : i + 12] for i in range(0, 120, 12)]
    opposite = [batch[::-1] for batch in batches[::-1]]
    writers = [threading.Thread(target=write, args=(each,)) for each in (batches, opposite)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert failed == []
    assert counted(engine) == (120, 120)
    with engine.connect() as connection:
        in_bill = connection.scalar(sa.select(sa.func.sum(CostHour.ns)))
        assert in_bill == connection.scalar(sa.select(sa.func.sum(Window.seconds_ns)))
    engine.dispose()

"""Which windows were counted and then deleted, as intervals of sequence numbers: few rows, however many windows."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import sqlalchemy as sa

from controlplane.store.cost_models import PrunedWindow
from controlplane.store.models import Window

Identity = tuple[str, int, int]
"""Worker, epoch and sequence."""


def pruned_among(connection: sa.Connection, windows: Collection[Identity]) -> set[Identity]:
    """Those of the windows that were pruned before."""
    intervals = _intervals(connection, {(worker, epoch) for worker, epoch, _ in windows})
    return {
        (worker, epoch, sequence)
        for worker, epoch, sequence in windows
        if any(first <= sequence <= last for first, last in intervals.get((worker, epoch), ()))
    }


def forget_repetitions(connection: sa.Connection, inserted: set[Identity]) -> set[Identity]:
    """Delete those of the inserted windows that had been pruned before, and return the others.

    To be called after the insert: a writer that waited there for a prune to commit sees what that one deleted.
    """
    repeated = pruned_among(connection, inserted)
    for worker, epoch, sequence in sorted(repeated):
        key = (Window.worker == worker, Window.epoch == epoch, Window.sequence == sequence)
        connection.execute(sa.delete(Window).where(*key))
    return inserted - repeated


def remember_pruned(connection: sa.Connection, windows: Iterable[Identity]) -> None:
    """Put the deleted windows on record, merged with what is there."""
    deleted: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for worker, epoch, sequence in windows:
        deleted.setdefault((worker, epoch), []).append((sequence, sequence))
    before = _intervals(connection, set(deleted))
    rows = []
    for (worker, epoch), numbers in deleted.items():
        merged = merge([*before.get((worker, epoch), ()), *numbers])
        rows += [{"worker": worker, "epoch": epoch, "first": first, "last": last} for first, last in merged]
        of_start = (PrunedWindow.worker == worker, PrunedWindow.epoch == epoch)
        connection.execute(sa.delete(PrunedWindow).where(*of_start))
    if rows:
        connection.execute(sa.insert(PrunedWindow), rows)


def merge(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same numbers as few closed intervals, ascending: neighbours become one, gaps stay gaps."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(intervals):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


def _intervals(
    connection: sa.Connection, starts: Collection[tuple[str, int]]
) -> dict[tuple[str, int], list[tuple[int, int]]]:
    if not starts:
        return {}
    columns: Any = (PrunedWindow.worker, PrunedWindow.epoch, PrunedWindow.first, PrunedWindow.last)
    query = sa.select(*columns).where(sa.tuple_(PrunedWindow.worker, PrunedWindow.epoch).in_(sorted(starts)))
    found: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for worker, epoch, first, last in connection.execute(query):
        found.setdefault((worker, epoch), []).append((first, last))
    return found

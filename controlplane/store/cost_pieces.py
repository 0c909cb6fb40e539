"""Where each stretch of a range is read from: whole months, days, hours, or single windows at the edges.

An hour has one price (price sheets change on whole hours, UTC), a piece has one price of each sku. An hour that is only
partly in the range is read from its windows as long as all of them are kept; else it is taken as a whole, and a warning
says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from math import ceil, floor
from typing import Any, Literal, NamedTuple, cast

import sqlalchemy as sa

from controlplane.finops.pricing import Prices
from controlplane.store.cost_dimensions import hour_key
from controlplane.store.cost_models import MachineHour
from controlplane.store.models import Window
from controlplane.store.rollup import HOURS_PER_DAY, first_day, month_of
from controlplane.store.time_range import TimeRange

HOUR_S = 3600


Source = Literal["month", "day", "hour", "window"]


class Piece(NamedTuple):
    """start, end: unix seconds, end exclusive; of months, days and hours whole ones."""

    source: Source
    start: float
    end: float

    @property
    def hour(self) -> int:
        """The first hour, whose price is that of all of it."""
        return int(self.start // HOUR_S)


class Pieces(NamedTuple):
    """A range in pieces. machine_ns: by piece (its place) and sku, the machine time of each hour, or of the part of it
    that the piece has: what is billed, and rounded, once.
    """

    pieces: tuple[Piece, ...]
    machine_ns: Mapping[tuple[int, str], Sequence[int]]
    warnings: tuple[str, ...]


def find_pieces(
    connection: sa.Connection, range: TimeRange, sheet: Prices, bases: Sequence[str], coarsest: Source
) -> Pieces:
    """The range in pieces, with the machine time of each. coarsest: what still tells apart what is asked."""
    first, last = floor(range.start / HOUR_S), ceil(range.end / HOUR_S)
    found = sa.select(MachineHour.hour, MachineHour.sku, MachineHour.ns, MachineHour.windows)
    within = found.where(MachineHour.hour >= first, MachineHour.hour < last).order_by(MachineHour.hour, MachineHour.sku)
    hours = [(hour, sku, ns, windows) for hour, sku, ns, windows in connection.execute(within)]
    if not hours:
        return Pieces((), {}, ())
    (begin, finish), partial, warnings = _edges(connection, range, _counted(hours, (first, last - 1)))
    begin, finish = max(begin, hours[0][0]), min(finish, hours[-1][0] + 1)
    changes = price_changes(sheet, bases, {sku for _, sku, *_ in hours}, range)
    pieces = [*_whole_hours(begin, finish, changes, coarsest), *partial]
    machine_ns: dict[tuple[int, str], list[int]] = {}
    place = {hour: i for i, piece in enumerate(pieces) if piece.source != "window" for hour in _hours_of(piece)}
    for hour, sku, ns, _ in hours:
        if hour in place:
            machine_ns.setdefault((place[hour], sku), []).append(ns)
    for i, piece in enumerate(pieces):
        if piece.source == "window":
            machine_ns |= {(i, sku): [ns] for sku, ns in _raw_time(connection, piece)}
    return Pieces(tuple(pieces), machine_ns, tuple(warnings))


def price_changes(sheet: Prices, bases: Collection[str], skus: Collection[str], range: TimeRange) -> list[int]:
    """Hours inside the range from which some sku of the ledger has another price on one of these bases."""
    changes = []
    before: list[int | None] | None = None
    for moment in sheet.change_points(range.start, range.end)[:-1]:
        # An hour has the price of its start; a change within it counts from the next one.
        hour = floor(moment / HOUR_S) if before is None else ceil(moment / HOUR_S)
        prices = [sheet.price_at(sku, basis, hour * HOUR_S) for sku in skus for basis in bases]
        now = [None if price is None else price.per_hour_nano for price in prices]
        if before is not None and now != before:
            changes.append(hour)
        before = now
    return sorted(set(changes))


def _counted(hours: Iterable[Sequence[Any]], wanted: Collection[int]) -> dict[int, int]:
    """Windows that the bill has of these hours."""
    counted = dict.fromkeys(wanted, 0)
    for hour, _, _, windows in hours:
        if hour in counted:
            counted[hour] += windows
    return counted


def _edges(
    connection: sa.Connection, range: TimeRange, counted: dict[int, int]
) -> tuple[tuple[int, int], list[Piece], list[str]]:
    """The whole hours, from and to (exclusive), the parts of hours at either end, and what to say of them."""
    first, last = ceil(range.start / HOUR_S), floor(range.end / HOUR_S)
    parts, warnings = [], []
    if first > last:  # inside one hour
        first = last = floor(range.start / HOUR_S)
        edges = [(first, range.start, range.end)]
    else:
        edges = [(first - 1, range.start, first * HOUR_S), (last, last * HOUR_S, range.end)]
    for hour, start, end in edges:
        if start >= end or not counted.get(hour):
            continue
        kept, inside = _windows_of(connection, hour, start, end)
        if kept == counted[hour] and kept != inside:
            parts.append(Piece("window", start, end))
            continue
        if kept != counted[hour]:
            warnings.append(
                f"the windows of {hour_key(hour)} are no longer all kept, so the whole hour is in the report"
            )
        first, last = min(first, hour), max(last, hour + 1)
    return (first, last), parts, warnings


def _windows_of(connection: sa.Connection, hour: int, start: float, end: float) -> tuple[int, int]:
    """How many windows of the hour are kept, and how many of them began in that part of it."""
    inside = sa.case((sa.and_(Window.started_at >= start, Window.started_at < end), 1), else_=0)
    query = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(inside), 0)).where(
        Window.started_at >= hour * HOUR_S, Window.started_at < (hour + 1) * HOUR_S
    )
    kept, among = connection.execute(query).one()
    return kept, int(among)


def _whole_hours(first: int, last: int, changes: Sequence[int], coarsest: Source) -> list[Piece]:
    """Hours `first` to `last` (exclusive), cut where a price changes: months, days around them, hours at the ends."""
    pieces = []
    cuts = [first, *(hour for hour in changes if first < hour < last), last]
    for start, end in pairwise(cuts):
        day, after = -(-start // HOURS_PER_DAY), end // HOURS_PER_DAY
        if coarsest == "hour" or day >= after:
            pieces += _piece("hour", start, end)
            continue
        pieces += _piece("hour", start, day * HOURS_PER_DAY)
        pieces += _whole_days(day, after, coarsest)
        pieces += _piece("hour", after * HOURS_PER_DAY, end)
    return pieces


def _whole_days(first: int, last: int, coarsest: Source) -> list[Piece]:
    begin = month_of(first) if first_day(month_of(first)) == first else month_of(first) + 1
    inner = [first_day(begin), first_day(month_of(last))]
    if coarsest == "day" or inner[0] >= inner[1]:
        inner = [first, first]
    edges = [first, *inner, last]
    return [
        piece
        for source, (start, end) in zip(("day", "month", "day"), pairwise(edges), strict=True)
        for piece in _piece(cast("Source", source), start * HOURS_PER_DAY, end * HOURS_PER_DAY)
    ]


def _piece(source: Source, start: int, end: int) -> list[Piece]:
    return [Piece(source, start * HOUR_S, end * HOUR_S)] if start < end else []


def _hours_of(piece: Piece) -> Iterable[int]:
    first, last = int(piece.start // HOUR_S), int(piece.end // HOUR_S)
    while first < last:
        yield first
        first += 1


def _raw_time(connection: sa.Connection, piece: Piece) -> list[tuple[str, int]]:
    query = (
        sa.select(Window.device, sa.func.sum(Window.seconds_ns))
        .where(Window.started_at >= piece.start, Window.started_at < piece.end)
        .group_by(Window.device)
    )
    return [(sku, int(ns)) for sku, ns in connection.execute(query)]

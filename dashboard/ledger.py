"""One reading's world: the database, the range and the filters that a page is asked with.

Everything comes from controlplane.store and controlplane.finops, the functions behind `kadence cost report`, so a
figure here and a figure there are the same figure.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Any, TypeVar

from controlplane.finops.pricing import PriceError, PriceSheet, load_prices
from controlplane.settings import Settings
from controlplane.store import queries
from controlplane.store.cost_rows import CostReport, IdleRule
from controlplane.store.data_version import cohorts_and_models, data_version, windows_before
from controlplane.store.engine import Database
from controlplane.store.price_book import stored_prices
from controlplane.store.queries import CohortPoint
from controlplane.store.rollup_series import rollup_series
from controlplane.store.time_range import TimeRange, iso
from dashboard import format as fmt
from dashboard.asked import CUSTOM, RANGES, Filters, range_of
from dashboard.charts import MAX_SERIES, bucket_seconds
from dashboard.data import Identity, Trouble, identity_of, reach, unreadable
from dashboard.memory import Memory

T = TypeVar("T")

HOUR_S, DAY_S = 3600, 86_400

RAW_S = 2 * HOUR_S
"""Series of a longer range are read from the rolled-up bill, never from single windows."""

HELD_S, HELD_PARTS = 30.0, 240
"""A reading's moment stays while nothing is recorded: so many seconds at most, and at most this part of the range."""

LOAD = "Send some: `kadence load` plays a mix of cohorts against the running endpoint."


@dataclass(frozen=True, slots=True)
class Choices:
    """What there is to filter by, in order of name."""

    cohorts: tuple[str, ...] = ()
    models: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ledger:
    """One reading. now, range: unix seconds. bounds: of all there is (empty where nothing is recorded). since, until:
    the range as `kadence cost report` takes it (until None: now). notes: what a reader must know beside the figures.
    """

    engine: Database
    settings: Settings
    filters: Filters
    now: float
    range: TimeRange
    bounds: TimeRange
    sheet: PriceSheet
    zone: tzinfo
    identity: Identity
    version: tuple[Any, ...]
    choices: Choices = Choices()
    notes: tuple[str, ...] = ()
    _reports: dict[Hashable, CostReport] = field(default_factory=dict, repr=False)

    @property
    def basis(self) -> str | None:
        return self.filters.basis

    @property
    def main_basis(self) -> str:
        """The basis that figures are of: the one chosen, else the sheet's default."""
        return self.basis or self.sheet.default_basis

    @property
    def idle(self) -> IdleRule:
        return self.filters.idle

    @property
    def cohort(self) -> str | None:
        return self.filters.cohort

    @property
    def model(self) -> str | None:
        return self.filters.model

    @property
    def currency(self) -> str | None:
        return self.sheet.currency

    @property
    def is_empty(self) -> bool:
        """Whether no window was ever recorded."""
        return self.bounds.start >= self.bounds.end

    @property
    def since(self) -> str:
        if self.filters.span == CUSTOM:
            return self.filters.since.strip() or iso(self.range.start)
        span = RANGES[self.filters.span]
        if span is None:
            return iso(self.range.start)
        return "365d" if self.filters.span == "1y" else self.filters.span

    @property
    def until(self) -> str | None:
        return self.filters.until.strip() or None if self.filters.span == CUSTOM else None

    @property
    def where(self) -> Mapping[str, Sequence[str]]:
        """The model and the cohort as cost_report takes them."""
        asked = {"cohort": self.cohort, "model": self.model}
        return {name: (value,) for name, value in asked.items() if value is not None}

    @property
    def where_model(self) -> Mapping[str, Sequence[str]]:
        """The model alone: for tables of all cohorts."""
        return {name: values for name, values in self.where.items() if name == "model"}

    def command(self, by: str = "cohort", program: str = "kadence cost report") -> str:
        """The command that prints the same report. It may hold a cohort's name: for st.code, never for Markdown."""
        flags = ["--by", by, "--since", self.since]
        flags += ["--until", self.until] if self.until else []
        flags += [part for name, (value,) in self.where.items() for part in ("--where", f"{name}={value}")]
        flags += ["--basis", self.basis] if self.basis else []
        flags += ["--idle", self.idle] if self.idle != "none" else []
        return f"{program} {shlex.join(flags)}"

    def report(
        self,
        by: str,
        *,
        where: Mapping[str, Sequence[str]] | None = None,
        basis: str | None = None,
        idle: IdleRule | None = None,
        range: TimeRange | None = None,
    ) -> CostReport:
        """cost_report of this reading, read once; what is not given is as the filters say."""
        asked = self.where if where is None else where
        span = range or self.range
        rule = idle or self.idle
        priced = basis or self.basis
        key = (by, tuple(sorted((name, tuple(values)) for name, values in asked.items())), priced, rule, span)
        if key not in self._reports:
            self._reports[key] = self.cached(
                ("cost_report", self.sheet.revision, *key),
                lambda: queries.cost_report(self.engine, span, by, self.sheet, priced, where=asked, idle=rule),
            )
        return self._reports[key]

    @property
    def midnight(self) -> float:
        """Unix seconds at which today began, UTC: the bill of what lies before changes by late windows alone."""
        return self.now // DAY_S * DAY_S

    def is_past(self, range: TimeRange) -> bool:
        """Whether the bill of the range is whole hours that are over, so that `cached_past` may keep it."""
        return range.end <= self.midnight and range.start % HOUR_S == 0 == range.end % HOUR_S

    @property
    def bucket_s(self) -> int:
        """Seconds of one point of the series: round, and at most MAX_BUCKETS of them in the range."""
        span_s = self.range.end - self.range.start
        return bucket_seconds(span_s) if span_s <= RAW_S else max(bucket_seconds(span_s), 3600)

    def series(self, cohorts: Sequence[str] | None = None) -> Sequence[CohortPoint]:
        """Every cohort's activity (or of these alone) in buckets of bucket_s: from the windows of a range of an
        hour or two, from the rolled-up bill of a longer one (store.rollup_series).
        """
        if self.range.end - self.range.start <= RAW_S:
            key: Hashable = ("cohort_series", self.range, self.bucket_s)
            points = self.cached(key, lambda: queries.cohort_series(self.engine, self.range, self.bucket_s))
            return points if cohorts is None else [p for p in points if p.cohort in cohorts]
        return self._rolled_up(None if cohorts is None else tuple(cohorts), apart=True)

    def totals(self) -> Sequence[CohortPoint]:
        """What is chosen, whole, over time: as series, for figures that are sums. Cohorts are apart in a short range
        alone, where the time in which any of them had work can be told.
        """
        if self.cohort is not None:
            return self.series((self.cohort,))
        if self.range.end - self.range.start <= RAW_S:
            return self.series()
        return self._rolled_up(None, apart=False)

    def _rolled_up(self, cohorts: tuple[str, ...] | None, *, apart: bool) -> Sequence[CohortPoint]:
        """rollup_series of the range: what lies before today is read once, what came since at each reading."""
        bucket_s, model = self.bucket_s, self.model
        unit_s = DAY_S if bucket_s % DAY_S == 0 else HOUR_S
        past = TimeRange(
            self.range.start // unit_s * unit_s,
            min(self.midnight // bucket_s * bucket_s, self.range.end // unit_s * unit_s),
        )
        key = ("rollup_series", bucket_s, cohorts, model, apart)

        def read(range: TimeRange) -> list[CohortPoint]:
            return rollup_series(self.engine, range, bucket_s, cohorts=cohorts, model=model, apart=apart)

        if past.start >= past.end or past.end % bucket_s:
            return self.cached((*key, self.range), lambda: read(self.range))
        rest = TimeRange(past.end, self.range.end)
        before = self.cached_past((*key, past), lambda: read(past))
        return [*before, *self.cached((*key, rest), lambda: read(rest))]

    def busiest(self, report: CostReport | None = None, limit: int = MAX_SERIES) -> list[str]:
        """The cohorts that charts draw: the one chosen, else those with the most emitted tokens in the range, by name
        so that each keeps its colour. report: by cohort, where the page has read one.
        """
        if self.cohort is not None:
            return [self.cohort]
        rows = sorted((report or self.report("cohort")).rows, key=lambda row: (-row.emitted_tokens, row.key))
        return sorted(row.key for row in rows[:limit] if row.emitted_tokens)

    def cached(self, key: Hashable, read: Callable[[], T]) -> T:
        """read(), once for this key and for the database as it is: a new window, plan or decision is a new version.

        The key names the query and all that it was asked with. What is kept must not be changed.
        """
        return _memory.get(self.identity, self.version, key, read)

    def cached_minute(self, key: Hashable, read: Callable[[], T]) -> T:
        """read(), once a minute for this key, whatever was recorded meanwhile: for what moves slowly and costs much."""
        # Not a version: readings of several sessions may lie in two minutes, and neither drops what is the other's.
        return _minute.get(self.identity, None, (self.now // 60, key), read)

    def cached_past(self, key: Hashable, read: Callable[[], T]) -> T:
        """read(), once for this key and for the hours before today as they are: a late window is a new version."""
        version = self.cached(("windows_before", self.midnight), lambda: windows_before(self.engine, self.midnight))
        return _past.get(self.identity, (self.midnight, version), key, read)


def open_reading(settings: Settings, filters: Filters, now: float, browser_zone: str | None) -> Ledger | Trouble:
    """The ledger at `now` (unix seconds) as the filters want it, or why it cannot be read."""
    engine = reach(settings.database_url)
    if isinstance(engine, Trouble):
        return engine
    try:
        bounds = queries.time_bounds(engine) or TimeRange(now, now)
        version = data_version(engine)
        choices = _known(settings.database_url, version, engine)
        sheet, notes = _sheet(settings, engine)
    except Exception as error:  # the page lives on whatever the database does
        return unreadable(settings.database_url, error)
    identity = identity_of(settings.database_url)
    now = _moment(identity, version, filters, now)
    range = range_of(filters, bounds, now)
    if isinstance(range, Trouble):
        return range
    zone = fmt.zone(filters.zone or browser_zone)
    return Ledger(engine, settings, filters, now, range, bounds, sheet, zone, identity, version, choices, notes)


def _moment(identity: Identity, version: tuple[Any, ...], filters: Filters, now: float) -> float:
    """The moment that the reading is of: `now`, or that of the reading before as long as nothing was recorded since,
    so that all that was worked out for it is still good. At most HELD_S seconds, and less of a short range.
    """
    span_s = RANGES.get(filters.span) or DAY_S
    key = ("moment", filters)
    held = _memory.get(identity, version, key, lambda: now)
    if 0 <= now - held <= min(HELD_S, span_s / HELD_PARTS):
        return held
    _memory.drop(identity, version, key)
    return _memory.get(identity, version, key, lambda: now)


def read_choices(database_url: str) -> Choices | Trouble:
    """Cohorts and models of all time, and the cohorts of the plan."""
    engine = reach(database_url)
    if isinstance(engine, Trouble):
        return engine
    try:
        return _known(database_url, data_version(engine), engine)
    except Exception as error:
        return unreadable(database_url, error)


def _known(database_url: str, version: tuple[Any, ...], engine: Database) -> Choices:
    return _memory.get(identity_of(database_url), version, "choices", lambda: _choices(engine))


def _choices(engine: Database) -> Choices:
    plan = queries.latest_plan(engine)
    cohorts, models = cohorts_and_models(engine)
    return Choices(tuple(sorted(cohorts | set(plan.k if plan else ()))), tuple(sorted(models)))


def _sheet(settings: Settings, engine: Database) -> tuple[PriceSheet, tuple[str, ...]]:
    """As `kadence cost report` does: the configured file if it is there, else the price book in the database."""
    try:
        path = settings.prices
        return (load_prices(path) if path.exists() else stored_prices(engine)), ()
    except PriceError as error:
        return PriceSheet(), (f"Costs are unpriced: {error.problems[0]}.",)


_memory = Memory(256)
_past = Memory(256)
_minute = Memory(32)


def forget() -> None:
    """Drops what is kept of earlier readings."""
    _memory.clear()
    _past.clear()
    _minute.clear()

"""Price sheets that were in force stay on record, and so does what an hour was first reported with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.finops.pricing import BASES, NANO, Price, PriceError, PriceSheet, parse_prices
from controlplane.store.cost_models import MachineHour
from controlplane.store.engine import open_database
from controlplane.store.models import PriceEntry
from controlplane.store.price_book import save_prices, sheets_in_force, stored_prices
from controlplane.store.price_history import close_hours, first_prices, machine_time
from controlplane.store.price_models import HourPrice
from controlplane.store.tables import Base
from controlplane.store.time_range import TimeRange

HOUR = 497_222
"""2026-09-21T14:00Z."""
ALL = TimeRange(0.0, 10**10)


def price(per_hour: str = "2.95", sku: str = "gpu", **changes: Any) -> Price:
    values: dict[str, Any] = {
        "sku": sku,
        "basis": "on_demand",
        "currency": "USD",
        "per_hour": Decimal(per_hour),
        "region": "",
        "source": "test",
        "as_of": date(2026, 9, 1),
        "effective_from": 0.0,
    }
    return Price(**{**values, **changes})


def sheet(*prices: Price) -> PriceSheet:
    return PriceSheet(prices)


def used(engine: sa.Engine, *hours: int, sku: str = "gpu", ns: int = 10**9) -> None:
    with engine.begin() as connection:
        rows = [{"hour": hour, "sku": sku, "ns": ns, "windows": 1} for hour in hours]
        connection.execute(sa.insert(MachineHour), rows)


def after(hour: int, seconds: float = 3600.0) -> float:
    return (hour + 1) * 3600.0 + seconds


@pytest.fixture
def memory() -> Iterator[sa.Engine]:
    engine = open_database("sqlite:///:memory:")
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


def test_a_sheet_that_was_saved_is_read_back_with_its_comments(ledger: sa.Engine) -> None:
    text = (
        "version: 1  # ours\nprices: [{sku: gpu, basis: owned, currency: EUR, capex: 30000, amortise_months: 48, "
        "power_w: 900, pue: 1.3, electricity_per_kwh: 0.2, source: x, as_of: 2026-01-01, effective_from: 2026-01-01}]"
    )
    assert save_prices(ledger, parse_prices(text), by="kerstin", at=5.0)
    assert stored_prices(ledger).prices[0].owned is not None
    (entry,) = sheets_in_force(ledger)
    assert (entry.applied_by, entry.applied_at, entry.text) == ("kerstin", 5.0, text)


def test_saving_the_same_sheet_twice_changes_nothing(ledger: sa.Engine) -> None:
    assert [save_prices(ledger, sheet(price()), at=at) for at in (1.0, 2.0)] == [True, False]
    assert [entry.applied_at for entry in sheets_in_force(ledger)] == [1.0]


def test_every_sheet_that_was_in_force_stays_on_record(memory: sa.Engine) -> None:
    for at, amount in enumerate(("1", "2", "1")):
        save_prices(memory, sheet(price(amount)), at=float(at))
    amounts = [parse_prices(entry.text).prices[0].per_hour for entry in sheets_in_force(memory)]
    assert amounts == [Decimal(1), Decimal(2), Decimal(1)]
    with memory.connect() as connection:
        assert connection.scalar(sa.select(PriceEntry.per_hour_nano)) == 10**9


def test_the_lines_of_a_database_of_before_revisions_are_still_its_sheet(memory: sa.Engine) -> None:
    save_prices(memory, sheet(price()))
    with memory.begin() as connection:
        connection.execute(sa.text("DELETE FROM price_revision"))
    assert stored_prices(memory) == sheet(price())


def test_an_hour_is_fixed_an_hour_after_its_end_and_not_before(memory: sa.Engine) -> None:
    used(memory, HOUR)
    assert close_hours(memory, sheet(price()), after(HOUR, 3599.0)) == 0
    assert close_hours(memory, sheet(price()), after(HOUR)) == 1


def test_what_an_hour_was_first_reported_with_survives_a_new_sheet(ledger: sa.Engine) -> None:
    used(ledger, HOUR, HOUR + 1)
    close_hours(ledger, sheet(price("2.95")), after(HOUR + 1))
    assert close_hours(ledger, sheet(price("9")), after(HOUR + 2)) == 0
    first = first_prices(ledger, ALL, sheet(price("9")))
    found = [first.price_at("gpu", "on_demand", h * 3600.0) for h in (HOUR, HOUR + 1, HOUR + 2)]
    assert [p and p.per_hour for p in found] == [Decimal("2.95"), Decimal("2.95"), Decimal(9)]


def test_that_an_hour_was_unpriced_is_on_record_by_basis(ledger: sa.Engine) -> None:
    used(ledger, HOUR)
    close_hours(ledger, sheet(), after(HOUR))
    now = sheet(price(), price(basis="spot"))
    first = first_prices(ledger, ALL, now)
    assert [first.price_at("gpu", basis, HOUR * 3600.0) for basis in BASES] == [None] * 4
    assert "had no spot price on 2026-09-21 when it was first reported" in first.why_unpriced(
        "gpu", "spot", HOUR * 3600.0
    )


def test_a_sku_whose_window_came_late_is_fixed_later_without_touching_the_others(memory: sa.Engine) -> None:
    used(memory, HOUR)
    close_hours(memory, sheet(price("1"), price("1", "cpu")), after(HOUR))
    used(memory, HOUR, sku="cpu")
    assert close_hours(memory, sheet(price("2"), price("2", "cpu")), after(HOUR + 5)) == 1
    first = first_prices(memory, ALL, sheet())
    found = [first.price_at(sku, "on_demand", HOUR * 3600.0) for sku in ("gpu", "cpu")]
    assert [p and p.per_hour for p in found] == [Decimal(1), Decimal(2)]


def test_hours_that_were_reported_in_two_currencies_are_not_one_bill(memory: sa.Engine) -> None:
    used(memory, HOUR)
    close_hours(memory, sheet(price()), after(HOUR))
    used(memory, HOUR + 1)
    close_hours(memory, sheet(price(currency="EUR")), after(HOUR + 1))
    with pytest.raises(PriceError, match="first reported in EUR, USD: ask for a time of one currency"):
        first_prices(memory, ALL, sheet())
    of_one = first_prices(memory, TimeRange(HOUR * 3600.0, (HOUR + 1) * 3600.0), sheet())
    assert of_one.currency == "USD"


def test_a_stretch_between_two_change_points_has_one_first_reported_price(memory: sa.Engine) -> None:
    used(memory, *range(HOUR, HOUR + 6))
    step = sheet(price("1", effective_to=(HOUR + 2) * 3600.0), price("2", effective_from=(HOUR + 4) * 3600.0))
    close_hours(memory, step, after(HOUR + 9))
    first = first_prices(memory, ALL, sheet(price("7")))
    points = first.change_points(HOUR * 3600.0, (HOUR + 8) * 3600.0)
    assert [point / 3600.0 - HOUR for point in points] == [0, 2, 4, 6, 8]


def test_many_open_hours_are_fixed_in_several_transactions(memory: sa.Engine) -> None:
    used(memory, *range(HOUR, HOUR + 1200))
    assert close_hours(memory, sheet(price()), after(HOUR + 1200)) == 1200
    with memory.connect() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(HourPrice)) == 1200 * len(BASES)


def test_machine_time_is_of_every_hour_that_the_range_touches(ledger: sa.Engine) -> None:
    used(ledger, *range(HOUR - 1, HOUR + 4), ns=7)
    half = TimeRange(HOUR * 3600.0 + 1800.0, (HOUR + 2) * 3600.0 + 1.0)
    assert machine_time(ledger, half) == [(hour, "gpu", 7) for hour in range(HOUR, HOUR + 3)]


AMOUNTS = st.one_of(st.none(), st.integers(0, 10**12))


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 12), AMOUNTS, st.booleans()), min_size=1, max_size=8))
def test_an_hour_keeps_its_first_price_whatever_sheets_follow(steps: list[tuple[int, int | None, bool]]) -> None:
    """steps: hours that pass, the price that is then in force (None: not on the sheet), whether hours are closed."""
    engine = open_database("sqlite:///:memory:")
    Base.metadata.create_all(engine)
    used(engine, *range(HOUR, HOUR + 100))
    now, expected, current = after(HOUR), dict[int, int | None](), sheet()
    for passed, amount, closes in steps:
        now += passed * 3600.0
        current = sheet() if amount is None else sheet(price(str(Decimal(amount) / NANO)))
        if closes:
            close_hours(engine, current, now)
            settled = [h for h in range(HOUR, HOUR + 100) if now >= after(h)]
            expected |= {h: amount for h in settled if h not in expected}
    first = first_prices(engine, ALL, current)
    found = {h: first.price_at("gpu", "on_demand", h * 3600.0) for h in expected}
    assert {h: None if p is None else p.per_hour_nano for h, p in found.items()} == expected
    engine.dispose()


def test_processes_that_save_and_close_at_once_leave_one_of_each(ledger: sa.Engine) -> None:
    used(ledger, *range(HOUR, HOUR + 40))

    def act(at: int, amount: str) -> None:
        prices = sheet(price(amount))
        save_prices(ledger, prices, at=float(at))
        close_hours(ledger, prices, after(HOUR + 40))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(act, range(4), ("1", "1", "1", "2")))
    with ledger.connect() as connection:
        fixed = connection.execute(sa.select(HourPrice.hour, HourPrice.basis, HourPrice.revision)).all()
    assert len(fixed) == len({(hour, basis) for hour, basis, _ in fixed}) == 40 * len(BASES)
    revisions = [entry.revision for entry in sheets_in_force(ledger)]
    assert all(a != b for a, b in itertools.pairwise(revisions))
    with ledger.connect() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(PriceEntry)) == 1

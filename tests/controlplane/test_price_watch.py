"""The price sheet of a running system: what counts as a change, what a bad file does, and what goes on record."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from controlplane.finops.pricing import parse_prices
from controlplane.price_watch import PriceWatch, follow
from controlplane.store.cost_models import MachineHour
from controlplane.store.engine import open_database
from controlplane.store.price_book import save_prices, sheets_in_force
from controlplane.store.price_models import HourPrice
from controlplane.store.tables import Base

TEXT = """
version: 1
prices:
  - {sku: gpu, basis: on_demand, currency: USD, per_hour: 2, source: x, as_of: 2026-11-01, effective_from: 2026-01-01}
"""
OTHER = TEXT.replace("per_hour: 2", "per_hour: 3")
BAD = TEXT.replace("per_hour: 2", "per_hour: two")
HOUR = 497_222


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "prices.yaml"
    path.write_text(TEXT)
    return path


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    """One hour of gpu; a file, because threads look at it."""
    engine = open_database(f"sqlite:///{tmp_path}/ledger.db")
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(sa.insert(MachineHour).values(hour=HOUR, sku="gpu", ns=1, windows=1))
    yield engine
    engine.dispose()


def first_prices(engine: sa.Engine) -> list[int | None]:
    with engine.connect() as connection:
        query = sa.select(HourPrice.per_hour_nano).where(HourPrice.basis == "on_demand")
        return list(connection.scalars(query))


def settle(watch: PriceWatch) -> bool:
    """Two looks: the second reads what no longer changes."""
    assert not watch.poll()
    return watch.poll()


def test_a_changed_sheet_is_in_force_at_the_second_look(path: Path) -> None:
    watch = PriceWatch(path)
    path.write_text(OTHER)
    assert settle(watch)
    assert watch.sheet == parse_prices(OTHER)
    assert not settle(watch)


def test_a_bad_sheet_is_reported_once_and_the_last_good_one_stays(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watch = PriceWatch(path)
    path.write_text(BAD)
    with caplog.at_level(logging.WARNING):
        assert [settle(watch), settle(watch)] == [False, False]
    assert watch.sheet == parse_prices(TEXT)
    assert [record.message.count("not a plain number") for record in caplog.records] == [1]


def test_a_sheet_that_is_mended_is_taken(path: Path) -> None:
    path.write_text(BAD)
    watch = PriceWatch(path)
    assert (watch.has_sheet, watch.sheet.prices) == (False, ())
    path.write_text(OTHER)
    assert settle(watch)
    assert watch.problems == ()


def test_an_ended_hour_goes_on_record_by_the_sheet_in_force(path: Path, engine: sa.Engine) -> None:
    watch = PriceWatch(path)
    watch.keep(engine, (HOUR + 2) * 3600.0)
    path.write_text(OTHER)
    settle(watch)
    watch.keep(engine, (HOUR + 3) * 3600.0)
    assert first_prices(engine) == [2_000_000_000]
    assert [entry.applied_by for entry in sheets_in_force(engine)] == ["price file", "price file"]


def test_without_a_good_file_the_sheet_in_the_database_counts(tmp_path: Path, engine: sa.Engine) -> None:
    watch = PriceWatch(tmp_path / "nowhere.yaml")
    watch.keep(engine, (HOUR + 2) * 3600.0)
    assert first_prices(engine) == []
    save_prices(engine, parse_prices(OTHER))
    watch.keep(engine, (HOUR + 2) * 3600.0)
    assert first_prices(engine) == [3_000_000_000]


def test_a_database_that_is_away_is_logged_and_stops_nothing(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = open_database(f"sqlite:///{tmp_path}/empty.db")
    PriceWatch(path).keep(engine, (HOUR + 2) * 3600.0)
    engine.dispose()
    assert "kadence db upgrade" in caplog.text


def test_the_first_close_comes_without_a_change_of_the_file(path: Path, engine: sa.Engine) -> None:
    looks = iter([True] * 4)

    def in_charge() -> bool:
        return next(looks, False)

    asyncio.run(follow(PriceWatch(path), engine, in_charge, every_s=0.001, first_close_s=0.0))
    assert first_prices(engine) == [2_000_000_000]


def test_who_is_not_in_charge_puts_nothing_on_record(path: Path, engine: sa.Engine) -> None:
    looks = iter([True])
    asyncio.run(follow(PriceWatch(path), engine, lambda: next(looks, False), every_s=0.001, first_close_s=0.0))
    assert first_prices(engine) == []

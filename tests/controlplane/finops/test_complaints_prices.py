"""What users of other cost tools complain about (their price handling), each as a test named after the symptom.

Numbers are those of the list of complaints that the ledger was planned against.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from controlplane.cost_cli import cost_app
from controlplane.decision.plan import Plan
from controlplane.finops.pricing import PriceError, PriceSheet, parse_prices
from controlplane.settings import load_settings
from controlplane.store.engine import open_database
from controlplane.store.journal import SqlJournal
from controlplane.store.models import PriceEntry
from controlplane.store.price_book import save_prices
from controlplane.store.price_history import close_hours, first_prices
from controlplane.store.queries import CostReport, cost_report
from controlplane.store.time_range import TimeRange
from controlplane.telemetry import Report, StepCount, WindowId

Make = Callable[..., Any]

AT = 1_790_000_000.0
DAY = TimeRange(AT - 3600.0, AT + 86400.0)


def sheet(*lines: dict[str, str]) -> PriceSheet:
    """Lines of two USD an hour on demand from 2026 on, but for what each one says."""
    base = {"sku": "my-own-box", "basis": "on_demand", "currency": "USD", "per_hour": "2", "source": "a contract",
            "as_of": "2026-09-01", "effective_from": "2026-01-01"}  # fmt: skip
    return parse_prices(json.dumps({"version": 1, "prices": [{**base, **line} for line in lines]}))


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.fixture
def engine(sqlite_ledger_url: str) -> Iterator[sa.Engine]:
    engine = open_database(sqlite_ledger_url)
    yield engine
    engine.dispose()


@pytest.fixture
def serve(
    engine: sa.Engine, make_worker_window: Make, make_cohort_window: Make, make_request_record: Make
) -> Callable[..., None]:
    """Record seconds in which a machine answered requests of cohort json, half of the time."""

    def record(device: str = "my-own-box", seconds: int = 1, begin: float = AT) -> None:
        cohort = make_cohort_window("json", (StepCount(4, 2, False, 4),), prefill_positions=10, first_tokens=1)
        reports = [
            Report(
                make_worker_window(
                    n + 1, (cohort,), device=device, started_at=begin + n, id=WindowId(f"on {device}", 1, n + 1)
                ),
                (make_request_record(f"{device}-{begin}-{n}", finished_at=begin + n),),
            )
            for n in range(seconds)
        ]
        journal = SqlJournal(engine)
        journal.record(reports, [], Plan(1, 1, begin, begin + 10, {}, {}, ""), begin)
        journal.close()

    return record


def cost_of(report: CostReport, key: str = "json") -> int | None:
    (row,) = [row for row in report.rows if row.key == key]
    return row.cost_nano


def test_03_a_custom_priced_machine_sometimes_logs_zero(engine: sa.Engine, serve: Make) -> None:
    """Every second costs the same, however often it is asked and by whatever dimension."""
    serve(seconds=5)
    prices = sheet({"per_hour": "3.6"})  # a thousandth a second; half of each is idle
    totals = {cost_report(engine, DAY, by, prices).total.cost_nano for by in ("cohort", "model", "hour", "cohort")}
    assert totals == {5 * 10**6}
    assert cost_of(cost_report(engine, DAY, "cohort", prices)) == 5 * 10**6 // 2


def test_04_spend_on_a_self_hosted_model_is_always_zero(engine: sa.Engine, serve: Make) -> None:
    serve()
    report = cost_report(engine, DAY, "cohort", sheet({}))
    assert (cost_of(report) or 0) > 0
    assert (report.rows[0].cost_per_million_tokens or 0) > 0


def test_05_a_price_is_shown_on_one_page_and_missing_on_another(
    engine: sa.Engine, serve: Make, sqlite_ledger_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The price book, `prices show` and the report all say the same two dollars."""
    monkeypatch.chdir(tmp_path)
    serve(seconds=2)
    save_prices(engine, sheet({}))
    with engine.connect() as connection:
        booked = connection.scalar(sa.select(PriceEntry.per_hour_nano))
    where = ("--database-url", sqlite_ledger_url, "--json")
    shown = json.loads(CliRunner().invoke(cost_app, ["prices", "show", *where]).stdout)["prices"][0]["per_hour"]
    span = ("--since", "2026-09-21", "--until", "2026-09-22")
    billed = json.loads(CliRunner().invoke(cost_app, ["report", *span, *where]).stdout)["total"]["cost"]
    assert (booked, Decimal(shown)) == (2 * 10**9, Decimal(2))
    assert Decimal(billed) == (Decimal(4) / 3600).quantize(Decimal("1e-9"))


def test_13_a_machine_priced_at_zero_still_accrues_cost_of_another_entry(engine: sa.Engine, serve: Make) -> None:
    serve()
    others = [{"sku": sku, "per_hour": "99"} for sku in ("my-own", "my-own-box-xl", "box", "MY-OWN-BOX")]
    report = cost_report(engine, DAY, "cohort", sheet({"per_hour": "0"}, *others))
    assert (cost_of(report), report.total.cost_nano, report.unpriced) == (0, 0, ())


def test_14_a_price_change_by_date_is_not_back_calculated(
    engine: sa.Engine, serve: Make, sqlite_ledger_url: str, tmp_path: Path
) -> None:
    """A line that is added later, with a start in the past, prices the past; what was first reported is kept beside."""
    serve()
    before = sheet({"per_hour": "3.6"})
    close_hours(engine, before, AT + 7200.0)
    after = sheet(
        {"per_hour": "3.6", "effective_to": "2026-09-01"}, {"per_hour": "7.2", "effective_from": "2026-09-01"}
    )
    first = first_prices(engine, DAY, after)
    totals = [cost_report(engine, DAY, "cohort", prices).total.cost_nano for prices in (before, after, first)]
    assert totals == [10**6, 2 * 10**6, 10**6]
    (tmp_path / "after.yaml").write_text(after.text)
    asked = ["report", "--since", "2026-09-21", "--until", "2026-09-22", "--prices", str(tmp_path / "after.yaml")]
    asked += ["--database-url", sqlite_ledger_url, "--json"]
    bills = [json.loads(CliRunner().invoke(cost_app, [*asked, "--as", which]).stdout) for which in ("current", "first")]
    assert [bill["total"]["cost"] for bill in bills] == ["0.002000000", "0.001000000"]


def test_21_the_wrong_tier_is_priced_and_there_is_no_way_to_override_it(engine: sa.Engine, serve: Make) -> None:
    """Each basis has its own figure, one without a line has none, and a contract is a sku of its own."""
    serve()
    serve("my-own-box-contract", begin=AT + 7200.0)
    prices = sheet({"per_hour": "3.6"}, {"basis": "reserved", "per_hour": "1.8"},
                   {"sku": "my-own-box-contract", "per_hour": "0.9"})  # fmt: skip
    only_first = TimeRange(AT, AT + 3600.0)
    by_basis = [cost_report(engine, only_first, "cohort", prices, basis).total.cost_nano
                for basis in ("on_demand", "reserved", "spot")]  # fmt: skip
    assert by_basis == [10**6, 5 * 10**5, None]
    assert cost_report(engine, TimeRange(AT + 7200.0, AT + 7300.0), "cohort", prices).total.cost_nano == 250_000
    assert load_settings(sku="my-own-box-contract").price_key("NVIDIA H100 80GB HBM3") == "my-own-box-contract"


def test_22_an_unknown_machine_is_silently_priced_at_a_default(engine: sa.Engine, serve: Make) -> None:
    serve("my-own-boxx")
    report = cost_report(engine, DAY, "cohort", sheet({"per_hour": "50"}))
    assert (cost_of(report), report.idle.cost_nano, report.total.cost_nano) == (None, None, None)
    assert report.unpriced == (
        "my-own-boxx has no on_demand price on 2026-09-21: the sheet does not name it "
        "(it has my-own-box; a sku must match in full)",
    )


@settings(deadline=None, max_examples=60)
@given(st.text("abxyz-0189 AB", min_size=1, max_size=12), st.sampled_from(["on_demand", "reserved", "spot", "owned"]))
def test_22_a_name_that_is_only_like_a_priced_one_has_no_price(name: str, basis: str) -> None:
    assume((name, basis) != ("my-own-box", "on_demand"))
    prices = sheet({})
    alike = (name, f"my-own-box{name}", f"{name}my-own-box", "my-own-box"[: len(name) % 10])
    found = [prices.price_at(sku, basis, at("2026-06-01")) for sku in alike]
    assert found == [None] * 4


def test_22_a_region_prices_no_other_region(engine: sa.Engine, serve: Make) -> None:
    """Two regions of one machine at two prices cannot share a sku, so neither is taken for the other."""
    with pytest.raises(
        PriceError, match=r"two prices from 2026-01-01 on.*give regions and contracts skus of their own"
    ):
        sheet({"region": "eu-west"}, {"region": "eu-west-1", "per_hour": "3"})
    serve("my-own-box-eu-west")
    prices = sheet({"sku": "my-own-box-eu-west-1", "region": "eu-west-1"})
    assert cost_report(engine, DAY, "cohort", prices).total.cost_nano is None

"""What the Cost page works out of a report: parts of a cost, shares, and the files of the export."""

from __future__ import annotations

import io
import json
import time
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from controlplane.cost_cli import cost_app
from controlplane.finops.pricing import load_prices
from controlplane.settings import load_settings
from controlplane.store.engine import open_database
from controlplane.store.queries import CostReport, CostRow, TimeRange
from controlplane.store.time_range import iso
from dashboard import cost_charts
from dashboard.cost_exports import FILES, Terms, command, content, file_name, hours_of, is_too_long
from dashboard.cost_load import dimension_shown
from dashboard.cost_quadrant import Placed, named, placed
from dashboard.cost_tables import bases_frame, parts_frame, parts_of

EVIL = "<img src=x onerror=alert(1)>"
HOUR = 3600.0
CSV, PARQUET, FOCUS, FOCUS_PARQUET = FILES


def row(key: str, cost: int | None, tokens: int, **changes: Any) -> CostRow:
    return CostRow(key, emitted_tokens=tokens, cost_nano=cost, **changes)


def report(*rows: CostRow, idle: CostRow | None = None) -> CostReport:
    return CostReport(rows, idle or CostRow("idle", has_idle=True), CostRow("total"), "USD", "on_demand", 1.0)


def test_the_parts_of_a_cost_add_up_to_it():
    # 10 = 2 of prefill + (7 of decode - 3 wasted) + 3 wasted + 1 of idle
    whole = row("a", 10, 5, input_cost_nano=2, output_cost_nano=7, wasted_cost_nano=3, idle_cost_nano=1, has_idle=True)
    assert parts_of(whole) == {"prefill": 2, "kept decode": 4, "rejected drafts": 3, "idle": 1}


def test_idle_that_is_not_in_a_cost_is_no_part_of_it():
    apart = row("a", 9, 5, input_cost_nano=2, output_cost_nano=7, wasted_cost_nano=0, idle_cost_nano=1)
    assert parts_of(apart)["idle"] == 0


def test_bars_leave_out_what_has_no_price_and_keep_the_dearest():
    rows = [row("a", None, 1, output_cost_nano=None, wasted_cost_nano=None), row("b", 1, 1), row("c", 5, 1)]
    assert set(parts_frame(rows, 1)["key"]) == {"c"}
    assert set(parts_frame(rows)["key"]) == {"b", "c"}


def test_shares_are_of_all_rows_together():
    # 15 of 20 of the cost for 4,000 of 5,000 tokens; the other 5 for 1,000.
    found = {each.key: each for each in placed(report(row("json", 15, 4000), row("fiction", 5, 1000)))}
    assert (found["json"].cost_share, found["json"].token_share) == (0.75, 0.8)
    assert found["fiction"].price_level == pytest.approx(0.25 / 0.2)


@pytest.mark.parametrize(
    ("tokens", "cost", "quadrant"),
    [(0.6, 0.6, "heavy"), (0.1, 0.6, "underused"), (0.6, 0.1, "efficient"), (0.1, 0.1, "small")],
)
def test_each_quadrant_has_its_name(tokens, cost, quadrant):
    assert Placed("a", tokens, cost, 0.5).quadrant == quadrant


def test_a_row_without_a_price_is_in_no_quadrant():
    assert [each.key for each in placed(report(row("a", 1, 1), row("b", None, 1)))] == ["a"]


@pytest.mark.parametrize("rows", [(), (row("a", None, 5),), (row("a", 0, 5),), (row("a", 5, 0),)])
def test_without_cost_or_tokens_there_is_nothing_to_place(rows):
    assert placed(report(*rows)) == []


def test_a_row_that_cost_without_a_token_has_no_price_level():
    found = placed(report(row("a", 5, 0), row("b", 5, 10)))
    assert next(each for each in found if each.key == "a").price_level is None


def test_only_the_largest_points_have_their_name_beside_them():
    found = placed(report(*(row(f"c{i:02}", i + 1, i + 1) for i in range(30))))
    assert named(found, 2) == {"c28", "c29"}


@pytest.mark.parametrize(
    "chart",
    [
        lambda rows: cost_charts.parts_chart(rows, "USD"),
        lambda rows: cost_charts.bases_chart({"on_demand": report(*rows)}),
        lambda rows: cost_charts.quadrant_chart(placed(report(*rows)), "cohort"),
    ],
)
def test_a_name_is_data_of_a_chart_and_nothing_else(chart):
    spec = chart([row(EVIL, 5 * 10**9, 100), row("b", 10**9, 50)]).to_dict()
    data = spec.pop("datasets")
    assert EVIL in json.dumps(data)
    assert EVIL not in json.dumps(spec)


def test_a_table_of_several_bases_has_cost_unit_cost_and_loaded_cost_of_each():
    found = {"on_demand": report(row("a", 4_000_000, 1000)), "spot": report(row("a", 1_000_000, 1000))}
    line = bases_frame(found, "spot", "cohort").iloc[0]
    assert (line["On demand cost"], line["On demand per 1M"]) == ("$0.004000", "$4.000")
    assert (line["Spot cost"], line["Spot per 1M"]) == ("$0.001000", "$1.000")


@pytest.mark.parametrize(
    ("asked", "span_s", "by"),
    [
        ("hour", 86_400.0, "hour"),
        ("hour", 400 * 86_400.0, "day"),
        ("day", 400 * 86_400.0, "day"),
        ("no", 1.0, "cohort"),
    ],
)
def test_hours_of_a_long_range_are_shown_by_day(asked, span_s, by):
    shown, note = dimension_shown(asked, span_s)
    assert shown == by
    assert bool(note) == (asked == "hour" and by == "day")


def test_an_export_is_of_the_whole_hours_of_a_range():
    assert hours_of(TimeRange(1800.0, 9000.0)) == TimeRange(0.0, 7200.0)
    assert hours_of(TimeRange(1800.0, 3000.0)) is None


def test_a_file_is_named_after_what_is_in_it():
    span = TimeRange(0.0, 7200.0)
    assert file_name(CSV, span, Terms()) == "kadence-cells-19700101T0000Z-19700101T0200Z.csv"
    assert file_name(PARQUET, span, Terms(by="cohort")) == "kadence-by-cohort-19700101T0000Z-19700101T0200Z.parquet"
    assert file_name(FOCUS, span, Terms(by="cohort")) == "kadence-focus-1.2-19700101T0000Z-19700101T0200Z.csv"


def test_a_year_of_many_cohorts_cell_by_cell_is_too_long_for_a_browser():
    assert is_too_long(TimeRange(0.0, 365 * 86_400.0), 200)
    assert not is_too_long(TimeRange(0.0, 86_400.0), 200)


@pytest.fixture
def yesterday(ledger):
    """Filled two hours ago, so that its hours are over."""
    ledger.migrate()
    ledger.price()
    ledger.fill(first=EVIL, age_s=2 * HOUR)
    return ledger


def made(ledger: Any, file: Any, terms: Terms, where: dict[str, list[str]] | None = None) -> tuple[bytes, TimeRange]:
    span = hours_of(TimeRange(time.time() - 24 * HOUR, time.time()))
    assert span is not None
    engine = open_database(ledger.url)
    found = content(engine, span, load_prices(ledger.prices), where or {}, load_settings(), file, terms)
    engine.dispose()
    return found, span


@pytest.mark.parametrize(
    ("file", "terms", "flags"),
    [
        (CSV, Terms(), ("--format", "csv")),
        (CSV, Terms(by="cohort", priced_as="first"), ("--format", "csv", "--by", "cohort", "--as", "first")),
        (FOCUS, Terms(focus_version="1.4", provider="Us"), ("--format=focus", "--focus-version=1.4", "--provider=Us")),
    ],
)
def test_a_button_makes_the_very_file_of_the_command(yesterday, tmp_path, file, terms, flags):
    found, span = made(yesterday, file, terms, {"cohort": [EVIL]})
    target = tmp_path / "by-command.csv"
    asked = ["export", "-o", str(target), "--since", iso(span.start), "--until", iso(span.end)]
    asked += ["--where", f"cohort={EVIL}", "--database-url", yesterday.url, *flags]
    done = CliRunner().invoke(cost_app, asked)
    assert done.exit_code == 0, done.output
    assert EVIL.encode() in found
    assert found == target.read_bytes()


def test_a_parquet_button_makes_a_parquet_file_with_every_cell(yesterday):
    found, _ = made(yesterday, PARQUET, Terms())
    table = pq.read_table(io.BytesIO(found))
    assert sum(table["cost"].to_pylist()) * 1000 == 20  # 20 s of 0.001 USD
    assert {EVIL, "fiction"} <= set(table["cohort"].to_pylist())


def test_focus_by_parquet_is_focus(yesterday):
    found, _ = made(yesterday, FOCUS_PARQUET, Terms())
    assert "BilledCost" in pq.read_schema(io.BytesIO(found)).names


def test_the_command_shown_asks_for_the_same_range_filters_and_terms():
    terms = Terms(basis="spot", priced_as="first", provider="Us & them")
    assert command(FOCUS, TimeRange(0.0, 7200.0), {"cohort": ["x y"]}, terms, "f.csv") == (
        "kadence cost export -o f.csv --format focus --since 1970-01-01T00:00:00Z --until 1970-01-01T02:00:00Z "
        "--where 'cohort=x y' --focus-version 1.2 --provider 'Us & them' --basis spot --as first"
    )

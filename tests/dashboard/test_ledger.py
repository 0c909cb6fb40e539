"""One reading: its range, its filters, and that its figures are the cost report's."""

from __future__ import annotations

import shlex
import sqlite3
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from streamlit.testing.v1 import AppTest

from controlplane.cost_cli.options import time_range
from controlplane.finops.pricing import load_prices
from controlplane.settings import load_settings
from controlplane.store import queries
from controlplane.store.queries import TimeRange, cost_report
from controlplane.store.rollup_series import rollup_series
from dashboard import ledger as readings
from dashboard.asked import RANGES, Filters, range_of
from dashboard.data import Trouble, reach
from dashboard.filters import zones
from dashboard.ledger import Ledger, open_reading
from dashboard.overview_load import load_overview
from dashboard.serve import APP

NOW = 1_800_000_000.0
ALL = TimeRange(1_000_000_000.0, NOW - 5)


def read(**filters: object) -> Ledger:
    found = open_reading(load_settings(), Filters(**filters), time.time(), None)
    assert isinstance(found, Ledger)
    return found


@pytest.mark.parametrize("span", [name for name, seconds in RANGES.items() if seconds])
def test_a_named_range_is_what_the_command_makes_of_since(span, filled):
    ledger = read(span=span)
    assert time_range(ledger.since, ledger.until, ledger.now) == ledger.range


def test_the_range_of_all_there_is_begins_with_the_first_window():
    assert range_of(Filters(span="all"), ALL, NOW) == TimeRange(ALL.start, NOW)


def test_a_custom_range_is_read_as_the_command_reads_it():
    asked = Filters(span="custom", since="2026-11-29T15:00", until="90m")
    assert range_of(asked, ALL, NOW) == time_range("2026-11-29T15:00", "90m", NOW)


def test_a_custom_range_without_ends_is_all_there_is_until_now():
    assert range_of(Filters(span="custom"), ALL, NOW) == TimeRange(ALL.start, NOW)


@pytest.mark.parametrize(
    ("since", "until", "says"),
    [("yesterday", "", "From: 'yesterday'"), ("", "soon", "To: 'soon'"), ("1h", "2h", "is not before")],
)
def test_a_custom_range_that_cannot_be_is_a_sentence(since, until, says):
    trouble = range_of(Filters(span="custom", since=since, until=until), ALL, NOW)
    assert isinstance(trouble, Trouble)
    assert says in trouble.sentence


@pytest.mark.usefixtures("filled")
def test_the_command_of_a_reading_has_all_of_its_filters():
    ledger = read(span="24h", cohort="a b; rm", model="m", basis="spot", idle="even")
    assert shlex.split(ledger.command("tenant")) == [
        *("kadence", "cost", "report", "--by", "tenant", "--since", "24h", "--where", "cohort=a b; rm"),
        *("--where", "model=m", "--basis", "spot", "--idle", "even"),
    ]


def test_a_report_of_a_reading_is_the_cost_report(filled):
    ledger = read(span="24h", cohort="json", idle="weighted")
    sheet = load_prices(filled.prices)
    where = {"cohort": ["json"]}
    assert ledger.report("cohort") == cost_report(
        ledger.engine, ledger.range, "cohort", sheet, where=where, idle="weighted"
    )


def test_what_is_kept_of_a_reading_is_read_anew_after_a_new_window(filled):
    calls: list[float] = []
    for _ in range(2):
        read().cached("key", lambda: calls.append(0.0))
    filled.fill(sequence=2)
    read().cached("key", lambda: calls.append(1.0))
    assert calls == [0.0, 1.0]
    assert not {"cost_report", "reports"} & {key[2][0] for key in readings._memory._kept}


def at(now: float, **filters: object) -> Ledger:
    found = open_reading(load_settings(), Filters(**filters), now, None)
    assert isinstance(found, Ledger)
    return found


@pytest.mark.usefixtures("filled")
def test_a_refresh_reads_nothing_anew_while_nothing_is_recorded(monkeypatch):
    now = time.time()
    first = load_overview(at(now, span="1y"))
    for name in ("overview_load.cost_reports", "savings_reading.priced_arms"):
        monkeypatch.setattr(f"dashboard.{name}", None)
    for name in ("queries", "rollup_series", "windows_before"):
        monkeypatch.setattr(f"dashboard.ledger.{name}", SimpleNamespace(time_bounds=queries.time_bounds))
    assert load_overview(at(now + 5, span="1y")).report == first.report


def test_a_readings_moment_stays_until_something_is_recorded(filled):
    now = time.time()
    assert [at(now + s, span="24h").now - now for s in (0, 5, 10)] == [0, 0, 0]
    filled.fill(sequence=2)
    assert at(now + 11, span="24h").now == now + 11


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize(("span", "held_s"), [("15m", 3.75), ("1h", 15), ("24h", 30), ("1y", 30)])
def test_a_readings_moment_is_held_for_a_small_part_of_its_range(span, held_s):
    now = time.time()
    assert at(now, span=span).now == at(now + held_s - 0.1, span=span).now == now
    assert at(now + held_s + 0.1, span=span).now == now + held_s + 0.1


def test_the_past_is_read_again_after_a_late_window_alone(ledger):
    ledger.migrate()
    ledger.price()
    ledger.fill()
    ledger.fill(sequence=10, age_s=3 * 86_400)
    reads: list[int] = []

    def keep(number: int) -> None:
        read(span="1y").cached_past("key", lambda: reads.append(number))

    keep(1)
    ledger.fill(sequence=20)
    keep(2)
    assert reads == [1]
    ledger.fill(sequence=30, age_s=2 * 86_400)
    keep(3)
    assert reads == [1, 3]


def test_what_costs_much_is_read_once_a_minute_whatever_is_recorded(filled):
    reads: list[float] = []
    minute = time.time() // 60 * 60
    for at_s in (1, 2, 61, 3):
        at(minute + at_s).cached_minute("key", lambda at_s=at_s: reads.append(at_s))
        filled.fill(sequence=2 * at_s)
    assert reads == [1, 61]


def test_the_series_of_a_long_range_is_the_same_before_and_after_it_is_kept(ledger):
    ledger.migrate()
    ledger.price()
    ledger.fill()
    ledger.fill(sequence=10, age_s=3 * 86_400)
    for span in ("7d", "30d", "1y"):
        found = read(span=span)
        whole = rollup_series(found.engine, found.range, found.bucket_s)
        for _ in range(2):
            assert [replace(p, seconds=0, tokens_per_s=0, last_at=0) for p in read(span=span).series()] == [
                replace(p, seconds=0, tokens_per_s=0, last_at=0) for p in whole
            ]


def test_a_page_that_reads_does_not_hold_up_the_writer(filled):
    engine = reach(filled.url)
    assert not isinstance(engine, Trouble)
    with engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT hour FROM cost_hour")
        assert rows.fetchone() is not None  # a read under way, in the middle of its rows
        writer = sqlite3.connect(filled.path, timeout=0, isolation_level=None)
        assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE plan SET expires_at = expires_at + 1")
        writer.execute("COMMIT")
        writer.close()


def test_what_is_kept_of_a_database_is_not_shown_for_the_one_that_replaced_it(filled, make_ledger, tmp_path):
    assert read().report("cohort").total.emitted_tokens == 5000
    filled.path.unlink()
    other = make_ledger(filled.folder)
    other.migrate()
    assert read().report("cohort").total.emitted_tokens == 0


def test_a_database_server_that_is_down_is_a_sentence_without_the_password():
    trouble = reach("postgresql://kadence:secret@127.0.0.1:1/kadence")
    assert isinstance(trouble, Trouble)
    assert "postgresql://kadence:***@127.0.0.1:1/kadence cannot be read" in trouble.sentence
    assert "secret" not in trouble.sentence
    assert "tries again" in trouble.way_out


@pytest.mark.usefixtures("filled")
def test_what_goes_wrong_in_a_pages_reading_is_a_sentence(monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr("dashboard.overview_load.cost_reports", broken)
    app = AppTest.from_file(str(APP), default_timeout=20).run()
    assert not app.exception
    assert "disk I/O error" in app.error[0].value.replace("\\", "")


def test_what_is_kept_is_bounded(filled):
    ledger = read()
    for n in range(1000):
        ledger.cached(n, lambda: 0)
    assert len(readings._memory._kept) == 256


@pytest.mark.usefixtures("filled")
def test_a_long_range_has_the_tokens_of_a_short_one_in_its_series():
    of = {span: sum(p.emitted_tokens for p in read(span=span).series()) for span in ("1h", "24h", "1y")}
    assert of == {"1h": 5000, "24h": 5000, "1y": 5000}


@pytest.mark.usefixtures("filled")
def test_totals_over_a_long_range_are_one_point_a_bucket():
    assert [p.emitted_tokens for p in read(span="1y").totals()] == [5000]


@pytest.mark.usefixtures("filled")
def test_the_cohorts_with_most_tokens_have_a_colour_in_order_of_name():
    assert read().busiest() == ["fiction", "json"]
    assert read().busiest(limit=1) == ["json"]


@pytest.mark.usefixtures("filled")
def test_the_filters_offer_the_cohorts_and_models_that_there_are():
    app = AppTest.from_file(str(APP), default_timeout=20).run()
    assert app.selectbox(key="cohort").options == ["fiction", "json"]
    assert app.selectbox(key="model").options == ["smollm2-135m-instruct"]


@pytest.mark.usefixtures("filled")
def test_a_time_zone_in_the_url_goes_before_the_browsers():
    app = AppTest.from_file(str(APP), default_timeout=20)
    app.query_params["tz"] = "Asia/Kolkata"
    app.context = {"timezone": "Europe/Paris"}
    app.run()
    assert any("Asia/Kolkata" in caption.value for caption in app.caption)


@pytest.mark.usefixtures("filled")
def test_filters_are_in_the_url_in_the_words_of_the_command():
    app = AppTest.from_file(str(APP), default_timeout=20)
    app.query_params["idle"], app.query_params["basis"] = "even", "spot"
    app.run()
    assert (app.selectbox(key="idle").value, app.selectbox(key="basis").value) == ("even", "spot")


def test_time_zones_have_utc_first_and_those_that_people_live_in():
    assert zones()[0] == "UTC"
    assert {"Europe/Berlin", "America/New_York"} <= set(zones())

"""The pages on a database worked out by hand (conftest.py), and on databases that cannot be read."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from streamlit.testing.v1 import AppTest

from controlplane.alerts import Alert
from controlplane.finops.pricing import load_prices
from controlplane.store.engine import open_database
from controlplane.store.journal import SqlJournal
from controlplane.store.price_book import save_prices
from controlplane.store.queries import TimeRange, cost_report
from dashboard import format as fmt
from dashboard.serve import APP
from tests.dashboard.looks import app_of, figures, pointed_at

EVIL = "<img src=x onerror=alert(1)>"
PAGES = ("pages/overview.py", "pages/speculation.py")


def open_page(page: str = PAGES[0], **query: str) -> AppTest:
    app = app_of()
    for name, value in query.items():
        app.query_params[name] = value
    if page != PAGES[0]:  # alone: the filters above it are at their defaults
        assert not query
        app.switch_page(page)
    app.run()
    assert not app.exception
    return app


@pytest.fixture(scope="module")
def pages(make_ledger, tmp_path_factory):
    """Each page as it is seen once, and the ledger, for tests that only look."""
    ledger = make_ledger(tmp_path_factory.mktemp("pages"))
    ledger.migrate()
    ledger.price()
    ledger.fill()
    with pointed_at(ledger):
        seen = SimpleNamespace(ledger=ledger, overview=open_page(), speculation=open_page(PAGES[1]))
    return seen


def said(app: AppTest) -> str:
    """Every sentence in place of figures, with Markdown's escapes taken away."""
    return "\n".join(box.value for kind in (app.error, app.info, app.warning) for box in kind).replace("\\", "")


def captions(app: AppTest) -> str:
    return "\n".join(c.value for c in app.caption).replace("\\", "")


def bill(app: AppTest) -> dict[str, dict[str, str]]:
    table = next(d.value for d in app.dataframe if "Per million tokens" in d.value.columns)
    return {row["Cohort"]: dict(row) for _, row in table.iterrows()}


def test_the_key_figures_are_those_worked_out_by_hand(pages):
    assert figures(pages.overview) == {
        "Cost per 1M tokens": "$4.000",
        "Tokens per second": "250.0",
        "Acceptance length": "3.21",
        "Energy per token": "0.04000 J",
        "Idle share": "20.0 %",
        "Emitted tokens": "5,000",
        "Saved by speculation": "not measured",
        "Budgets": "none set",
        "Active alerts": "0",
    }


@pytest.mark.usefixtures("filled")
def test_a_cohort_in_the_url_narrows_the_key_figures_to_it():
    assert figures(open_page(cohort="json")) == {
        "Cost per 1M tokens": "$3.000",
        "Tokens per second": "200.0",
        "Acceptance length": "4.00",
        "Energy per token": "0.03000 J",
        "Idle share": "20.0 %",
        "Emitted tokens": "4,000",
        "Saved by speculation": "not measured",
        "Budgets": "none set",
        "Active alerts": "0",
    }


def test_the_bill_shows_each_cohort_then_idle_then_the_total(pages):
    rows = bill(pages.overview)
    assert list(rows) == ["fiction", "json", "idle", "total"]
    assert [r["Cost"] for r in rows.values()] == ["$0.004000", "$0.01200", "$0.004000", "$0.02000"]
    assert [r["Per million tokens"] for r in rows.values()] == ["$4.000", "$3.000", fmt.NOTHING, "$4.000"]


def test_every_figure_of_the_bill_is_the_cost_reports(pages):
    engine = open_database(pages.ledger.url)
    now = time.time()
    report = cost_report(engine, TimeRange(now - 3600, now), "cohort", load_prices(pages.ledger.prices))
    engine.dispose()
    rows = bill(pages.overview)
    for row in (*report.rows, report.idle, report.total):
        assert rows[row.key]["Cost"] == fmt.cost(row.cost_nano, report.currency)
        assert rows[row.key]["Emitted tokens"] == fmt.count(row.emitted_tokens)
        assert rows[row.key]["Energy"] == fmt.energy(row.energy_uj)
        assert rows[row.key]["Requests"] == fmt.count(row.requests)


def test_without_a_price_costs_are_unpriced_and_never_zero(ledger):
    ledger.migrate()
    ledger.price("version: 1\nprices: []\n")
    ledger.fill()
    app = open_page()
    assert figures(app)["Cost per 1M tokens"] == "unpriced"
    assert {r["Cost"] for r in bill(app).values()} == {"unpriced"}


def test_what_is_missing_from_the_price_sheet_is_said_beside_the_figures(ledger):
    ledger.migrate()
    ledger.fill()
    app = open_page()
    assert figures(app)["Emitted tokens"] == "5,000"
    assert "test-machine has no on_demand price" in captions(app)


def test_a_price_sheet_that_cannot_be_used_leaves_the_other_figures(ledger):
    ledger.migrate()
    ledger.price("version: 1\nprices: [{sku: test-machine}]\n")
    ledger.fill()
    app = open_page()
    assert figures(app)["Cost per 1M tokens"] == "unpriced"
    assert figures(app)["Emitted tokens"] == "5,000"
    assert "prices[0].basis: is missing" in captions(app)


def test_without_a_price_file_the_prices_in_the_database_count(ledger):
    ledger.migrate()
    ledger.price()
    engine = open_database(ledger.url)
    save_prices(engine, load_prices(ledger.prices))
    engine.dispose()
    ledger.prices.unlink()
    ledger.fill()
    assert figures(open_page())["Cost per 1M tokens"] == "$4.000"


def test_energy_that_was_not_measured_is_not_zero(ledger):
    ledger.migrate()
    ledger.price()
    ledger.fill(measured=False)
    app = open_page()
    assert figures(app)["Energy per token"] == "not measured"
    assert {r["Energy"] for r in bill(app).values()} == {"not measured"}


def test_the_speculation_page_shows_the_plan_in_force(pages):
    app = pages.speculation
    assert figures(app)["Plan version"] == "7"
    assert figures(app)["Kill switch"] == "off"
    assert figures(app)["Expiry"].startswith("in 59 min")
    plan = next(d.value for d in app.dataframe if "Fallback" in d.value.columns)
    assert plan.values.tolist() == [["json", *[4] * 9, 2], ["fiction", *[1] * 9, 0]]


def test_the_speculation_page_counts_what_was_drafted_and_accepted(pages):
    counts = next(d.value for d in pages.speculation.dataframe if "Draft tokens" in d.value.columns)
    json = counts.set_index("Cohort").loc["json"]
    assert json["Draft tokens"] == 4000
    assert json["Accepted tokens"] == 3000
    assert json["Accepted"] == 0.75
    assert json["Planned K"] == 4


@pytest.mark.usefixtures("filled")
def test_times_are_told_in_the_readers_zone():
    app = app_of()
    app.context = {"timezone": "Asia/Kolkata"}
    app.run()
    assert "Asia/Kolkata" in captions(app)


@pytest.mark.usefixtures("filled")
def test_an_unknown_range_or_cohort_in_the_url_is_the_default():
    app = open_page(range="forever", cohort="nobody")
    assert figures(app)["Emitted tokens"] == "5,000"


@pytest.mark.parametrize("page", PAGES)
def test_html_in_a_cohorts_name_stays_text(ledger, page):
    ledger.migrate()
    ledger.price()
    ledger.fill(first=EVIL)
    app = open_page(page)
    assert any(EVIL in d.value.to_string(max_colwidth=None) for d in app.dataframe)
    for element in (*app.markdown, *app.caption, *app.metric, *app.title, *app.header):
        assert "<img" not in str(element.value)


def test_a_range_without_traffic_says_when_there_was_some(ledger):
    ledger.migrate()
    ledger.price()
    ledger.fill(age_s=86_400)
    app = open_page()
    assert "No traffic in this time range" in said(app)
    assert "kadence load" in said(app)


@pytest.mark.parametrize("page", PAGES)
def test_a_database_without_traffic_says_how_to_make_some(ledger, page):
    ledger.migrate()
    app = open_page(page)
    assert "No traffic yet" in said(app)
    assert "kadence load" in said(app)


def test_a_missing_database_says_how_to_make_one_and_is_not_created_by_looking(ledger):
    app = open_page()
    assert "There is no database at sqlite:///" in said(app)
    assert "kadence up" in said(app)
    assert not ledger.path.exists()


def test_an_unmigrated_database_says_to_upgrade(ledger):
    sqlite3.connect(ledger.path).close()
    ledger.path.touch()
    assert "kadence db upgrade" in said(open_page())


def test_a_database_of_a_newer_revision_says_to_update(filled):
    set_revision(filled.path, "9999")
    assert "newer version of Kadence" in said(open_page())


def test_a_database_of_an_older_revision_says_to_upgrade(filled, monkeypatch):
    monkeypatch.setattr("controlplane.store.queries.head", lambda: "0002")
    app = open_page()
    assert "older version of Kadence" in said(app)
    assert "kadence db upgrade" in said(app)


def test_a_locked_database_says_so_and_recovers(filled):
    holder = sqlite3.connect(filled.path, isolation_level=None)
    holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    app = open_page()
    assert "locked by another process" in said(app)
    holder.execute("COMMIT")
    holder.close()
    app.run()
    assert figures(app)["Emitted tokens"] == "5,000"


def test_a_database_that_goes_away_is_missed_and_found_again(filled):
    app = open_page()
    away = filled.path.rename(filled.path.with_suffix(".away"))
    app.run()
    assert "There is no database" in said(app)
    away.rename(filled.path)
    app.run()
    assert figures(app)["Emitted tokens"] == "5,000"


def test_a_file_that_is_no_database_is_one_sentence(ledger):
    ledger.path.write_bytes(b"not a database at all" * 100)
    assert "cannot be read" in said(open_page())


def test_wrong_settings_are_one_sentence(ledger, monkeypatch):
    monkeypatch.setenv("KADENCE_PORT", "eighty")
    assert "KADENCE_PORT" in said(open_page())


def set_revision(path: Path, revision: str) -> None:
    with sqlite3.connect(path) as db:
        db.execute("update alembic_version set version_num = ?", (revision,))
    db.close()


def test_no_line_where_no_alert_is_active(pages):
    assert not [text for text in pages.overview.text if "kadence alerts" in text.value]


def test_an_active_alert_is_a_line_on_the_overview_until_it_is_cleared(filled):
    alert = Alert("canary", "ngram@1", "critical", time.time() - 60, time.time(), 3, f"text of {EVIL} is not right")
    journal = SqlJournal(open_database(filled.url))
    journal.alert(alert)
    journal.flush()
    app = open_page()
    assert [text.value for text in app.text if "kadence alerts" in text.value] == [
        f"{alert.detail}. To clear it: kadence alerts clear canary:ngram@1 --why '...'"
    ]
    journal.alert(replace(alert, state="cleared", cleared_at=time.time(), cleared_by="ann"))
    journal.close()
    app = open_page()
    assert not [text for text in app.text if "kadence alerts" in text.value]


def test_a_browser_that_has_just_come_gets_the_figures_alone_and_then_the_whole_page(pages) -> None:
    with pointed_at(pages.ledger):
        app = AppTest.from_file(str(APP), default_timeout=20).run()
        alone = figures(app)
        assert [len(app.get(kind)) for kind in ("metric", "skeleton", "dataframe", "vega_lite_chart")] == [
            9,
            1,
            0,
            0,
        ]
        app.run()
    assert figures(app) == alone
    assert [len(app.get(kind)) for kind in ("skeleton", "dataframe", "vega_lite_chart")] == [0, 2, 3]

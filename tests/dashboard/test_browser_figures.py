"""Every page in headless Chromium on a ledger worked out by hand, against `kadence cost report --json` of its range.

The ledger is written by the controller's own journal. Machine a costs 36 USD an hour on demand (0.01 a second) and 18
on spot; machine b has no price and nothing measures it. Each window of machine a is 100 s, busy for 80, and draws
1,000 J, of which 200 at rest, so that work takes 10 J a busy second.

First hour, window 1 (with speculation): 64 s of steps with 8 s of drafting in them: 56 s verification, 8 s drafting,
and 16 s prefill. By positions: verification 500 : 200, draft tokens 400 : 100, prefill 300 : 100.
  json  100 steps of 4 drafts, 3 kept: 400 tokens; 40 + 6.4 + 12 = 58.4 s
        wasted: 100 of 500 positions and of 400 drafts: 8 + 1.6 = 9.6 s, 0.096 USD, 96 J
  EVIL  100 steps of 1 draft, none kept: 100 tokens; 16 + 1.6 + 4 = 21.6 s
        wasted: 100 of 200 positions and all of its drafting: 8 + 1.6 = 9.6 s, 0.096 USD, 96 J
Window 2 (without): json 400 plain steps, 400 tokens, 80 s.
  json  138.4 s, 1.384 USD, 800 tokens: 1,730 a million, 1,384 J, 1.73 J a token
  EVIL   21.6 s, 0.216 USD, 100 tokens: 2,160 a million,   216 J, 2.16 J a token
  idle     40 s, 0.400 USD, 400 J; total 200 s, 2.000 USD, 900 tokens: 2,222.22 a million, 2,000 J
  experiment: 80 s for 500 tokens against 80 s for 400, one pair: 20 % of capacity saved, and of cash and energy
Second hour: `dark` on machine b, 100 tokens: unpriced and not measured, and so the total of both hours is unpriced.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from decimal import Decimal
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest
from typer.testing import CliRunner

from controlplane.cost_cli import cost_app
from controlplane.decision.plan import Plan
from controlplane.experiment import Run, Spec, Window
from controlplane.experiment_cli import experiment_app
from controlplane.policy import parse_policy
from controlplane.store.engine import open_database
from controlplane.store.experiments import fill_windows
from controlplane.store.journal import SqlJournal
from controlplane.store.time_range import iso
from controlplane.telemetry import (
    LOAD_BUCKETS,
    CohortWindow,
    LatencyCell,
    ProfileCell,
    Report,
    StepCell,
    StepCount,
    TenantUse,
    WindowId,
    WorkerWindow,
)
from dashboard import energy_figures, savings_figures, screenshot
from dashboard import format as fmt

pytest.importorskip("playwright", reason="playwright is not installed")
pytestmark = [
    pytest.mark.pages,
    pytest.mark.skipif(screenshot.find_chromium() is None, reason="chromium is not installed"),
]

EVIL = "<img src=x onerror=alert(1)>**bold**"
HOUR = (int(time.time()) // 3600 - 2) * 3600
POLICY = """\
version: 1
cohorts:
  - name: json
    match: {api_key: [acme]}
    speculation: {tuner: goodput, ladder: [0, 2, 4], start: 4, fallback: 2}
  - {name: default, match: {}, speculation: {tuner: fixed, ladder: [0, 1], start: 1, fallback: 0}}
"""
DAY = time.strftime("%Y-%m-%d", time.gmtime(HOUR))
PRICES = f"""version: 1
prices:
  - {{sku: machine-a, basis: on_demand, currency: USD, per_hour: "36.00", source: by hand, as_of: {DAY},
     effective_from: 2020-01-01}}
  - {{sku: machine-a, basis: spot, currency: USD, per_hour: "18.00", source: by hand, as_of: {DAY},
     effective_from: 2020-01-01}}
"""
FIRST = {"range": "custom", "from": iso(HOUR), "to": iso(HOUR + 3600)}
BOTH = {"range": "custom", "from": iso(HOUR), "to": iso(HOUR + 7200)}
SHOWN = ".st-key-shown-custom"
WIDE = (2400, 900)
"""A table draws, and has in the accessible DOM, only the columns that there is room for."""


def window(number: int, worker: str, at: float, *cohorts: CohortWindow, **changes: Any) -> WorkerWindow:
    values: dict[str, Any] = {
        "device": "machine-a", "busy_s": 80.0, "energy_uj": 1_000_000_000, "idle_energy_uj": 200_000_000,
        "energy_source": "counter",
    }  # fmt: skip
    return WorkerWindow(
        id=WindowId(worker, 1, number), model="m", drafter="ngram@1", started_at=at, ended_at=at + 100, plan_version=1,
        plan_expired=False, plan_age_s=0.0, running=1, waiting=0, kv_used=0, kv_total=1, cohorts=cohorts,
        **{**values, **changes},
    )  # fmt: skip


def steps(k: int, kept: int, count: int, seconds: float) -> tuple[StepCell, ...]:
    return (StepCell(0, k, (StepCount(k, kept, False, count),), seconds),)


def cohort(name: str, cells: tuple[StepCell, ...], use: TenantUse) -> CohortWindow:
    return CohortWindow(
        name, cells, prefill_positions=use.prefill_positions, requests_finished=use.requests, tenants=(use,)
    )


def windows() -> list[WorkerWindow]:
    json_use = TenantUse("acme", 300, 500, 0, 400, 300, 300, 400, 4)
    evil_use = TenantUse(None, 100, 200, 0, 100, 0, 100, 100, 1)
    profile = tuple(ProfileCell(n, k, 0, 0.2 + 0.02 * k, 0.0) for n in (1, 2) for k in (0, 1, 2, 4))
    return [
        window(
            0, "w0", HOUR + 60,
            cohort("json", steps(4, 3, 100, 46.4), json_use),
            cohort(EVIL, steps(1, 0, 100, 17.6), evil_use),
            latency=(LatencyCell(1, 3, 200, 64.0, 0, 8.0),), profile=profile,
        ),
        window(
            1, "w0", HOUR + 200,
            cohort("json", steps(0, 0, 400, 80.0), TenantUse("acme", 0, 400, 0, 0, 0, 0, 400, 0)),
            latency=(LatencyCell(1, 1, 400, 80.0, 0, 0.0),),
        ),
        window(
            0, "w1", HOUR + 3660, CohortWindow("dark", steps(0, 0, 100, 50.0)), device="machine-b", busy_s=50.0,
            energy_uj=None, idle_energy_uj=None, energy_source="none", latency=(LatencyCell(1, 1, 100, 50.0, 0, 0.0),),
        ),
    ]  # fmt: skip


def write(url: str) -> None:
    engine = open_database(url)
    journal = SqlJournal(engine)
    k = {"json": (4,) * len(LOAD_BUCKETS), EVIL: (1,) * len(LOAD_BUCKETS)}
    plan = Plan(1, 1, float(HOUR), HOUR + 9e5, k, {"json": 2, EVIL: 0}, "r")
    journal.policy_applied(parse_policy(POLICY), "test", "by hand", float(HOUR))
    spec = Spec("window", 0.5, 110.0, 10.0, 10)
    journal.experiment(Run("exp-1", spec, 7, HOUR + 50.0, "ann", "to see"))
    journal.experiment_windows(
        [
            Window("exp-1", 0, arm, HOUR + at, HOUR + at + 10.0, HOUR + at + 110.0, "r", "done")
            for arm, at in (("treatment", 50.0), ("control", 190.0))
        ]
    )
    for each in windows():
        journal.record([Report(each)], [], plan, each.ended_at + 0.1)
    journal.close()
    fill_windows(engine, time.time())
    engine.dispose()


@pytest.fixture(scope="module")
def site(make_ledger, serving, tmp_path_factory) -> Iterator[Any]:
    """The running dashboard, a browser, and what the commands print of the same database."""
    folder = tmp_path_factory.mktemp("figures")
    ledger = make_ledger(folder)
    ledger.migrate()
    ledger.price(PRICES)
    write(ledger.url)

    def printed(command: str, app: Any = cost_app) -> Any:
        asked = shlex.split(command)[2:]
        if app is cost_app:
            asked += ["--prices", str(ledger.prices)]
        done = CliRunner().invoke(
            app, [*asked, "--database-url", ledger.url], env={"KADENCE_PRICES": str(ledger.prices)}
        )
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    with serving(ledger, folder, dashboard_refresh_s=60) as url, screenshot.chromium() as browser:
        yield SimpleNamespace(url=url, browser=browser, printed=printed)


@pytest.fixture
def look(site) -> Iterator[Any]:
    """Opens a page with these filters; afterwards nothing of a cohort's name may have run."""
    opened: list[Any] = []
    dialogs: list[str] = []

    def open_it(page_name: str, query: dict[str, str], **more: str) -> Any:
        address = f"{site.url}/{page_name}?{urlencode({**query, **more})}"
        page = screenshot.open_page(site.browser, address, size=WIDE)
        page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        page.locator(SHOWN).wait_for()
        opened.append(page)
        return page

    yield open_it
    for page in opened:
        assert page.locator("img[src=x]").count() == 0
        assert page.locator("strong", has_text="bold").count() == 0
        page.context.close()
    assert dialogs == []


@pytest.fixture(scope="module")
def first(site) -> Any:
    return site.printed(f"kadence cost report --since {FIRST['from']} --until {FIRST['to']} --basis all --json")


@pytest.fixture(scope="module")
def both(site) -> Any:
    return site.printed(f"kadence cost report --since {BOTH['from']} --until {BOTH['to']} --basis all --json")


def lines(answer: Any) -> dict[str, Any]:
    """Rows, idle and total of a printed report, by name."""
    by = answer["by"]
    return {**{row[by]: row for row in answer["rows"]}, "idle": answer["idle"], "total": answer["total"]}


def money(text: str | None, unknown: str = fmt.UNPRICED) -> str:
    return unknown if text is None else fmt.money(Decimal(text), "USD")


def unit(row: Any, key: str = "cost_per_million_tokens") -> str:
    """A unit cost: unpriced where the cost is, a dash where there was no token."""
    return fmt.UNPRICED if row["cost"] is None else money(row[key], fmt.NOTHING)


def joules(value: float | None, unknown: str = fmt.NOT_MEASURED) -> str:
    return unknown if value is None else f"{fmt.number(value)} J"


def table(page: Any, column: str) -> dict[str, dict[str, str]]:
    """The table with that column, by its first column."""
    page.locator("[role=columnheader]", has_text=column).first.wait_for(state="attached")
    tables = screenshot.read_tables(page)
    found = next((rows for rows in tables if rows and column in rows[0]), None)
    assert found is not None, f"no column {column!r} in {tables}"
    return {next(iter(row.values())): row for row in found}


def test_what_the_command_prints_is_what_was_worked_out(first, both):
    rows = lines(first)
    assert {name: (row["cost"], row["energy_j"]) for name, row in rows.items()} == {
        EVIL: ("0.216000000", 216.0),
        "json": ("1.384000000", 1384.0),
        "idle": ("0.400000000", 400.0),
        "total": ("2.000000000", 2000.0),
    }
    assert [Decimal(rows[name]["cost_per_million_tokens"]) for name in ("json", EVIL)] == [1730, 2160]
    assert [(Decimal(rows[name]["wasted_cost"]), rows[name]["wasted_j"]) for name in ("json", EVIL)] == [
        (Decimal("0.096"), 96.0)
    ] * 2
    assert (lines(both)["dark"]["cost"], lines(both)["dark"]["energy_j"], both["total"]["cost"]) == (None, None, None)


@pytest.mark.parametrize("hours", ["first", "both"])
def test_the_overview_has_the_numbers_of_the_report(look, request, hours):
    answer = request.getfixturevalue(hours)
    page = look("", FIRST if hours == "first" else BOTH)
    figures, rows, total = screenshot.read_figures(page), lines(answer), answer["total"]
    assert figures["Cost per 1M tokens"] == unit(total)
    assert figures["Cost per 1M, spot"] == unit(answer["bases"]["spot"]["total"])
    assert figures["Energy per token"] == joules(total["j_per_token"])
    assert figures["Idle share"] == fmt.share(answer["idle_s"], answer["machine_s"])
    assert figures["Emitted tokens"] == fmt.count(total["emitted_tokens"])
    assert (figures["Acceptance length"], figures["Saved by speculation"]) == (
        "2.50",
        "no verdict yet",
    )  # 1 + 300 / 200
    bill = table(page, "Per million tokens")
    assert set(bill) == set(rows)
    for name, row in rows.items():
        assert bill[name]["Cost"] == money(row["cost"])
        assert bill[name]["Per million tokens"] == unit(row)
        assert bill[name]["Emitted tokens"] == fmt.count(row["emitted_tokens"])
        assert bill[name]["Wasted cost"] == money(row["wasted_cost"])
        assert bill[name]["Energy"] == joules(row["energy_j"])
        assert bill[name]["Requests"] == fmt.count(row["requests"])


def test_a_cohort_with_markup_in_its_name_is_chosen_and_shown_as_text(look, first):
    page = look("", FIRST, cohort=EVIL)
    assert screenshot.read_figures(page)["Cost per 1M tokens"] == unit(lines(first)[EVIL]) == "$2,160.00"
    assert page.get_by_text(EVIL, exact=True).count() or page.locator(f'input[value="{EVIL}"]').count()


@pytest.mark.parametrize(
    "query", [FIRST, BOTH, {**FIRST, "by": "tenant", "idle": "even"}], ids=["", "unpriced", "tenant"]
)
def test_the_cost_page_has_the_numbers_of_the_command_that_it_shows(site, look, query):
    page = look("cost", query)
    command = page.locator("[data-testid=stCode]").first.inner_text().strip()
    answer = site.printed(command)
    by, total, figures = answer["by"], answer["total"], screenshot.read_figures(page)
    assert [
        figures[name] for name in ("Cost", "Per 1M tokens", "Idle cost", "Wasted cost", "Prefill cost", "Decode cost")
    ] == [
        money(total["cost"]),
        unit(total),
        *(money(total[key]) for key in ("idle_cost", "wasted_cost", "input_cost", "output_cost")),
    ]
    bill = table(page, "On demand cost")
    assert set(bill) == set(lines(answer))
    for name, row in lines(answer).items():
        of_bases = row.get("by_basis") or {basis: each[name] for basis, each in answer["bases"].items()}
        for basis, label in (("on_demand", "On demand"), ("spot", "Spot")):
            assert bill[name][f"{label} cost"] == money(of_bases[basis]["cost"])
            assert bill[name][f"{label} per 1M"] == unit(of_bases[basis])
        if name != "idle":
            assert bill[name]["Emitted tokens"] == fmt.count(row["emitted_tokens"])
            assert bill[name]["Wasted"] == money(row["wasted_cost"])
            assert bill[name]["Energy"] == joules(row["energy_j"])
    assert by == query.get("by", "cohort")


@pytest.mark.parametrize("hours", ["first", "both"])
def test_the_energy_page_has_the_numbers_of_the_report(look, request, hours):
    answer = request.getfixturevalue(hours)
    page = look("energy", FIRST if hours == "first" else BOTH)
    figures, total = screenshot.read_figures(page), answer["total"]
    shown = [
        figures[name] for name in ("Energy", "Energy per token", "Without idle", "Idle energy", "Wasted", "Carbon")
    ]
    keys = ("energy_j", "j_per_token", "active_j_per_token", "idle_j", "wasted_j")
    assert shown == [*(joules(total[key]) for key in keys), "no zone"]
    cohorts = table(page, "With its idle")
    for name, row in lines(answer).items():
        assert cohorts[name]["Energy"] == joules(row["energy_j"])
        assert cohorts[name]["Measured by"] == energy_figures.source_text(row["energy_source"])


def test_the_speculation_page_has_the_numbers_of_the_report(look, first):
    page = look("speculation", FIRST)
    waste, counts = table(page, "Rejected tokens"), table(page, "Steps")
    for name, row in lines(first).items():
        if name == "idle":
            continue
        assert waste[name]["Rejected tokens"] == fmt.count(row["draft_tokens"] - row["accepted_tokens"])
        assert (waste[name]["Cost"], waste[name]["Energy"]) == (money(row["wasted_cost"]), joules(row["wasted_j"]))
        if name != "total":
            assert (counts[name]["Draft tokens"], counts[name]["Emitted tokens"], counts[name]["Steps"]) == tuple(
                fmt.count(row[key]) for key in ("draft_tokens", "emitted_tokens", "steps")
            )
    assert (waste["json"]["Machine time"], waste[EVIL]["Machine time"]) == ("9.600 s", "9.600 s")


def test_the_savings_page_has_the_numbers_of_the_experiment_report(site, look):
    page = look("savings", FIRST)
    told = site.printed("kadence experiment report exp-1 --json", experiment_app)
    figures = screenshot.read_figures(page)
    for measure, each in told["savings"].items():
        assert figures[measure.capitalize()] == savings_figures.percent(each["share"]) == "+20.0%"
    assert page.get_by_text(told["headline"]).first.is_visible()


def test_the_what_if_page_rests_on_the_bill_of_the_range(look, first):
    page = look("what_if", FIRST)
    says = page.get_by_text("The bill of the range says").inner_text()
    assert f"says {unit(first['total'])} per million tokens" in says


def test_the_policy_page_has_the_k_of_the_plan_on_record(look):
    page = look("policy", FIRST)
    effective = table(page, "K by load")
    assert (effective["json"]["K by load"], effective["default"]["K by load"]) == ("4 4 4 4 4 4 4 4 4", "no plan")

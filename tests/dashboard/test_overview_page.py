"""The Overview on the ledger of conftest.py, worked out by hand there, and against `kadence cost report --json`."""

from __future__ import annotations

import json
import time
from decimal import Decimal
from math import exp
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

from controlplane.alerts import Alert
from controlplane.cost_cli import cost_app
from controlplane.experiment_cli import experiment_app
from controlplane.finops.savings import LENGTH_BOUNDS
from controlplane.store.engine import open_database
from controlplane.store.experiment_models import ExperimentEntry, ExperimentWindow
from controlplane.store.journal import SqlJournal
from controlplane.store.models import DecisionEntry, PlanEntry, PolicyRevision
from controlplane.telemetry import LATENCY_BOUNDS_S
from dashboard import format as fmt
from tests.dashboard.looks import figures, opened, pointed_at

EVIL = "<img src=x onerror=alert(1)>"
HOUR, NS = 3600.0, 10**9
TWO_BASES = """version: 1
prices:
  - {sku: test-machine, basis: on_demand, currency: USD, per_hour: "3.60", source: by hand, as_of: DAY,
     effective_from: 2020-01-01}
  - {sku: test-machine, basis: spot, currency: USD, per_hour: "0.90", source: by hand, as_of: DAY,
     effective_from: 2020-01-01}
""".replace("DAY", time.strftime("%Y-%m-%d"))
POLICY = """version: 1
cohorts:
  - name: json
    match: {headers: {x-kadence-cohort: json}}
    speculation: {tuner: fixed, ladder: [2], start: 2, fallback: 2}
    budget: {usd: 0.01, period: month, timezone: UTC}
  - name: default
    match: {}
    speculation: {tuner: fixed, ladder: [0], start: 0, fallback: 0}
"""


def words(app: AppTest) -> str:
    return "\n".join(str(e.value) for kind in (app.caption, app.text) for e in kind).replace("\\", "")


@pytest.fixture
def two_bases(ledger):
    ledger.migrate()
    ledger.price(TWO_BASES)
    ledger.fill()
    return ledger


@pytest.fixture(scope="module")
def seen(make_ledger, tmp_path_factory):
    """One look at the page with two bases, for tests that only read it."""
    ledger = make_ledger(tmp_path_factory.mktemp("seen"))
    ledger.migrate()
    ledger.price(TWO_BASES)
    ledger.fill()
    with pointed_at(ledger):
        yield opened()


def test_every_price_basis_of_the_sheet_has_its_card(seen):
    # 20 s for 5,000 tokens: on demand 0.020 USD, 4.00 per million; spot 0.00025 USD a second, 0.005 USD, 1.00.
    found = figures(seen)
    assert found["Cost per 1M tokens"] == "$4.000"
    assert found["Cost per 1M, spot"] == "$1.000"


@pytest.mark.parametrize(
    ("query", "flags", "by"),
    [
        ({}, (), "cohort"),
        ({"cohort": "json"}, ("--where", "cohort=json"), "cohort"),
        ({"model": "smollm2-135m-instruct"}, ("--by", "model", "--where", "model=smollm2-135m-instruct"), "model"),
    ],
)
def test_the_key_figures_are_those_of_the_cost_report(two_bases, query, flags, by):
    asked = ["report", "--since", "1h", "--basis", "all", "--json", "--database-url", two_bases.url, *flags]
    answer: Any = json.loads(CliRunner().invoke(cost_app, asked).stdout)
    row = answer["total"] if not query else answer["rows"][0]
    spot = answer["bases"]["spot"]["total"] if not query else row["by_basis"]["spot"]
    found = figures(opened(**query))
    assert found["Cost per 1M tokens"] == fmt.money(Decimal(row["cost_per_million_tokens"]), "USD")
    assert found["Cost per 1M, spot"] == fmt.money(Decimal(spot["cost_per_million_tokens"]), "USD")
    assert found["Energy per token"] == f"{fmt.number(row['j_per_token'])} J"
    assert found["Emitted tokens"] == fmt.count(row["emitted_tokens"])
    assert found["Idle share"] == fmt.share(answer["idle_s"], answer["machine_s"])


def test_a_figure_is_held_against_the_stretch_of_the_same_length_before(ledger):
    ledger.migrate()
    ledger.price()
    for i, age_s in enumerate((2.2 * HOUR, 1.2 * HOUR, 0.0)):
        ledger.fill(age_s=age_s, sequence=2 * i)
    card = next(m for m in opened().metric if m.label == "Cost per 1M tokens")
    assert card.delta == "+0.0 %"


def test_without_anything_before_there_is_no_change_to_show(seen):
    card = next(m for m in seen.metric if m.label == "Cost per 1M tokens")
    assert card.delta == ""


def test_without_an_experiment_the_saving_is_not_measured_and_says_how_to_start_one(seen):
    assert figures(seen)["Saved by speculation"] == "not measured"
    assert "kadence experiment start" in words(seen)


def test_the_source_of_the_energy_is_beside_it(seen):
    assert "source: counter" in words(seen)


def test_energy_that_was_not_measured_has_no_source(ledger):
    ledger.migrate()
    ledger.price()
    ledger.fill(measured=False)
    app = opened()
    assert figures(app)["Energy per token"] == "not measured"
    assert "source: none" in words(app)


def test_an_exceeded_budget_is_on_its_card_and_the_first_thing_to_change(two_bases):
    # json used 12 s of 0.001 USD: 0.012 of 0.01 USD.
    two_bases.add([PolicyRevision(revision="a" * 12, applied_at=1.0, applied_by="ann", why="", text=POLICY)])
    app = opened()
    assert figures(app)["Budgets"] == "1 of 1 exceeded"
    assert app.text[0].value.startswith("Budget json is exceeded: $0.01200 of $0.01000")


def test_a_cohort_that_is_switched_off_is_named_with_its_reason(ledger):
    ledger.migrate()
    ledger.price()
    ledger.fill()
    now = time.time()
    sentence = "json 2 -> 0 at load 2: position 1 accepted 3 % (floor 50 %), 100 samples"
    off = DecisionEntry(
        at=now - 5, cohort="json", load_bucket=1, old_k=2, new_k=0, reason="below_floor", sentence=sentence,
        samples=100, accept_at=[0.03], plan_version=8, policy_revision="0123456789ab",
    )  # fmt: skip
    plan = PlanEntry(
        version=8, epoch=1, issued_at=now - 5, expires_at=now + HOUR, k={"json": [0] * 9, "fiction": [1] * 9},
        fallback={}, policy_revision="0123456789ab", kill_switch="off",
    )  # fmt: skip
    ledger.add([off, plan])
    assert f"json is served without speculation: {sentence}." in [text.value for text in opened().text]


def test_why_k_is_what_it_is_stands_beside_k(seen):
    table = next(d.value for d in seen.dataframe if "Why" in d.value.columns)
    why = {row["Cohort"]: (row["K"], row["Why"]) for _, row in table.iterrows()}
    assert why["json"] == ("4", "2 → 4 at load 2: position 2 accepted 83 % (floor 50 %), 100 samples")


def test_each_figure_links_to_the_page_it_comes_from(seen):
    linked = {link.label for link in seen.page_link}
    assert {"Cost", "Speculation"} <= linked


def test_html_in_names_of_alerts_and_cohorts_stays_text(ledger):
    ledger.migrate()
    ledger.price()
    ledger.fill(first=EVIL)
    journal = SqlJournal(open_database(ledger.url))
    journal.alert(Alert("anomaly", f"{EVIL}/2026", "warning", time.time(), time.time(), 1, f"{EVIL} costs twice"))
    journal.close()
    app = opened(cohort=EVIL)
    assert f"Unusual: {EVIL} costs twice." in [text.value for text in app.text]
    for element in (*app.markdown, *app.caption, *app.metric, *app.title, *app.header):
        assert "<img" not in str(element.value)


def experiment(pairs: int = 12) -> list[Any]:
    """Pairs of minutes: a token takes 10 ms of busy time without speculation, 8 ms with it, give or take 1 %. So 20 %
    of capacity is saved.
    """
    start = time.time() - 3000
    nothing = {"counts": [0] * (len(LATENCY_BOUNDS_S) + 1), "sum_s": 0.0}
    rows: list[Any] = [
        ExperimentEntry(
            experiment="exp-1", unit="window", holdout=0.5, window_s=60.0, burn_in_s=10.0, pairs=20, seed=7,
            started_at=start, ended_at=None, started_by="ann", why="", state="running", sentence="",
        )
    ]  # fmt: skip
    for i in range(pairs):
        for n, arm in enumerate(("treatment", "control") if i % 2 else ("control", "treatment")):
            half = round(5 * NS * (0.8 * exp(0.01 * (-1) ** (i // 2)) if arm == "treatment" else 1.0))
            at = start + 120 * i + 60 * n
            rows.append(
                ExperimentWindow(
                    experiment="exp-1", pair=i, arm=arm, started_at=at, burn_in_end=at + 10, ended_at=at + 60,
                    policy_revision="p1", state="done", reason="", windows=1, seconds_ns=60 * NS, busy_ns=2 * half,
                    machine_ns={"test-machine": 60 * NS}, tokens=1000, energy_uj=None, measured_tokens=0,
                    energy_sources=[], early_busy_ns=half, early_tokens=500, draft_tokens=0, requests=6, failed=0,
                    prompt_tokens=300, completion_tokens=1000, lengths=[0] * (len(LENGTH_BOUNDS) + 1), ttft=nothing,
                    tpot=nothing, filled_at=at + 60,
                )
            )  # fmt: skip
    return rows


def test_the_saving_and_its_interval_are_those_of_the_experiments_report(two_bases):
    two_bases.add(experiment())
    done = CliRunner().invoke(experiment_app, ["report", "--json", "--database-url", two_bases.url])
    answer = json.loads(done.stdout)
    app = opened()
    assert figures(app)["Saved by speculation"] == f"{100 * answer['savings']['capacity']['share']:.1f} %" == "20.0 %"
    assert answer["headline"].startswith("a saving of 20.0% of capacity (interval ")
    assert answer["headline"] in words(app)


def test_an_experiment_that_just_began_has_no_verdict_yet(two_bases):
    two_bases.add(experiment(pairs=1))
    assert figures(opened())["Saved by speculation"] == "no verdict yet"

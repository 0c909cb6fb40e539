"""The Cost page on a ledger worked out by hand (conftest.py), and against what `kadence cost report --json` prints.

A second machine hour is priced on three bases: 3.60 USD on demand, 1.80 reserved, 0.90 spot; that is 0.001, 0.0005 and
0.00025 USD a second.

json     12 s  on demand 0.012 USD, 3.00 per million; reserved 0.006, 1.50; spot 0.003, 0.75
fiction   4 s  on demand 0.004 USD, 4.00 per million; reserved 0.002, 2.00; spot 0.001, 1.00
idle      4 s  on demand 0.004 USD
total    20 s  on demand 0.020 USD, 4.00 per million; reserved 0.010, 2.00; spot 0.005, 1.00
idle spread by machine time (12 : 4): json 0.015, fiction 0.005; loaded json 3.75, fiction 5.00 per million
idle spread in even parts: json 0.014, fiction 0.006; 3.50 and 6.00 per million
shares with idle by machine time: json 75 % of the cost for 80 % of the tokens, fiction 25 % for 20 %
"""

from __future__ import annotations

import json
import shlex
import time
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

from controlplane.cost_cli import cost_app
from controlplane.store.cost_rows import IdleRule
from controlplane.store.engine import open_database
from controlplane.store.queries import time_bounds
from dashboard import format as fmt
from dashboard.asked import CUSTOM
from dashboard.cost_tables import basis_name
from tests.dashboard.looks import figures, opened, pointed_at

EVIL = "<img src=x onerror=alert(1)>"
THREE_BASES = """version: 1
prices:
  - {sku: test-machine, basis: on_demand, currency: USD, per_hour: "3.60", source: by hand, as_of: DAY,
     effective_from: 2020-01-01}
  - {sku: test-machine, basis: reserved, currency: USD, per_hour: "1.80", source: by hand, as_of: DAY,
     effective_from: 2020-01-01}
  - {sku: test-machine, basis: spot, currency: USD, per_hour: "0.90", source: by hand, as_of: DAY,
     effective_from: 2020-01-01}
""".replace("DAY", time.strftime("%Y-%m-%d"))


@pytest.fixture
def three_bases(ledger):
    ledger.migrate()
    ledger.price(THREE_BASES)
    ledger.fill()
    return ledger


@pytest.fixture(scope="module")
def seen(make_ledger, tmp_path_factory):
    """One look at the page with three bases, for tests that only read it."""
    ledger = make_ledger(tmp_path_factory.mktemp("seen"))
    ledger.migrate()
    ledger.price(THREE_BASES)
    ledger.fill()
    with pointed_at(ledger), pytest.MonkeyPatch.context() as patch:
        made: list[Any] = []
        patch.setattr("dashboard.cost_cards.content", lambda *asked: made.append(asked))
        yield open_cost(range="24h")
        assert not made


def open_cost(*, by: str = "cohort", idle: IdleRule = "none", **query: str) -> AppTest:
    """The page with these filters in the URL."""
    app = opened(idle=idle, **query)
    app.query_params["by"] = by
    app.switch_page("pages/cost.py").run()
    assert not app.exception
    return app


def bill(app: AppTest, by: str = "Cohort") -> dict[str, dict[str, str]]:
    table = next(d.value for d in app.dataframe if "Idle part" in d.value.columns)
    return {row[by]: dict(row) for _, row in table.iterrows()}


def words(app: AppTest) -> str:
    return "\n".join(str(e.value) for kind in (app.caption, app.text, app.info) for e in kind).replace("\\", "")


def printed(url: str, command: str) -> Any:
    """What that `kadence cost report` prints of the database."""
    kadence, cost, *asked = shlex.split(command)
    assert (kadence, cost) == ("kadence", "cost")
    done = CliRunner().invoke(cost_app, [*asked, "--database-url", url])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_totals_are_those_worked_out_by_hand(seen):
    # No draft token is wasted and no prompt cost anything in this ledger: decode is 16 s of 0.001 USD.
    assert figures(seen) == {
        "Cost": "$0.02000",
        "Per 1M tokens": "$4.000",
        "Idle cost": "$0.004000",
        "Wasted cost": "$0.00",
        "Prefill cost": "$0.00",
        "Decode cost": "$0.01600",
    }


def test_every_basis_of_the_sheet_stands_beside_the_others(seen):
    rows = bill(seen)
    assert list(rows) == ["fiction", "json", "idle", "total"]
    assert [rows["json"][f"{basis} per 1M"] for basis in ("On demand", "Reserved", "Spot")] == [
        "$3.000",
        "$1.500",
        "$0.7500",
    ]
    assert [rows["total"][f"{basis} cost"] for basis in ("On demand", "Reserved", "Spot")] == [
        "$0.02000",
        "$0.01000",
        "$0.005000",
    ]


@pytest.mark.usefixtures("three_bases")
@pytest.mark.parametrize(
    ("rule", "costs", "loaded"),
    [
        ("none", ["$0.004000", "$0.01200", "$0.004000"], ["$5.000", "$3.750"]),
        ("weighted", ["$0.005000", "$0.01500", "$0.00"], ["$5.000", "$3.750"]),
        ("even", ["$0.006000", "$0.01400", "$0.00"], ["$6.000", "$3.500"]),
    ],
)
def test_idle_goes_where_the_rule_sends_it(rule, costs, loaded):
    rows = bill(open_cost(idle=rule))
    assert [rows[key]["On demand cost"] for key in ("fiction", "json", "idle")] == costs
    assert [rows[key]["On demand loaded 1M"] for key in ("fiction", "json")] == loaded
    assert rows["total"]["On demand cost"] == "$0.02000"


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"idle": "even", "cohort": "json"},
        {"by": "tenant", "idle": "weighted"},
        {"by": "hour", "model": "smollm2-135m-instruct"},
        {"by": "direction"},
    ],
)
def test_every_number_is_what_the_command_under_the_table_prints(three_bases, query):
    app = open_cost(**query)
    answer = printed(three_bases.url, app.code[0].value)
    assert answer["idle_rule"] == query.get("idle", "none")
    by = answer["by"]
    shown = bill(app, by.capitalize())
    rest = [] if answer["rest"] is None else [{by: "rest", **answer["rest"]}]
    said = [*answer["rows"], *rest, {by: "idle", **answer["idle"]}, {by: "total", **answer["total"]}]
    assert list(shown) == [row[by] for row in said]
    for row in said:
        of_bases = row.get("by_basis") or {basis: each[row[by]] for basis, each in answer["bases"].items()}
        line = shown[row[by]]
        for basis, money in of_bases.items():
            name = basis_name(basis).capitalize()
            assert line[f"{name} cost"] == fmt.money(Decimal(money["cost"]), "USD")
            for column, key in (("per 1M", "cost_per_million_tokens"), ("loaded 1M", "loaded_cost_per_million_tokens")):
                told = fmt.NOTHING if money[key] is None else fmt.money(Decimal(money[key]), "USD")
                assert line[f"{name} {column}"] == told
        if row[by] != "idle":
            assert line["Emitted tokens"] == fmt.count(row["emitted_tokens"])
            assert line["Requests"] == fmt.count(row["requests"])
        # The ledger is measured: where the report has none, there was no machine time, as in idle that was spread.
        told = fmt.NOTHING if row["energy_j"] is None else f"{fmt.number(row['energy_j'])} J"
        assert line["Energy"] == told


def test_what_has_no_price_is_unpriced_and_never_zero(ledger):
    ledger.migrate()
    ledger.price("version: 1\nprices: []\n")
    ledger.fill()
    app = open_cost()
    rows = bill(app)
    assert {row["On demand cost"] for row in rows.values()} == {"unpriced"}
    assert rows["json"]["Wasted"] == rows["json"]["Idle part"] == "unpriced"
    assert figures(app)["Cost"] == "unpriced"
    assert "Part of it has no price" in words(app) or "whole hours" in words(app)


def test_energy_that_was_not_measured_is_said_in_words(ledger):
    ledger.migrate()
    ledger.price()
    ledger.fill(measured=False)
    rows = bill(open_cost())
    assert {row["Energy"] for row in rows.values()} == {"not measured"}


@pytest.mark.parametrize("by", ["cohort", "tenant", "day"])
def test_html_in_a_cohorts_name_stays_text_whatever_rows_stand_for(ledger, by):
    ledger.migrate()
    ledger.price()
    ledger.fill(first=EVIL)
    app = open_cost(by=by, cohort=EVIL)
    for element in (*app.markdown, *app.caption, *app.metric, *app.title, *app.header):
        assert "<img" not in str(element.value)


def test_without_a_policy_the_budgets_say_how_to_have_one(seen):
    assert "No policy is on record" in words(seen)


def test_no_file_is_made_before_its_button_is_pressed(seen):
    labels = [button.label for button in seen.get("download_button")]
    assert labels == ["CSV", "Parquet", "FOCUS", "FOCUS, Parquet"]


def test_a_range_without_a_whole_hour_has_no_export_and_says_so(three_bases):
    engine = open_database(three_bases.url)
    bounds = time_bounds(engine)
    engine.dispose()
    # Of the hour in which its first window began, whatever the clock says now.
    began = datetime.fromtimestamp(bounds.start, UTC)
    ends = {"from": began.strftime("%Y-%m-%dT%H:00:00Z"), "to": began.strftime("%Y-%m-%dT%H:59:59.999Z")}
    app = open_cost(range=CUSTOM, **ends)
    assert "whole hours" in words(app)

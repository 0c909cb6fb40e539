"""`kadence cost reconcile` on a small ledger: 2 hours of one machine at 3.6 EUR, each served for a second."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from controlplane.cost_cli.app import cost_app
from controlplane.decision.plan import Plan
from controlplane.store.engine import open_database
from controlplane.store.journal import SqlJournal
from controlplane.telemetry import Report

AT = 497_222 * 3600.0  # 2026-09-21T14:00Z
HEADER = "start,instance_type,cost,hours,currency"

PRICES = """
version: 1
prices:
  - {sku: cpu-2core, basis: on_demand, currency: EUR, per_hour: 3.6, source: test, as_of: 2026-09-01,
     effective_from: 2026-01-01}
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with nothing but a price sheet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KADENCE_DATABASE_URL", raising=False)
    Path("prices.yaml").write_text(PRICES)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first test leaves the ledger for the others: none writes to it."""
    return tmp_path_factory.mktemp("filled") / "ledger.db"


@pytest.fixture
def url(filled: Path, migrated_sqlite: Path, make_worker_window: Callable[..., Any]) -> str:
    """A second of 14:00 and one of 15:00."""
    if not filled.exists():
        shutil.copy(migrated_sqlite, filled)
        engine = open_database(f"sqlite:///{filled}")
        journal = SqlJournal(engine)
        for hour in (0, 1):
            window = make_worker_window(hour + 1, started_at=AT + hour * 3600)
            journal.record([Report(window, ())], [], Plan(1, 1, AT, AT + 10, {}, {}, ""), AT)
        journal.close()
        engine.dispose()
    return f"sqlite:///{filled}"


def run(url: str, lines: list[str], *arguments: str, header: str = HEADER) -> Any:
    Path("invoice.csv").write_text("\n".join([header, *lines]))
    given = ("reconcile", "invoice.csv", "--database-url", url, *arguments)
    return CliRunner().invoke(cost_app, given, env={"COLUMNS": "200"})


def line(hour: int, cost: str, hours: float = 1 / 3600, sku: str = "cpu-2core", currency: str = "EUR") -> str:
    return f"2026-09-21T{hour}:00:00Z,{sku},{cost},{hours:.12f},{currency}"


def test_an_invoice_that_agrees_is_exit_code_0(url: str) -> None:
    done = run(url, [line(14, "0.001"), line(15, "0.001")], "--json")
    answer = json.loads(done.stdout)
    assert (done.exit_code, answer["ok"], answer["grain"]) == (0, True, "hour")
    assert (answer["invoice"], answer["ours"]) == ("0.002", "0.002000000")


def test_whole_billed_hours_of_which_seconds_were_served_are_told_by_hour_and_resource(url: str) -> None:
    done = run(url, [line(14, "3.6", 1), line(15, "3.6", 1), line(16, "3.6", 1)], "--json")
    answer = json.loads(done.stdout)
    causes = {each["cause"]: each["amount"] for each in answer["causes"]}
    assert (done.exit_code, causes) == (1, {"not_serving": "3.6", "quantity": "7.198000000"})
    assert answer["difference"] == "10.798000000"
    assert answer["rows"][2] == {
        "start": "2026-09-21T16:00:00Z", "end": "2026-09-21T17:00:00Z", "resource": "cpu-2core", "invoice": "3.6",
        "ours": None, "difference": "3.6", "invoice_hours": "1.000000000", "our_hours": "0.000000000",
        "hours_without_windows": 1, "causes": {"not_serving": "3.6"},
    }  # fmt: skip


def test_the_table_shows_differences_causes_and_the_total(url: str) -> None:
    done = run(url, [line(14, "0.001"), line(15, "0.002")])
    assert "1 of 2 agree to the last digit" in done.stdout
    assert "price: their price of an hour is another than the price sheet's" in done.stdout
    assert "over the tolerance of 1%" in done.stderr


def test_a_tolerance_lets_small_differences_pass(url: str) -> None:
    lines = [line(14, "0.001"), line(15, "0.00101")]
    assert [run(url, lines, "--tolerance", t).exit_code for t in ("1%", "0.001")] == [0, 1]


def test_only_the_lines_in_the_range_are_compared(url: str) -> None:
    arguments = ("--until", "2026-09-21T15:00", "--json")
    done = run(url, [line(14, "0.001"), line(15, "9")], *arguments)
    assert (done.exit_code, json.loads(done.stdout)["difference"]) == (0, "0.000000000")
    assert "warning: 1 lines of the invoice lie outside of the range" in done.stderr


def test_a_resource_of_another_name_is_pointed_out_until_it_is_mapped(url: str) -> None:
    lines = [line(14, "0.001", sku="m5"), line(15, "0.001", sku="m5")]
    before = run(url, lines, "--json")
    assert (before.exit_code, "--mapping 'm5=SKU'" in before.stderr) == (1, True)
    assert run(url, lines, "--mapping", "m5=cpu-2core", "--json").exit_code == 0


def test_an_invoice_in_another_currency_is_refused(url: str) -> None:
    done = run(url, [line(14, "0.001", currency="USD")])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "invoice.csv: currency: it is in USD, the price sheet in EUR" in done.stderr


def test_an_invoice_without_a_currency_is_taken_in_that_of_the_sheet_and_says_so(url: str) -> None:
    done = run(url, ["2026-09-21T14:00Z,cpu-2core,0.001", "2026-09-21T15:00Z,cpu-2core,0.001"], header="start,sku,cost")
    assert (done.exit_code, "the invoice names no currency: taken as EUR" in done.stderr) == (0, True)


@pytest.mark.parametrize(
    ("lines", "arguments", "says"),
    [
        (["yesterday,a,1,1,EUR"], (), "invoice.csv: line 2: start: 'yesterday'"),
        ([line(14, "1")], ("--tolerance", "wide"), "--tolerance: 'wide' is not a share such as 1% or 0.01"),
        ([line(14, "1")], ("--mapping", "m5"), "--mapping: 'm5' is not written as NAME=VALUE"),
        ([line(14, "1")], ("--column", "cost=price"), "no column 'price' for cost"),
        ([line(14, "1")], ("--since", "2027-01-01"), "no line of the invoice lies between them"),
        ([line(14, "1")], ("--since", "soon"), "--since: 'soon' is neither a duration"),
    ],
)
def test_wrong_use_is_exit_code_2(lines: list[str], arguments: tuple[str, ...], says: str, url: str) -> None:
    done = run(url, lines, *arguments)
    assert (done.exit_code, says in done.stderr, done.stdout) == (2, True, "")


def test_an_invoice_that_is_not_there_is_one_line() -> None:
    done = CliRunner().invoke(cost_app, ["reconcile", "none.csv"])
    assert (done.exit_code, done.stderr) == (2, "none.csv: cannot read the invoice: No such file or directory\n")


def test_a_resource_that_is_mapped_twice_is_wrong_use(url: str) -> None:
    done = run(url, [line(14, "0.001", sku="m5")], "--mapping", "m5=cpu-2core", "--mapping", "m5=cpu-4core")
    assert (done.exit_code, done.stderr) == (2, "--mapping: m5 is given twice\n")


def test_a_resource_with_brackets_or_colons_is_shown_as_it_is(url: str) -> None:
    done = run(url, [line(14, "0.001", sku="disk [/x] :x: [red]ssd")])
    assert (done.exit_code, "disk [/x] :x: [red]ssd" in done.stdout) == (1, True)

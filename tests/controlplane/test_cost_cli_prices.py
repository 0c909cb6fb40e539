"""`kadence cost prices`, `reprice` and `close` as a person or a script meets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from controlplane.cost_cli import cost_app
from controlplane.finops.pricing import load_prices
from controlplane.store.cost_models import MachineHour
from controlplane.store.engine import open_database
from controlplane.store.price_book import save_prices

HOUR = 497_222
SPAN = ("--since", "2026-09-21", "--until", "2026-09-22")
LINE = "{{sku: gpu, basis: on_demand, currency: EUR, per_hour: {amount}, source: test, as_of: 2026-11-01, {dates}}}"
OWNED = """
  - sku: gpu
    basis: owned
    currency: EUR
    capex: 25550
    amortise_months: 35
    power_w: 700
    pue: 1.2
    electricity_per_kwh: 0.10
    source: an invoice
    as_of: 2026-11-01
    effective_from: 2026-01-01
"""


def sheet(folder: Path, amount: str = "3.6", dates: str = "effective_from: 2026-01-01", more: str = "\n") -> Path:
    path = folder / f"sheet-{amount}.yaml"
    path.write_text(f"version: 1\nprices:\n  - {LINE.format(amount=amount, dates=dates)}{more}")
    return path


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cost_app, arguments, env={"COLUMNS": "200"})


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without configuration of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KADENCE_DATABASE_URL", raising=False)


@pytest.fixture
def url(sqlite_ledger_url: str) -> str:
    """Two hours of gpu, one of them half a machine."""
    engine = open_database(sqlite_ledger_url)
    with engine.begin() as connection:
        rows = [{"hour": HOUR + i, "sku": "gpu", "ns": 3600 * 10**9 // (i + 1), "windows": 9} for i in range(2)]
        connection.execute(sa.insert(MachineHour), rows)
    engine.dispose()
    return sqlite_ledger_url


def test_a_good_sheet_is_exit_code_0_with_a_line_of_what_it_has(tmp_path: Path) -> None:
    path = sheet(tmp_path, more=OWNED)
    done = run("prices", "check", str(path))
    assert (done.exit_code, done.stdout) == (0, f"{path}: 2 prices, EUR, on_demand, owned\n")


def test_a_bad_sheet_is_exit_code_1_with_every_problem_and_its_line(tmp_path: Path) -> None:
    path = sheet(tmp_path, "cheap", "effective_from: 2026-01-01T00:20", OWNED.replace("pue", "peu"))
    done = run("prices", "check", str(path), "--json")
    answer = json.loads(done.stdout)
    assert (done.exit_code, answer["ok"]) == (1, False)
    assert [p.removeprefix(f"{path}:").split(": ")[:2] for p in answer["problems"]] == [
        ["3", "prices[0].effective_from"], ["3", "prices[0].per_hour"], ["4", "prices[1].pue"], ["10", "prices[1].peu"],
    ]  # fmt: skip


def test_a_missing_period_is_a_warning_and_with_strict_a_problem(tmp_path: Path) -> None:
    path = sheet(tmp_path, dates="effective_from: 2026-01-01, effective_to: 2026-02-01")
    done = run("prices", "check", str(path))
    assert done.exit_code == 0
    assert f"warning: {path}:3: effective_to: gpu (on_demand) has no price since 2026-02-01" in done.stderr
    assert run("prices", "check", str(path), "--strict").exit_code == 1


def test_check_without_a_file_reads_the_configured_one(tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text(sheet(tmp_path).read_text())
    assert "prices.yaml: 1 prices" in run("prices", "check").stdout


def test_show_has_source_and_date_and_takes_an_owned_hour_apart(tmp_path: Path) -> None:
    done = run("prices", "show", "--prices", str(sheet(tmp_path, more=OWNED)), "--json")
    on_demand, owned = json.loads(done.stdout)["prices"]
    assert (on_demand["per_hour"], on_demand["owned"], on_demand["source"]) == ("3.600000000", None, "test")
    assert (owned["per_hour"], owned["as_of"]) == ("1.084000000", "2026-11-01")
    assert (owned["owned"]["capital_per_hour"], owned["owned"]["electricity_per_hour"]) == (
        "1.000000000",
        "0.084000000",
    )


def test_the_table_of_prices_shows_the_parts_of_an_owned_hour(tmp_path: Path) -> None:
    done = run("prices", "show", "--prices", str(sheet(tmp_path, more=OWNED)))
    (line,) = [line for line in done.stdout.splitlines() if "owned" in line]
    assert [cell.strip() for cell in line.split("│")[3:6]] == ["1.084", "1.00", "0.084"]


def test_show_leaves_out_what_is_not_in_force_then(tmp_path: Path) -> None:
    path = sheet(tmp_path, dates="effective_from: 2026-01-01, effective_to: 2026-02-01")
    done = run("prices", "show", "--prices", str(path), "--at", "2026-03-01", "--json")
    assert json.loads(done.stdout)["prices"] == []


def test_history_lists_the_sheets_and_prints_the_text_of_one(tmp_path: Path, url: str) -> None:
    engine = open_database(url)
    for at, amount in enumerate(("1", "2")):
        save_prices(engine, load_prices(sheet(tmp_path, amount)), by="kerstin", at=1_790_000_000.0 + at)
    engine.dispose()
    rows = json.loads(run("prices", "history", "--database-url", url, "--json").stdout)["revisions"]
    assert [row["applied_at"] for row in rows] == ["2026-09-21T14:13:21Z", "2026-09-21T14:13:20Z"]
    text = run("prices", "history", "--database-url", url, "--revision", rows[1]["revision"]).stdout
    assert text.strip() == sheet(tmp_path, "1").read_text().strip()
    assert run("prices", "history", "--database-url", url, "--revision", "nope").exit_code == 2


def test_repricing_shows_what_was_first_reported_beside_the_new_price(tmp_path: Path, url: str) -> None:
    closed = run("close", "--prices", str(sheet(tmp_path, "2")), "--database-url", url, "--json")
    assert json.loads(closed.stdout)["closed"] == 2
    again = run("close", "--prices", str(sheet(tmp_path, "9")), "--database-url", url, "--json")
    assert json.loads(again.stdout)["closed"] == 0
    done = run("reprice", *SPAN, "--database-url", url, "--prices", str(sheet(tmp_path, "3")), "--json")
    answer = json.loads(done.stdout)
    row = {"machine_s": 5400.0, "first": "3.000000000", "now": "4.500000000", "difference": "1.500000000",
           "first_unpriced_s": 0.0, "now_unpriced_s": 0.0}  # fmt: skip
    assert answer["rows"] == [{"day": "2026-09-21", **row}]
    assert (answer["total"], answer["currency"], answer["open_hours"]) == (row, "EUR", 0)


def test_the_table_of_a_repricing_has_a_signed_difference_and_a_total(tmp_path: Path, url: str) -> None:
    run("close", "--prices", str(sheet(tmp_path, "2")), "--database-url", url)
    done = run("reprice", *SPAN, "--by", "sku", "--database-url", url, "--prices", str(sheet(tmp_path, "1")))
    assert [cell.strip() for line in done.stdout.splitlines() if "total" in line for cell in line.split("│")[1:6]] == [
        "total", "1.500", "3.00", "1.50", "-1.50"]  # fmt: skip


def test_repricing_what_is_not_on_record_says_so(tmp_path: Path, url: str) -> None:
    done = run("reprice", *SPAN, "--database-url", url, "--prices", str(sheet(tmp_path)))
    assert done.exit_code == 0
    assert "hours that are not on record yet: 2" in done.stderr
    assert "unpriced" in done.stdout


def test_closing_without_any_sheet_is_refused(url: str) -> None:
    done = run("close", "--database-url", url)
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "every hour would go on record as unpriced" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("reprice",), "--since"),
        (("reprice", "--since", "soon"), "--since: 'soon' is neither"),
        (("prices", "show", "--at", "soon"), "--at: 'soon' is neither"),
    ],
)
def test_wrong_use_is_exit_code_2_and_names_the_flag(arguments: tuple[str, ...], says: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert says in done.stderr

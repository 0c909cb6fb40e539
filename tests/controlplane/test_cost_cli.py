"""`kadence cost` and `kadence db` as a person or a script meets them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from controlplane.cost_cli import cost_app, price_sheet
from controlplane.db_cli import db_app
from controlplane.decision.plan import Plan
from controlplane.finops.pricing import load_prices
from controlplane.settings import load_settings
from controlplane.store.engine import open_database
from controlplane.store.journal import SqlJournal
from controlplane.store.price_book import save_prices
from controlplane.telemetry import Report, StepCount, TenantUse

Make = Callable[..., Any]

AT = 1_790_000_000.0
SPAN = ("--since", "2026-09-21", "--until", "2026-09-22")

PRICES = """
version: 1
prices:
  - {sku: cpu-2core, basis: on_demand, currency: EUR, per_hour: 3.6, source: test, as_of: 2026-09-01,
     effective_from: 2026-01-01}
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without configuration of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KADENCE_DATABASE_URL", raising=False)


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    path = tmp_path / "sheet.yaml"
    path.write_text(PRICES)
    return path


@pytest.fixture
def url(sqlite_ledger_url: str, make_worker_window: Make, make_cohort_window: Make, make_request_record: Make) -> str:
    """One window of a second, busy for 0.4 s with 40 positions: json 30, 8 of them wasted, poetry 10. 100 J."""
    acme = TenantUse("acme", 10, 20, draft_tokens=16, accepted_tokens=8, input_tokens=10, emitted_tokens=13, requests=1)
    json_cohort = make_cohort_window(
        "json", (StepCount(4, 2, False, 4),), prefill_positions=10, first_tokens=1, requests_finished=1, tenants=(acme,)
    )
    poetry = make_cohort_window("poetry", prefill_positions=10)
    window = make_worker_window(1, (json_cohort, poetry), busy_s=0.4, energy_uj=100_000_000, energy_source="counter")
    engine = open_database(sqlite_ledger_url)
    journal = SqlJournal(engine)
    journal.record([Report(window, (make_request_record(),))], [], Plan(1, 1, AT, AT + 10, {}, {}, ""), AT)
    journal.close()
    engine.dispose()
    return sqlite_ledger_url


def run(app: Any, *arguments: str) -> Any:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})


def report(url: str, *arguments: str) -> Any:
    return run(cost_app, "report", *SPAN, "--database-url", url, *arguments)


def test_the_json_report_is_the_hand_computed_one(url: str, prices: Path) -> None:
    done = report(url, "--by", "cohort", "--prices", str(prices), "--json")
    answer = json.loads(done.stdout)
    assert (
        answer["rows"][0].items()
        >= {
            "cohort": "json",
            "input_tokens": 10,
            "emitted_tokens": 13,
            "requests": 1,
            "cost": "0.000300000",
            "cost_per_million_tokens": "23.076923",
            "energy_j": 30.0,
            "energy_source": "counter",
            "j_per_token": 30 / 13,
            "wasted_cost": "0.000080000",
            "wasted_j": 8.0,
            "input_cost": "0.000100000",
            "cost_per_million_input_tokens": "10.000000",
            "loaded_cost": "0.000750000",
            "tokens_per_unit": "43333.333",
            "active_j_per_token": 30 / 13,
            "loaded_j_per_token": 75 / 13,
        }.items()
    )
    assert [answer[part]["cost"] for part in ("idle", "total")] == ["0.000600000", "0.001000000"]
    assert (answer["currency"], answer["basis"]) == ("EUR", "on_demand")
    assert answer["range"] == {"start": "2026-09-21T00:00:00Z", "end": "2026-09-22T00:00:00Z"}


def test_carbon_is_counted_where_a_zone_is_configured(url: str, prices: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = ("--prices", str(prices), "--json")
    without = json.loads(report(url, *ask).stdout)
    monkeypatch.setenv("KADENCE_CARBON_ZONE", "DEU")
    monkeypatch.setenv("KADENCE_PUE", "1.5")
    counted = json.loads(report(url, *ask).stdout)
    assert (without["carbon"], without["total"]["carbon_g"], without["total"]["facility_j"]) == (None, None, None)
    assert {key: counted["carbon"][key] for key in ("zone", "grams_per_kwh", "year", "pue")} == {
        "zone": "DEU", "grams_per_kwh": "381", "year": 2023, "pue": "1.5"}  # fmt: skip
    assert (counted["total"]["carbon_g"], counted["total"]["facility_j"]) == ("0.015875000", 150.0)  # of 100 J
    assert counted["total"]["energy_j"] == without["total"]["energy_j"] == 100.0


def test_a_range_over_two_carbon_figures_has_none_and_says_so(
    url: str, prices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KADENCE_CARBON_ZONE", "DEU")
    done = run(cost_app, "report", "--since", "2022-01-01", "--prices", str(prices), "--database-url", url, "--json")
    assert json.loads(done.stdout)["carbon"] is None
    assert "ask for each year alone" in done.stderr


def test_what_is_unknown_is_null_and_said_on_stderr(url: str, prices: Path) -> None:
    done = report(url, "--prices", str(prices), "--basis", "spot", "--json")
    answer = json.loads(done.stdout)
    assert (answer["total"]["cost"], answer["rows"][0]["cost_per_million_tokens"]) == (None, None)
    assert "cpu-2core has no spot price on 2026-09-21" in done.stderr
    assert done.exit_code == 0


@pytest.mark.parametrize(
    ("by", "key"),
    [
        ("cohort", "json"),
        ("model", "smollm2"),
        ("tenant", "acme"),
        ("sku", "cpu-2core"),
        ("direction", "input"),
        ("hour", "2026-09-21T14:00Z"),
        ("day", "2026-09-21"),
    ],
)
def test_each_row_is_keyed_by_its_dimension(by: str, key: str, url: str, prices: Path) -> None:
    rows = json.loads(report(url, "--by", by, "--prices", str(prices), "--json").stdout)["rows"]
    assert key in [row[by] for row in rows]


def test_what_a_filter_leaves_out_is_the_rest(url: str, prices: Path) -> None:
    answer = json.loads(report(url, "--where", "cohort=json", "--prices", str(prices), "--json").stdout)
    assert [row["cohort"] for row in answer["rows"]] == ["json"]
    figures = [answer["rows"][0], answer["rest"], answer["idle"], answer["total"]]
    assert [row["cost"] for row in figures] == ["0.000300000", "0.000100000", "0.000600000", "0.001000000"]


def test_idle_is_spread_on_request(url: str, prices: Path) -> None:
    answer = json.loads(report(url, "--idle", "weighted", "--prices", str(prices), "--json").stdout)
    assert [row["cost"] for row in answer["rows"]] == ["0.000750000", "0.000250000"]
    assert (answer["idle"]["cost"], answer["idle_rule"]) == ("0.000000000", "weighted")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cohort", "--where: 'cohort' is not written as DIMENSION=VALUE, such as cohort=chat"),
        ("colour=red", "--where: 'colour' is none of cohort, tenant, model, sku, direction, hour, day"),
        ("direction=idle", "--where: direction: 'idle' is neither input nor output; idle is a row of its own"),
        ("hour=noon", "--where: hour: 'noon' is not written as 2026-11-29T15:00Z"),
    ],
)
def test_a_wrong_filter_is_exit_code_2_and_names_the_flag(text: str, said: str, url: str) -> None:
    done = report(url, "--where", text)
    assert (done.exit_code, done.stderr.strip()) == (2, said)


def test_all_bases_are_shown_side_by_side(url: str, prices: Path) -> None:
    spot = PRICES.strip().splitlines()[2:]
    prices.write_text(PRICES + "\n".join(spot).replace("on_demand", "spot").replace("3.6", "0.9") + "\n")
    answer = json.loads(report(url, "--basis", "all", "--prices", str(prices), "--json").stdout)
    assert {name: figures["cost"] for name, figures in answer["rows"][0]["by_basis"].items()} == {
        "on_demand": "0.000300000",
        "spot": "0.000075000",
    }
    table = report(url, "--basis", "all", "--prices", str(prices)).stdout
    assert all(name in table for name in ("on_demand 1M", "spot 1M"))


def test_the_table_has_rows_an_idle_line_and_a_total(url: str, prices: Path) -> None:
    done = report(url, "--prices", str(prices))
    lines = {line.split("│")[1].strip(): line for line in done.stdout.splitlines() if line.count("│") > 2}
    assert [name for name in lines if name] == ["json", "poetry", "idle", "total"]
    assert [("0.000300" in lines["json"]), ("0.000600" in lines["idle"]), ("0.001000" in lines["total"])] == [True] * 3


def test_a_tenant_whose_name_looks_like_markup_is_shown_as_it_is(url: str, prices: Path, tmp_path: Path) -> None:
    engine = open_database(url)
    with engine.begin() as connection:
        for table in ("cost_hour", "cost_day"):
            connection.exec_driver_sql(f"UPDATE {table} SET tenant = '[/x] :x:' WHERE tenant = 'acme'")
    engine.dispose()
    done = report(url, "--prices", str(prices), "--by", "tenant")
    assert (done.exit_code, "[/x] :x:" in done.stdout) == (0, True)


def test_an_unpriced_table_says_unpriced_and_not_zero(url: str, prices: Path) -> None:
    done = report(url, "--prices", str(prices), "--basis", "spot")
    assert done.stdout.count("unpriced") == 4


def test_a_range_without_windows_says_what_the_ledger_has(url: str, prices: Path) -> None:
    done = run(cost_app, "report", "--since", "1h", "--database-url", url, "--prices", str(prices), "--until", "30m")
    assert "it covers 2026-09-21T14:13:20Z to 2026-09-21T14:13:21Z" in done.stdout


def test_prices_come_from_the_flag_then_the_configured_file_then_the_database(
    url: str, prices: Path, tmp_path: Path
) -> None:
    engine = open_database(url)
    settings = load_settings()
    assert price_sheet(None, settings, engine).prices == ()
    save_prices(engine, load_prices(prices))
    assert price_sheet(None, settings, engine).currency == "EUR"
    (tmp_path / "prices.yaml").write_text(PRICES.replace("EUR", "CHF"))
    assert price_sheet(None, settings, engine).currency == "CHF"
    assert price_sheet(prices, settings, engine).currency == "EUR"
    engine.dispose()


def test_a_bad_price_sheet_is_exit_code_1_with_each_problem(url: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(PRICES.replace("3.6", "cheap"))
    said = "'cheap' is not a plain number such as 2.95"
    done = report(url, "--prices", str(bad))
    assert (done.exit_code, done.stderr) == (1, f"{bad}:4: prices[0].per_hour: {said}\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--since", "soon"), "--since: 'soon' is neither a duration"),
        (("--since", "1h", "--until", "2h"), "--since: "),
        (("--by", "colour"), "--by"),
        (("--basis", "cheap"), "--basis"),
        (("--database-url", "mysql://x"), "--database-url: must be empty or start with sqlite://"),
    ],
)
def test_wrong_use_is_exit_code_2_and_names_the_flag(arguments: tuple[str, ...], says: str) -> None:
    done = run(cost_app, "report", *arguments)
    assert done.exit_code == 2
    assert says in done.stderr


def test_a_missing_database_is_one_line_and_is_not_created(tmp_path: Path) -> None:
    done = report(f"sqlite:///{tmp_path}/none.db")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "there is no database at" in done.stderr
    assert "kadence db upgrade" in done.stderr
    assert not (tmp_path / "none.db").exists()


def test_a_database_of_another_revision_is_one_line(url: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    done = report(url)
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "newer revision" in done.stderr


def test_a_database_that_is_locked_is_one_line(url: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as other:
        # In WAL mode only the exclusive locking mode keeps readers out.
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        done = report(f"{url}?timeout=0.1")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "locked by another process" in done.stderr


def test_upgrade_creates_the_database_and_says_so_once(tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path}/new/ledger.db"
    first = json.loads(run(db_app, "upgrade", "--database-url", target, "--json").stdout)
    again = json.loads(run(db_app, "upgrade", "--database-url", target, "--json").stdout)
    assert (first["before"], first["after"]) == (None, again["before"])
    assert again["before"] == again["after"]


def test_upgrading_a_newer_database_is_exit_code_1(url: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    done = run(db_app, "upgrade", "--database-url", url)
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)


def test_verify_counts_a_sound_ledger(url: str) -> None:
    done = run(db_app, "verify", "--database-url", url, "--json")
    answer = json.loads(done.stdout)
    assert (done.exit_code, answer["ok"], answer["state"], answer["problems"]) == (0, True, "ok", [])
    assert (answer["counts"]["window"], answer["counts"]["window_cohort"], answer["counts"]["request"]) == (1, 2, 1)


def test_verify_fails_on_a_ledger_that_does_not_add_up(url: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection, connection:
        connection.execute('UPDATE "window" SET idle_ns = idle_ns + 1')
    done = run(db_app, "verify", "--database-url", url)
    assert done.exit_code == 1
    assert "do not add up to their machine time" in done.stdout


def test_verify_fails_on_a_missing_database(tmp_path: Path) -> None:
    done = run(db_app, "verify", "--database-url", f"sqlite:///{tmp_path}/none.db", "--json")
    assert (done.exit_code, json.loads(done.stdout)["state"]) == (1, "missing")


def test_prune_deletes_what_is_older(url: str) -> None:
    done = run(db_app, "prune", "--older-than", "30d", "--database-url", url, "--json")
    answer = json.loads(done.stdout)
    assert (answer["windows"], answer["requests"]) == (1, 1)


def test_prune_goes_by_the_policy_where_no_age_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KADENCE_RETENTION_DAYS", "0")
    kept = run(db_app, "prune", "--database-url", url)
    assert (kept.exit_code, "retention_days: 0 keeps everything" in kept.stderr) == (2, True)
    monkeypatch.setenv("KADENCE_RETENTION_DAYS", "7")
    assert json.loads(run(db_app, "prune", "--database-url", url, "--json").stdout)["windows"] == 1


def test_a_report_is_the_same_after_pruning(url: str, prices: Path) -> None:
    before = report(url, "--prices", str(prices), "--by", "tenant", "--json").stdout
    run(db_app, "prune", "--older-than", "1d", "--database-url", url)
    assert report(url, "--prices", str(prices), "--by", "tenant", "--json").stdout == before


def test_pruning_to_less_than_a_day_needs_force(url: str) -> None:
    refused = run(db_app, "prune", "--older-than", "12h", "--database-url", url)
    forced = run(db_app, "prune", "--older-than", "12h", "--force", "--database-url", url)
    assert (refused.exit_code, "add --force" in refused.stderr, forced.exit_code) == (2, True, 0)


def test_a_wrong_age_is_exit_code_2(url: str) -> None:
    done = run(db_app, "prune", "--older-than", "a while", "--database-url", url)
    assert (done.exit_code, "--older-than: 'a while' is not a duration" in done.stderr) == (2, True)


def test_a_password_is_not_shown(tmp_path: Path) -> None:
    done = run(db_app, "verify", "--database-url", "postgresql://u:secret@127.0.0.1:1/ledger", "--json")
    assert (done.exit_code, "secret" in done.stdout + done.stderr) == (1, False)

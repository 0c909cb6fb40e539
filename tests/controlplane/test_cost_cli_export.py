"""`kadence cost export` as scripts and spreadsheets meet it; complaints about other tools go by their symptom."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import stat
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from controlplane.cost_cli.app import cost_app
from controlplane.cost_cli.export_files import CsvFile, replacing
from controlplane.cost_cli.export_run import stdout
from controlplane.decision.plan import Plan
from controlplane.finops.carbon import carbon_grams
from controlplane.finops.export_cells import Field
from controlplane.finops.focus_check import from_text, problems
from controlplane.finops.focus_fields import fields
from controlplane.finops.pricing import parse_prices
from controlplane.store.cost import cost_report
from controlplane.store.engine import open_database
from controlplane.store.journal import SqlJournal
from controlplane.store.models import PolicyRevision
from controlplane.store.price_history import close_hours
from controlplane.store.time_range import TimeRange
from controlplane.telemetry import Report, StepCount, TenantUse

Make = Callable[..., Any]

HOUR = 497_222  # 2026-09-21T14:00Z
AT = HOUR * 3600.0
SPAN = ("--since", "2026-09-21", "--until", "2026-09-22")

PRICES = """
version: 1
prices:
  - {sku: cpu-2core, basis: on_demand, currency: EUR, per_hour: 3.6, source: test, as_of: 2026-09-01,
     effective_from: 2026-01-01}
  - {sku: cpu-2core, basis: reserved, currency: EUR, per_hour: 1.8, source: test, as_of: 2026-09-01,
     effective_from: 2026-01-01}
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without configuration of its own, but with a price sheet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KADENCE_DATABASE_URL", raising=False)
    Path("prices.yaml").write_text(PRICES)


@pytest.fixture
def fill(make_worker_window: Make, make_cohort_window: Make) -> Callable[..., str]:
    """Windows of a second into that ledger, one for each (hour, sku): 0.4 s busy, 30 positions of json, 10 of poetry.

    json: tenant acme, 10 input and 13 emitted tokens; poetry: nobody's, 10 positions of prefill.
    """

    def fill(url: str, *hours: tuple[int, str]) -> str:
        engine = open_database(url)
        journal = SqlJournal(engine)
        for sequence, (hour, sku) in enumerate(hours, 1):
            acme = TenantUse("acme", 10, 20, 0, 16, 8, 10, 13, 1)
            json_cohort = make_cohort_window(
                "json", (StepCount(4, 2, False, 4),), prefill_positions=10, first_tokens=1, requests_finished=1,
                tenants=(acme,),
            )  # fmt: skip
            cohorts = (json_cohort, make_cohort_window("poetry", prefill_positions=10))
            began = AT + hour * 3600
            window = make_worker_window(
                sequence, cohorts, started_at=began, device=sku, busy_s=0.4, energy_uj=100_000_000,
                energy_source="counter",
            )  # fmt: skip
            journal.record([Report(window, ())], [], Plan(1, 1, AT, AT + 10, {}, {}, ""), began)
        journal.close()
        engine.dispose()
        return url

    return fill


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first test that wants it leaves the ledger of `url` for the others: no test writes to it."""
    return tmp_path_factory.mktemp("filled") / "ledger.db"


@pytest.fixture
def url(fill: Callable[..., str], migrated_sqlite: Path, filled: Path) -> str:
    """Two hours of one machine, and one of a machine that the sheet does not have."""
    if not filled.exists():
        shutil.copy(migrated_sqlite, filled)
        fill(f"sqlite:///{filled}", (0, "cpu-2core"), (1, "cpu-2core"), (1, "gpu-x"))
    return f"sqlite:///{filled}"


def run(url: str, *arguments: str) -> Any:
    given = ("export", *SPAN, "--database-url", url, *arguments)
    return CliRunner().invoke(cost_app, given, env={"COLUMNS": "200"})


def csv_rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def money(rows: list[dict[str, Any]], name: str = "cost") -> Decimal:
    return sum((Decimal(row[name]) for row in rows if row[name]), Decimal(0))


def reported(url: str, *arguments: str) -> Any:
    given = ("report", *SPAN, "--database-url", url, "--json", *arguments)
    return json.loads(CliRunner().invoke(cost_app, given).stdout)


def test_whoever_exports_before_the_first_hour_is_over_is_told_so(sqlite_ledger_url: str) -> None:
    done = run(sqlite_ledger_url, "--output", "bill.csv")
    assert done.exit_code == 0
    assert "nothing is on record in the whole hours 2026-09-21T00:00:00Z to 2026-09-22T00:00:00Z" in done.stderr


def test_csv_has_a_row_for_each_cell_and_idle_and_the_unpriced_ones_without_a_cost(url: str) -> None:
    done = run(url, "--output", "-")
    rows = csv_rows(done.stdout)
    keys = [tuple(row[k] for k in ("hour", "sku", "cohort", "tenant", "direction", "cost")) for row in rows]
    # 0.001 a second: busy for 0.4 s of which no step was timed, so that prefill and decoding go by positions.
    assert keys[0] == ("2026-09-21T14:00:00Z", "cpu-2core", "", "", "idle", "0.000600000")
    assert money([row for row in rows if row["hour"] == "2026-09-21T14:00:00Z"]) == Decimal("0.001")
    assert {row["cost"] for row in rows if row["sku"] == "gpu-x"} == {""}
    assert done.exit_code == 0
    assert "unpriced: gpu-x, 2026-09-21T15:00Z to 2026-09-21T16:00Z" in done.stderr


def test_focus_holds_back_what_is_unpriced_lists_it_and_exits_1(url: str, tmp_path: Path) -> None:
    done = run(url, "--format", "focus", "--output", "out.csv", "--json")
    answer = json.loads(done.stdout)
    rows = csv_rows((tmp_path / "out.csv").read_text())
    assert (done.exit_code, answer["ok"], answer["rows"], answer["focus_version"]) == (1, False, len(rows), "1.2")
    assert money(rows, "BilledCost") == Decimal(answer["cost"]) == Decimal("0.002")
    (held,) = answer["unpriced"]
    assert {k: held[k] for k in ("sku", "start", "end", "machine_s", "input_tokens", "emitted_tokens")} == {
        "sku": "gpu-x", "start": "2026-09-21T15:00:00Z", "end": "2026-09-21T16:00:00Z", "machine_s": 1.0,
        "input_tokens": 10, "emitted_tokens": 13,
    }  # fmt: skip
    assert "the sheet does not name it" in held["why"]
    assert "unpriced: gpu-x, 2026-09-21T15:00Z to 2026-09-21T16:00Z: 0.000 machine hours, 10 input" in done.stderr


@pytest.mark.parametrize("version", ["1.2", "1.4"])
def test_a_focus_csv_file_conforms_as_its_reader_sees_it(version: str, url: str) -> None:
    rows = csv_rows(run(url, "--format", "focus", "--focus-version", version, "--output", "-").stdout)
    assert problems(from_text(rows), version) == []
    assert list(rows[0]) == [field.name for field in fields(version)]


def test_a_focus_parquet_file_has_exact_money_and_utc_times(url: str, tmp_path: Path) -> None:
    run(url, "--format", "focus", "--output", "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    assert str(table.schema.field("BilledCost").type) == "decimal128(38, 9)"
    assert str(table.schema.field("ChargePeriodStart").type) == "timestamp[ms, tz=UTC]"
    assert columns["ChargePeriodStart"][0] == datetime(2026, 9, 21, 14, tzinfo=UTC)
    assert sum(columns["BilledCost"]) == Decimal("0.002")
    assert table.schema.metadata[b"focus_version"] == b"1.2"
    counts = {"x_DraftTokens", "x_AcceptedDraftTokens", "x_RejectedDraftTokens", "x_Requests"}
    assert problems({k: v for k, v in columns.items() if k not in counts}) == []


def test_a_provisional_version_says_so_in_the_file(url: str, tmp_path: Path) -> None:
    run(url, "--format", "focus", "--focus-version", "1.4", "--output", "out.parquet")
    assert pq.read_schema(tmp_path / "out.parquet").metadata[b"focus_version"] == b"1.4 (provisional)"


def test_csv_json_and_parquet_hold_the_same_rows(url: str, tmp_path: Path) -> None:
    for name in ("csv", "json", "parquet"):
        assert run(url, "--format", name, "--output", f"out.{name}").exit_code == 0
    text = csv_rows((tmp_path / "out.csv").read_text())
    answer = json.loads((tmp_path / "out.json").read_text())
    table = pq.read_table(tmp_path / "out.parquet").to_pylist()
    exact = ("cost", "wasted_cost", "machine_s", "energy_j", "mean_k")
    for name in exact:
        from_csv = [Decimal(row[name]) if row[name] else None for row in text]
        from_json = [None if row[name] is None else Decimal(row[name]) for row in answer["rows"]]
        assert from_csv == from_json == [row[name] for row in table]
    assert [row["tokens"] for row in answer["rows"]] == [row["tokens"] for row in table]
    assert (answer["currency"], answer["basis"], answer["range"]["start"]) == (
        "EUR",
        "on_demand",
        "2026-09-21T00:00:00Z",
    )


def test_5_the_sum_of_a_file_is_the_bill_of_the_report_on_either_database(
    ledger_url: str, fill: Callable[..., str], tmp_path: Path
) -> None:
    """Others show a price on one page and none, or another, on the next."""
    fill(ledger_url, (0, "cpu-2core"), (3, "cpu-2core"))
    engine = open_database(ledger_url)
    report = cost_report(engine, TimeRange(AT, AT + 7 * 3600), "cohort", parse_prices(PRICES))
    engine.dispose()
    total = Decimal(report.total.cost_nano or 0).scaleb(-9)
    for format, name in (("csv", "cost"), ("focus", "BilledCost")):
        assert money(csv_rows(run(ledger_url, "--format", format, "--output", "-").stdout), name) == total
    assert money(csv_rows(run(ledger_url, "--by", "cohort", "--output", "-").stdout)) == total


def test_by_a_dimension_rows_rest_and_idle_are_the_bill(fill: Callable[..., str], sqlite_ledger_url: str) -> None:
    url = fill(sqlite_ledger_url, (0, "cpu-2core"))
    done = run(url, "--by", "cohort", "--where", "cohort=json", "--output", "-")
    rows = csv_rows(done.stdout)
    assert [(row["part"], row["cohort"]) for row in rows] == [("row", "json"), ("rest", ""), ("idle", "")]
    assert money(rows) == Decimal("0.001")
    assert rows[0]["cost_per_million_tokens"] == reported(url)["rows"][0]["cost_per_million_tokens"]


def test_by_a_dimension_a_missing_price_is_no_low_bill(url: str) -> None:
    done = run(url, "--by", "cohort", "--output", "out.csv", "--json")
    answer = json.loads(done.stdout)
    assert (done.exit_code, answer["cost"], answer["rows"]) == (0, None, 3)
    assert "gpu-x has no on_demand price on 2026-09-21" in done.stderr


def test_grams_of_carbon_are_those_of_a_configured_zone(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (without, *_) = csv_rows(run(url, "--output", "-").stdout)
    monkeypatch.setenv("KADENCE_CARBON_ZONE", "DEU")
    (row, *_) = csv_rows(run(url, "--output", "-").stdout)
    expected = carbon_grams(int(Decimal(row["energy_j"]) * 10**6), "DEU", AT)
    assert (without["carbon_g"], Decimal(row["carbon_g"])) == ("", expected)


def test_an_export_can_be_priced_as_hours_were_first_reported(
    fill: Callable[..., str], sqlite_ledger_url: str, tmp_path: Path
) -> None:
    url = fill(sqlite_ledger_url, (0, "cpu-2core"))
    engine = open_database(url)
    close_hours(engine, parse_prices(PRICES), AT + 7200)
    engine.dispose()
    (tmp_path / "prices.yaml").write_text(PRICES.replace("3.6", "7.2"))
    focus = ("--format", "focus", "--output", "-")
    found = {
        which: money(csv_rows(run(url, "--as", which, *focus).stdout), "BilledCost") for which in ("current", "first")
    }
    assert found == {"current": Decimal("0.002"), "first": Decimal("0.001")}


def test_rows_name_the_policies_of_their_hour(fill: Callable[..., str], sqlite_ledger_url: str) -> None:
    url = fill(sqlite_ledger_url, (0, "cpu-2core"), (1, "cpu-2core"))
    engine = open_database(url)
    with engine.begin() as connection:
        for at, revision in ((AT - 60, "r1"), (AT + 3700, "r2")):
            values = {"revision": revision, "applied_at": at, "applied_by": "me", "why": "", "text": "version: 1"}
            connection.execute(sa.insert(PolicyRevision), values)
    engine.dispose()
    rows = csv_rows(run(url, "--format", "focus", "--output", "-").stdout)
    assert {(row["ChargePeriodStart"][11:13], row["x_PolicyVersion"]) for row in rows} == {
        ("14", "r1"),
        ("15", "r1+r2"),
    }


def test_a_filter_leaves_out_what_it_does_not_name(url: str) -> None:
    rows = csv_rows(
        run(url, "--where", "cohort=json", "--where", "sku=cpu-2core", "--where", "sku=gpu-y", "--output", "-").stdout
    )
    work = [row for row in rows if row["direction"] != "idle"]
    assert {(row["cohort"], row["sku"]) for row in work} == {("json", "cpu-2core")}


def test_the_basis_changes_what_is_billed_and_not_what_is_listed(url: str) -> None:
    on_demand, reserved = (
        csv_rows(run(url, "--format", "focus", "--basis", basis, "--output", "-").stdout)
        for basis in ("on_demand", "reserved")
    )
    assert (money(on_demand, "BilledCost"), money(reserved, "BilledCost")) == (Decimal("0.002"), Decimal("0.001"))
    assert money(on_demand, "ListCost") == money(reserved, "ListCost") == Decimal("0.002")


def test_an_account_and_a_provider_can_be_named(url: str) -> None:
    named = ("--provider", "Acme Platform", "--billing-account", "ops")
    (row, *_) = csv_rows(run(url, "--format", "focus", *named, "--output", "-").stdout)
    assert (row["ProviderName"], row["InvoiceIssuerName"], row["BillingAccountId"]) == ("Acme Platform",) * 2 + ("ops",)


def test_ends_are_cut_back_to_whole_hours(url: str) -> None:
    arguments = ("--since", "2026-09-21T14:59", "--until", "2026-09-21T15:59", "--format", "json", "--output", "-")
    answer = json.loads(run(url, *arguments).stdout)
    assert answer["range"] == {"start": "2026-09-21T14:00:00Z", "end": "2026-09-21T15:00:00Z"}
    assert {row["hour"] for row in answer["rows"]} == {"2026-09-21T14:00:00Z"}


def test_a_file_is_replaced_as_a_whole_and_keeps_its_permissions(url: str, tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    target.write_text("old")
    target.chmod(0o640)
    assert run(url, "--output", str(target)).exit_code == 0
    assert target.read_text().startswith("hour,sku,")
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert [p.name for p in tmp_path.iterdir() if p.name.endswith(".part")] == []


def test_an_export_that_fails_leaves_the_old_file_and_no_half_one(tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    target.write_text("old")

    def fail() -> None:
        with replacing(target) as path:
            path.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (target.read_text(), [p.name for p in tmp_path.glob(".out*")]) == ("old", [])


def test_an_export_through_a_link_replaces_what_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "real.csv").write_text("old")
    (tmp_path / "link.csv").symlink_to("real.csv")
    with replacing(tmp_path / "link.csv") as path:
        path.write_text("new")
    assert ((tmp_path / "real.csv").read_text(), (tmp_path / "link.csv").is_symlink()) == ("new", True)


def test_a_name_that_a_spreadsheet_would_run_is_text_in_csv() -> None:
    stream = io.StringIO()
    file = CsvFile(stream, (Field("cohort", "text"), Field("cost", "decimal", 9)), is_guarded=True)
    file.write([('=HYPERLINK("x")', Decimal("-1")), ("@a", None), ("a=b", Decimal(0))])
    assert [*csv.reader(stream.getvalue().splitlines())][1:] == [
        ['\'=HYPERLINK("x")', "-1"], ["'@a", ""], ["a=b", "0"],
    ]  # fmt: skip


def test_a_name_with_a_carriage_return_stays_in_its_row_of_a_csv_file() -> None:
    stream = io.StringIO(newline="")
    file = CsvFile(stream, (Field("cohort", "text"), Field("cost", "decimal", 9)), is_guarded=True)
    file.write([("plain", Decimal(1)), ("two\rlines", Decimal(2)), (None, Decimal(3))])
    rows = [*csv.reader(io.StringIO(stream.getvalue(), newline=""))]
    assert rows[1:] == [["plain", "1"], ["two\rlines", "2"], ["", "3"]]


@pytest.mark.parametrize("flag", ["--provider", "--billing-account"])
def test_an_empty_name_on_every_focus_row_is_wrong_use_before_any_work(url: str, flag: str) -> None:
    done = run(url, "--format", "focus", "--output", "focus.csv", flag, " ")
    assert (done.exit_code, len(done.stderr.splitlines()), Path("focus.csv").exists()) == (2, 1, False)
    assert done.stderr.startswith(f"{flag}: it is empty")


def test_what_has_no_price_is_said_in_the_json_of_an_export_by_a_dimension_too(url: str) -> None:
    answer = json.loads(run(url, "--by", "cohort", "--output", "by.csv", "--json").stdout)
    assert (answer["cost"], [line[:12] for line in answer["warnings"]]) == (None, ["gpu-x has no"])


def test_standard_output_takes_every_name_whatever_the_terminal_can_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert stdout().encoding == "utf-8"


def test_a_file_name_that_the_system_refuses_is_wrong_use(url: str) -> None:
    done = run(url, "--output", "a" * 300 + ".csv")
    assert (done.exit_code, done.stderr) == (2, "--output: File name too long\n")


def test_a_pipe_is_written_to_and_not_replaced(url: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert run(url, "--output", str(tmp_path / "pipe")).exit_code == 0
        assert os.read(reader, 100).startswith(b"hour,sku,")
        assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    finally:
        os.close(reader)


def test_an_empty_range_is_a_file_with_a_header(url: str) -> None:
    done = run(url, "--since", "2026-01-01", "--until", "2026-01-02", "--format", "focus", "--output", "-")
    assert (done.exit_code, csv_rows(done.stdout), done.stdout.count("\n")) == (0, [], 1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--output", "-", "--format", "parquet"), "--output: - is for csv, json and focus"),
        (("--output", "-", "--json"), "--output: - is for csv, json and focus without --json"),
        (("--output", "no/such/out.csv"), "--output: there is no folder no/such"),
        (("--output", "."), "--output: . is a folder"),
        (("--output", "-", "--format", "focus", "--by", "cohort"), "--by: FOCUS rows are of one hour"),
        (("--output", "-", "--where", "cohort"), "--where: 'cohort' is not written as DIMENSION=VALUE"),
        (("--output", "-", "--where", "colour=red"), "--where: 'colour' is none of"),
        (("--output", "-", "--since", "soon"), "--since: 'soon' is neither a duration"),
        (
            ("--output", "-", "--since", "2026-09-21T14:10", "--until", "2026-09-21T14:50"),
            "an export is of whole hours",
        ),
        (("--output", "-", "--focus-version", "1.3"), "--focus-version"),
    ],
)
def test_wrong_use_is_exit_code_2_and_names_the_flag(arguments: tuple[str, ...], says: str, url: str) -> None:
    done = run(url, *arguments)
    assert (done.exit_code, says in done.stderr, done.stdout) == (2, True, "")


def test_a_folder_that_may_not_be_written_to_is_one_line(url: str, tmp_path: Path) -> None:
    done = run(url, "--output", "/proc/out.csv")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "--output: cannot write /proc/out.csv" in done.stderr


# Complaints about other tools, by their number in the list that the ledger was planned against, named by the symptom.


def test_3_4_a_self_hosted_model_is_not_exported_at_zero(url: str) -> None:
    rows = csv_rows(run(url, "--output", "-").stdout)
    assert all(Decimal(row["cost"]) > 0 for row in rows if row["cost"] and Decimal(row["machine_s"]) > 0)
    assert "gpu-x" not in run(url, "--format", "focus", "--output", "-").stdout


def test_22_an_unknown_machine_is_not_exported_at_the_price_of_one_named_alike(
    fill: Callable[..., str], sqlite_ledger_url: str
) -> None:
    done = run(fill(sqlite_ledger_url, (0, "cpu-2cores")), "--format", "focus", "--output", "-")
    assert (done.exit_code, csv_rows(done.stdout)) == (1, [])


def test_13_a_price_of_zero_exports_a_cost_of_zero_and_no_other_price(url: str, tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text(PRICES.replace("3.6", "0"))
    done = run(url, "--format", "focus", "--where", "sku=cpu-2core", "--output", "-")
    assert (done.exit_code, money(csv_rows(done.stdout), "BilledCost")) == (0, 0)


def test_14_a_price_change_by_date_reaches_the_history_that_is_exported(url: str, tmp_path: Path) -> None:
    """3.6 until 15:00, twice that from then on."""
    old = PRICES.replace("effective_from: 2026-01-01", "effective_from: 2026-01-01, effective_to: 2026-09-21T15:00", 1)
    (tmp_path / "prices.yaml").write_text(
        old + "  - {sku: cpu-2core, basis: on_demand, currency: EUR, per_hour: 7.2, source: test,\n"
        "     as_of: 2026-09-01, effective_from: 2026-09-21T15:00}\n"
    )
    rows = csv_rows(run(url, "--format", "focus", "--output", "-").stdout)
    by_hour = {h: money([r for r in rows if r["ChargePeriodStart"] == h], "BilledCost") for h in
               ("2026-09-21T14:00:00Z", "2026-09-21T15:00:00Z")}  # fmt: skip
    assert list(by_hour.values()) == [Decimal("0.001"), Decimal("0.002")]


def test_18_a_machine_hour_is_never_exported_at_a_multiple_of_its_price(url: str) -> None:
    rows = csv_rows(run(url, "--format", "focus", "--output", "-").stdout)
    seconds = money(rows, "x_MachineSeconds")
    assert money(rows, "BilledCost") == seconds * Decimal("3.6") / 3600


def test_12_exported_token_buckets_do_not_overlap_and_add_up_to_the_report(url: str) -> None:
    rows = csv_rows(run(url, "--output", "-").stdout)
    counted = {d: sum(int(r["tokens"]) for r in rows if r["direction"] == d) for d in ("input", "output", "idle")}
    total = reported(url)["total"]
    assert counted == {"input": total["input_tokens"], "output": total["emitted_tokens"], "idle": 0}


def test_16_usage_and_allocation_differ_in_an_export_by_the_idle_rows(url: str) -> None:
    rows = csv_rows(run(url, "--format", "focus", "--output", "-").stdout)
    assert {row["x_IdleShare"] for row in rows} == {"0.600000000"}
    assert money([row for row in rows if row["SkuMeter"] == "Idle Hours"], "BilledCost") == Decimal("0.0012")

"""`kadence cost anomalies` as a person or a script meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner, Result

from controlplane.cost_cli import cost_app
from controlplane.cost_cli.anomalies import judged_hours
from controlplane.store.cost_models import CostHour
from controlplane.store.engine import open_database
from controlplane.store.time_range import TimeRange

HOUR = 497_222
NS = 3600 * 10**9
PRICES = """
version: 1
prices:
  - {sku: gpu, basis: on_demand, currency: EUR, per_hour: 3, source: x, as_of: 2026-11-01, effective_from: 2026-01-01}
"""


@pytest.fixture
def url(sqlite_ledger_url: str, tmp_path: Path, monkeypatch) -> str:
    """Two days of chat, 60,000 tokens for 3 EUR an hour; in the last one, at 14:00, a third of the tokens."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KADENCE_DATABASE_URL", raising=False)
    Path("prices.yaml").write_text(PRICES)
    rows = [
        {
            "hour": hour, "sku": "gpu", "model": "m", "cohort": "chat", "tenant": "", "direction": "output",
            "energy_source": "none", "ns": NS, "wasted_ns": 0, "uj": None, "wasted_uj": None,
            "tokens": 20_000 if hour == HOUR else 60_000, "measured_tokens": 0, "planned_k_steps": 0,
            "steps": 10_000 if hour == HOUR else 30_000, "draft_tokens": 0, "accepted_tokens": 0, "requests": 1,
        }
        for hour in range(HOUR - 48, HOUR + 1)
    ]  # fmt: skip
    engine = open_database(sqlite_ledger_url)
    with engine.begin() as connection:
        connection.execute(sa.insert(CostHour), rows)
    engine.dispose()
    return sqlite_ledger_url


def run(url: str, *flags: str) -> Result:
    spans = ("--since", "2026-09-20", "--until", "2026-09-22")
    return CliRunner().invoke(cost_app, ["anomalies", "--database-url", url, *spans, *flags])


def test_json_names_the_hour_its_figures_and_the_cause(url: str) -> None:
    (row,) = json.loads(run(url, "--json").stdout)["rows"]
    assert (row["cohort"], row["hour"], row["cause"]) == ("chat", "2026-09-21T14:00Z", "load")
    assert (row["metric"], row["value"], row["usual"]) == ("cost_per_million_tokens", "150.000000", "50.000000")
    assert row["change_percent"] == 200.0


def test_json_says_how_many_hours_could_be_judged(url: str) -> None:
    hours = json.loads(run(url, "--json").stdout)["hours"]
    # The ledger begins on the 19th at 14:00; from the 20th on, an hour has 12 before it from 02:00.
    assert hours == {"examined": 37, "too_few_tokens": 0, "too_little_before": 2}


def test_a_person_reads_the_hour_and_the_cause(url: str) -> None:
    shown = run(url).stdout
    assert "2026-09-21T14:00Z" in shown
    assert "load +200 %" in shown
    assert "1 unusual of 37 hours" in shown


def test_a_higher_threshold_leaves_it_out(url: str) -> None:
    assert json.loads(run(url, "--threshold", "50", "--json").stdout)["rows"] == []


def test_nothing_unusual_is_good(url: str) -> None:
    done = run(url, "--min-tokens", "50000")
    assert done.exit_code == 0
    assert "0 unusual" in done.stdout


def test_a_wrong_time_is_wrong_use(url: str) -> None:
    done = CliRunner().invoke(cost_app, ["anomalies", "--database-url", url, "--since", "yesterday"])
    assert done.exit_code == 2
    assert "--since" in done.stderr


def test_since_ever_looks_at_no_more_hours_than_were_recorded() -> None:
    ever, recorded = TimeRange(0.0, 9e9), TimeRange(HOUR * 3600.0 + 5, HOUR * 3600.0 + 3605)
    assert judged_hours(ever, recorded) == (HOUR, HOUR + 2)
    assert judged_hours(TimeRange(HOUR * 3600.0 + 5, HOUR * 3600.0 + 7205), None) == (HOUR + 1, HOUR + 2)

"""The energy page: figures from rows, charts of them, and the page on the ledger of conftest.py."""

from __future__ import annotations

import json
from datetime import UTC
from decimal import Decimal
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

from controlplane.cost_cli.app import cost_app
from controlplane.finops.carbon import Carbon, Intensity
from controlplane.store.cost_rows import CostReport, CostRow
from controlplane.store.energy import BatchPoint, PowerPoint
from dashboard import energy_charts as charts
from dashboard import energy_figures as figures
from dashboard import format as fmt
from tests.dashboard.looks import alone, in_app

EVIL = "<img src=x onerror=alert(1)>"
NS = 10**9
GRID = Carbon(Intensity("DEU", 2025, Decimal(360), "a report"), Decimal("1.5"))


def power(at: float, machine: str = "w0", uj: int | None = 100_000_000, source: str = "counter") -> PowerPoint:
    return PowerPoint(at, machine, "h200", source, uj, uj and uj // 5, 10 * NS, 10 * NS if uj else 0, uj and uj // 4)


def batch(at: float, **changes: Any) -> BatchPoint:
    values: dict[str, Any] = {
        "tokens": 100,
        "measured_tokens": 100,
        "active_uj": 50_000_000,
        "wasted_uj": 0,
        "idle_uj": 10_000_000,
        "running": 4.0,
        "steps": 40,
        "spec_steps": 40,
        "draft_tokens": 80,
        "accepted_tokens": 60,
        **changes,
    }
    return BatchPoint(at, **values)


def row(key: str, uj: int | None, **changes: Any) -> CostRow:
    return CostRow(key, energy_uj=uj, energy_source="counter" if uj is not None else "none", **changes)


def report(*rows: CostRow, idle_uj: int | None = None) -> CostReport:
    return CostReport(rows, row("idle", idle_uj), row("total", 0), "USD", "on_demand", 1.0)


@pytest.mark.parametrize(
    ("word", "text"),
    [("counter", "NVML energy counter"), ("model+none", "model, an estimate + not measured"), ("lamp", "lamp")],
)
def test_a_source_is_told_in_words(word, text):
    assert figures.source_text(word) == text


def test_not_measured_is_another_word_than_zero():
    assert [fmt.energy(uj) for uj in (None, 0)] == ["not measured", "0 J"]
    assert [fmt.joules_per_token(j, uj) for j, uj in ((None, None), (None, 0), (0.0, 0))] == [
        "not measured",
        fmt.NOTHING,
        "0 J",
    ]
    assert figures.grams(None, GRID) == "not measured"
    assert figures.grams(0, GRID) == "0 g"
    assert figures.grams(0, None) == "no zone"


def test_a_kilowatt_hour_is_that_of_the_grid_times_pue():
    assert figures.kilowatt_hours(3_600_000_000_000) == "1.000 kWh"
    assert figures.grams(3_600_000_000_000, GRID) == "540.0 g"


def test_every_card_has_what_measured_it_beside_it():
    cards = figures.key_figures(row("total", 200_000_000, measured_tokens=5000, emitted_tokens=5000), GRID)
    assert {card.source for card in cards[:-1]} == {"NVML"}
    assert cards[-1].source == "NVML, DEU grid"


@pytest.mark.parametrize(
    ("word", "text"), [("none", "not measured"), ("counter+none", "NVML, in part"), ("model+rapl", "model + RAPL")]
)
def test_beside_a_figure_the_source_is_short(word, text):
    assert figures.short_source(word) == text


def test_the_table_of_machines_tells_measured_from_unmeasured():
    points = [power(0), power(10), power(20, uj=None), power(0, "w1", None, "none")]
    table = figures.machine_table(points).set_index("Machine")
    assert table.loc["w0", "Mean power"] == "10.00 W"
    assert table.loc["w0", "At rest"] == "2.500 W"
    assert table.loc["w0", "Measured time"] == "66.7 %"
    assert table.loc["w1", "Mean power"] == "not measured"
    assert table.loc["w1", "Measured by"] == "not measured"


def test_the_steps_of_carbon_multiply_to_it():
    table = figures.carbon_table(row("total", 3_600_000_000_000), GRID).set_index("Step")["Value"]
    assert table["Energy of the site"] == "5,400,000 J"
    assert table["Carbon"] == "540.0 g"
    assert table["Embodied carbon"] == "not counted"


@pytest.mark.parametrize(("problem", "text"), [(None, "set carbon_zone"), ("two figures", "two figures")])
def test_missing_carbon_says_why(problem, text):
    assert text in figures.carbon_missing("none" if problem is None else "DEU", problem)


def test_a_stretch_that_was_not_measured_is_grey_and_not_zero_watts():
    spec = charts.power_chart([power(0), power(10, uj=None), power(20)], 10, ["w0"], UTC).to_dict()
    grey, lines = spec["layer"]
    assert [row["said"] for row in spec["datasets"][grey["data"]["name"]]] == ["not measured"]
    assert [row["watts"] for row in spec["datasets"][lines["data"]["name"]]] == [10.0, None, 10.0]


def test_a_line_of_power_breaks_where_a_machine_was_silent():
    frame = charts.power_frame([power(0), power(50)], ["w0"], 10)
    assert frame["ran"].tolist() == [True, False, True]


def test_the_machines_that_drew_most_are_drawn():
    points = [power(0, name, uj) for name, uj in (("a", 1), ("b", 3), ("c", None), ("d", 2))]
    assert charts.largest(points, limit=2) == ["b", "d"]


@pytest.mark.parametrize(
    ("per_step", "name"),
    [(None, None), (0, "no drafts"), (0.5, "up to 1"), (2, "1 to 2"), (3, "2 to 4"), (9, "over 4")],
)
def test_drafting_is_told_in_classes(per_step, name):
    assert charts.drafted_class(per_step) == name


def test_batches_carry_both_joules_and_break_where_nothing_was():
    frame = charts.batch_frame([batch(0), batch(10, active_uj=None, measured_tokens=0), batch(90)], 10)
    assert frame[charts.WORK].fillna(-1).tolist() == [0.5, -1, -1, 0.5]
    assert frame[charts.WITH_IDLE].fillna(-1).tolist() == [0.6, -1, -1, 0.6]
    assert frame["running"].fillna(-1).tolist() == [4, 4, -1, 4]
    assert frame["tokens per step"][0] == 2.5


def test_a_bar_is_in_kept_work_waste_and_idle():
    rows = (row("json", 60_000_000, wasted_uj=10_000_000), row("dark", None))
    frame = charts.cohort_frame(report(*rows, idle_uj=5_000_000))
    assert frame.values.tolist() == [
        ["json", charts.KEPT, 50.0],
        ["json", charts.WASTED, 10.0],
        ["idle", charts.IDLE, 5.0],
    ]
    assert figures.unmeasured_names(report(*rows)) == ["dark"]


def test_a_machines_name_is_data():
    spec = charts.power_chart([power(0, EVIL)], 10, [EVIL], UTC).to_dict()
    del spec["datasets"]
    for name in ("color", "strokeDash"):
        spec["layer"][1]["encoding"][name]["scale"].pop("domain")
    assert "<img" not in json.dumps(spec)


def table_of(app: AppTest, column: str) -> Any:
    return next(d.value for d in app.dataframe if column in d.value.columns)


@pytest.mark.usefixtures("filled")
def test_the_page_shows_what_was_worked_out_by_hand():
    app = alone("energy")
    assert {m.label: m.value for m in app.metric} == {
        "Energy": "200.0 J",
        "Energy per token": "0.04000 J",
        "Without idle": "0.03200 J",
        "Idle energy": "40.00 J",
        "Wasted": "0 J",
        "Carbon": "no zone",
    }
    machine = table_of(app, "Mean power").iloc[0]
    assert (machine["Machine"], machine["Mean power"], machine["Measured time"]) == ("w0", "10.00 W", "100.0 %")
    assert "carbon_zone" in "\n".join(text.value for text in app.text)


def test_every_figure_is_the_commands(filled, monkeypatch):
    monkeypatch.setenv("KADENCE_CARBON_ZONE", "DEU")
    monkeypatch.setenv("KADENCE_PUE", "1.2")
    app = alone("energy")
    told = CliRunner().invoke(cost_app, ["report", "--since", "1h", "--json", "--database-url", filled.url])
    said = json.loads(told.stdout)
    rows = [*said["rows"], {"cohort": "idle", **said["idle"]}, {"cohort": "total", **said["total"]}]
    shown = table_of(app, "Without idle").set_index("Cohort")
    assert list(shown.index) == [row["cohort"] for row in rows]
    for each in rows:
        line = shown.loc[each["cohort"]]
        assert line["Energy"] == f"{fmt.number(each['energy_j'])} J"
        assert line["Carbon"] == f"{fmt.number(Decimal(each['carbon_g']))} g"
        if each["cohort"] != "idle":
            assert line["Per token"] == f"{fmt.number(each['j_per_token'])} J"
            assert line["Without idle"] == f"{fmt.number(each['active_j_per_token'])} J"
            assert line["With its idle"] == f"{fmt.number(each['loaded_j_per_token'])} J"
    steps = table_of(app, "Step").set_index("Step")["Value"]
    assert steps["Grid intensity"] == f"{said['carbon']['grams_per_kwh']} g per kWh"
    assert steps["Energy of the site"] == f"{fmt.number(said['total']['facility_j'])} J"


def test_energy_that_was_not_measured_has_no_figure_and_no_line(ledger):
    ledger.migrate()
    ledger.price()
    ledger.fill(measured=False)
    app = alone("energy")
    assert {m.value for m in app.metric} - {"no zone"} == {"not measured"}
    assert {m.delta for m in app.metric if m.label != "Carbon"} == {"not measured"}
    assert "Joules per token: not measured." in [c.value for c in app.caption]


@pytest.mark.usefixtures("filled")
def test_a_cohort_in_the_url_narrows_the_cards_to_it():
    found = {m.label: m.value for m in in_app("energy", cohort="json").metric}
    assert (found["Energy"], found["Without idle"]) == ("120.0 J", "0.03000 J")


def test_a_long_range_takes_its_power_from_the_rollups(ledger):
    ledger.migrate()
    ledger.price()
    ledger.fill(age_s=7200)
    machines = table_of(in_app("energy", range="24h"), "Mean power")
    assert machines[["Machine", "Mean power", "Measured time"]].values.tolist() == [
        ["test-machine", "10.00 W", "not told apart"]
    ]


def test_html_in_a_cohorts_name_stays_text(ledger):
    ledger.migrate()
    ledger.price()
    ledger.fill(first=EVIL)
    app = in_app("energy", cohort=EVIL)
    for element in (*app.markdown, *app.caption, *app.metric, *app.title, *app.header):
        assert "<img" not in str(element.value)
    assert EVIL in table_of(app, "Without idle")["Cohort"].tolist()

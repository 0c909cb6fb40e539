"""`bench control` on a small profile, through its own command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.control.arms import BEST_FIXED, CLAIRVOYANT, PLANNED, REACTING, reacting_arms
from benchmarks.control.command import control, run_all
from benchmarks.control.report import spread

app = typer.Typer()
app.command()(control)


@pytest.fixture
def profile_file(tmp_path, small_text) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(small_text.replace("steps_per_second: 10", "steps_per_second: 2").replace("600", "300"))
    return path


@pytest.fixture
def ran(profile_file, tmp_path):
    output = tmp_path / "control.csv"
    arguments = ["--profile", str(profile_file), "--seeds", "2", "--first-seed", "7", "--jobs", "1"]
    result = CliRunner().invoke(app, [*arguments, "--json", "--output", str(output)])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout), output


def test_the_result_has_the_promised_keys_every_arm_and_a_line_in_the_file_for_each(ran) -> None:
    found, output = ran
    (profile,) = found["profiles"]
    assert {"name", "percent_of_clairvoyant", "gain_over_best_fixed_percent", "worst_cell_percent"} <= set(profile)
    assert {"bias_percent", "coverage_percent", "steps_to_adapt", "windows_to_adapt", "changes_per_minute",
            "tick_ms", "lookup_us"} <= set(found)  # fmt: skip
    arms = {arm["name"]: arm for arm in profile["arms"]}
    assert set(arms) == {*PLANNED, *reacting_arms()}
    assert arms[CLAIRVOYANT]["percent_of_clairvoyant"] == 100.0
    assert arms[BEST_FIXED]["gain_over_best_fixed_percent"] == 0.0
    assert set(arms["+2/-1"]["spreads"]["percent_of_clairvoyant"]) == {"min", "median", "max", "mean"}
    with output.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert {(line["seed"], line["arm"]) for line in lines} == {(seed, arm) for seed in ("7", "8") for arm in arms}
    assert lines[0]["numpy"]


def test_a_bad_profile_is_refused_before_any_work_with_one_line_a_problem(tmp_path, small_text) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(small_text.replace("median: 12", "median: 0").replace("name: small", "name: ''"))
    result = CliRunner().invoke(app, ["--profile", str(path), "--seeds", "1"])
    assert result.exit_code == 2
    prefix = f"kadence: error: {path}: "
    assert [line.removeprefix(prefix).split(": ")[0] for line in result.stderr.splitlines()] == ["name", "load.median"]


def test_two_profiles_of_one_name_are_refused(profile_file) -> None:
    result = CliRunner().invoke(app, ["--profile", str(profile_file), "--profile", str(profile_file)])
    assert result.exit_code == 2
    assert "--profile: two profiles are named small" in result.stderr


def test_a_file_of_other_columns_is_refused_before_any_work(profile_file, tmp_path) -> None:
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    result = CliRunner().invoke(app, ["--profile", str(profile_file), "--seeds", "100000", "--output", str(other)])
    assert result.exit_code == 2
    assert result.stderr == f"kadence: error: --output {other}: has other columns; move it away, or name another file\n"
    assert other.read_text() == "a,b\n1,2\n"


def test_a_second_run_is_appended(profile_file, ran) -> None:
    _, output = ran
    lines = len(output.read_text().splitlines())
    again = ["--profile", str(profile_file), "--seeds", "1", "--steps", "100", "--jobs", "1", "--output", str(output)]
    assert CliRunner().invoke(app, again).exit_code == 0
    assert len(output.read_text().splitlines()) == lines + (lines - 1) // 2


def test_traces_do_not_depend_on_the_number_of_processes(small, monkeypatch) -> None:
    monkeypatch.setattr("benchmarks.control.command.ADAPTATION_SEEDS", 0)
    short = small.model_copy(update={"steps": 100})
    assert run_all([short], [0, 1], 1) == run_all([short], [0, 1], 2)


def test_a_spread_has_its_four_figures() -> None:
    assert spread([1.0, 4.0, 2.0]) == {"min": 1.0, "median": 2.0, "max": 4.0, "mean": 2.3333}
    assert spread([]) == {}


def test_every_reacting_arm_has_a_place_of_its_own() -> None:
    assert not set(PLANNED) & set(reacting_arms())
    assert set(REACTING) <= set(reacting_arms())

"""`bench control` on a small profile, through its own command line."""

from __future__ import annotations

import csv
import json
from dataclasses import fields
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.control.adapt import Adaptation
from benchmarks.control.command import control, run_all
from benchmarks.control.estimator_checks import EstimatorCheck
from benchmarks.control.ours_checks import OursChecks
from benchmarks.control.report import result, spread
from benchmarks.control.roster import BEST_FIXED, CLAIRVOYANT, OURS, PLANNED, REACTING
from benchmarks.control.score import Score
from benchmarks.control.trace import Trace

SMALL = """
version: 1
name: small
ladder: [0, 1, 2, 4]
steps: 600
steps_per_second: 50
cost: {verify_ms: {1: 10, 32: 14, 128: 40}, draft_share: 0.1}
load: {median: 12, spread: 1.0, correlation_steps: 100}
cohorts: [{name: code}, {name: chat}]
"""

app = typer.Typer()
app.command()(control)


@pytest.fixture(scope="module")
def profile_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("profiles") / "small.yaml"
    path.write_text(SMALL.replace("600", "300"))
    return path


@pytest.fixture(scope="module")
def ran(profile_file):
    output = profile_file.with_name("control.csv")
    arguments = [
        "--profile",
        str(profile_file),
        "--seeds",
        "2",
        "--first-seed",
        "7",
        "--jobs",
        "1",
        "--change-seeds",
        "0",
    ]
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
    assert set(arms) == {*PLANNED, *REACTING}
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
    again = ["--profile", str(profile_file), "--seeds", "1", "--steps", "100", "--jobs", "1", "--change-seeds", "0"]
    again += ["--output", str(output)]
    assert CliRunner().invoke(app, again).exit_code == 0
    assert len(output.read_text().splitlines()) == lines + (lines - 1) // 2


def test_traces_do_not_depend_on_the_number_of_processes(small) -> None:
    short = small.model_copy(update={"steps": 100})
    assert run_all([short], [0, 1], 0, 1) == run_all([short], [0, 1], 0, 2)


def test_a_spread_has_its_four_figures() -> None:
    assert spread([1.0, 4.0, 2.0]) == {"min": 1.0, "median": 2.0, "max": 4.0, "mean": 2.3333}
    assert spread([]) == {}


def test_every_arm_has_a_name_of_its_own() -> None:
    assert not set(PLANNED) & set(REACTING)


def test_single_numbers_are_the_mean_or_the_worst(small) -> None:
    scores = [Score(*([value] * len(fields(Score)))) for value in (90.0, 100.0)]
    traces = [
        Trace("small", seed, {OURS: score}, {OURS: Adaptation(seed, 2 * seed, None, 1.5)})
        for seed, score in enumerate(scores)
    ]
    checks = OursChecks(EstimatorCheck(-0.5, 95.0, 93.0), (3, 20), 12.0, None)
    found = result({}, [small], traces, checks)
    (profile,) = found["profiles"]
    assert (profile["percent_of_clairvoyant"], profile["worst_cell_percent"]) == (95.0, 90.0)
    assert (found["windows_to_adapt"], found["windows_to_recover"], found["changes_per_minute"]) == (2, None, 1.5)
    assert (found["bias_percent"], found["coverage_percent"], found["steps_to_adapt"]) == (-0.5, 95.0, 20)
    assert (found["tick_ms"], found["lookup_us"]) == (12.0, None)

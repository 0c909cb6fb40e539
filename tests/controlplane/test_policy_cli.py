"""`kadence policy check` and `show`."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from controlplane.policy_cli import policy_app

GOOD = """
version: 1
cohorts:
  - {name: default, match: {}, speculation: {tuner: threshold, ladder: [0, 2], start: 2, fallback: 0},
     budget: {usd: 12.50, period: month}}
"""


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "bad.yaml"
    path.write_text(GOOD.replace("start: 2", "start: 1").replace("name: default", "nome: default"))
    return path


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(policy_app, [str(a) for a in arguments])
    return result.exit_code, result.stdout, result.stderr


def test_a_good_policy_is_said_to_be_good_with_its_warnings_apart(good: Path) -> None:
    code, out, err = run("check", good)
    assert (code, "good, revision" in out) == (0, True)
    assert "warning: cohorts[0].budget" in err


def test_a_bad_policy_is_one_line_a_problem_and_exit_code_1(bad: Path) -> None:
    code, out, err = run("check", bad)
    assert (code, out, len(err.splitlines())) == (1, "", 3)


def test_a_file_that_is_not_there_is_wrong_use(tmp_path: Path) -> None:
    code, _, err = run("check", tmp_path / "absent.yaml")
    assert (code, len(err.splitlines())) == (2, 1)


def test_check_as_json_is_one_object(good: Path) -> None:
    code, out, err = run("check", good, "--json")
    said = json.loads(out)
    assert (code, err, said["ok"], said["cohorts"]) == (0, "", True, ["default"])


def test_problems_as_json_carry_line_and_field(bad: Path) -> None:
    code, out, _ = run("check", bad, "--json")
    fields = [problem["field"] for problem in json.loads(out)["problems"]]
    assert (code, "cohorts[0].nome" in fields, "cohorts[0].speculation.start" in fields) == (1, True, True)


def test_show_fills_in_the_defaults(good: Path) -> None:
    code, out, _ = run("show", good)
    assert code == 0
    assert "acceptance_floor 0.5" in out
    assert "probe_every_s 60" in out
    assert "usd 12.50" in out


def test_show_as_json_keeps_money_as_a_string(good: Path) -> None:
    _, out, _ = run("show", good, "--json")
    assert json.loads(out)["cohorts"][0]["budget"]["usd"] == "12.50"

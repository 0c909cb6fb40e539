"""`kadence policy`, on files and on the ledger; what it asks of a running endpoint: tests/workers/api."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from controlplane.policy import parse_policy
from controlplane.policy_cli import policy_app
from controlplane.store.engine import open_database
from controlplane.store.journal import SqlJournal

AT = 1_790_000_000.0

GOOD = """
version: 1
cohorts:
  - {name: default, match: {}, speculation: {tuner: threshold, ladder: [0, 2], start: 2, fallback: 0},
     budget: {usd: 12.50, period: month}}
"""


OTHER = "\n  - {name: code, match: {user: a}, speculation: {tuner: fixed, ladder: [0, 2], start: 2, fallback: 0}}"


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
    good.write_text(GOOD.replace("threshold", "fixed").replace("budget:", "slo: {tpot_p95: 40ms}, budget:"))
    code, out, err = run("check", good)
    assert (code, "good, revision" in out) == (0, True)
    assert "warning: cohorts[0].slo" in err


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


def test_show_says_which_values_the_file_gives(good: Path) -> None:
    lines = run("show", good)[1].splitlines()
    source = {line.split()[-3 if "line" in line else -2]: line.split()[-1] for line in lines if line.startswith("  ")}
    assert {name: source[name] for name in ("0.5", "12.50", "10")} == {"0.5": "default", "12.50": "5", "10": "default"}


def test_show_of_one_cohort_leaves_the_others_out(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text(GOOD.replace("cohorts:", f"cohorts:{OTHER}"))
    assert [c["name"] for c in json.loads(run("show", path, "--cohort", "code", "--json")[1])["cohorts"]] == ["code"]


def test_show_of_a_cohort_that_is_not_there_names_those_that_are(good: Path) -> None:
    code, _, err = run("show", good, "--cohort", "code")
    assert (code, "there are default" in err) == (2, True)


@pytest.mark.parametrize("arguments", [(), ("policies.yaml", "--effective")])
def test_show_wants_a_file_or_the_running_endpoint(arguments: tuple[str, ...]) -> None:
    assert run("show", *arguments)[0] == 2


def test_the_schema_goes_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    assert run("schema", "--output", path)[0] == 0
    assert json.loads(path.read_text()) == json.loads(run("schema")[1])


def test_show_as_json_keeps_money_as_a_string(good: Path) -> None:
    _, out, _ = run("show", good, "--json")
    assert json.loads(out)["cohorts"][0]["budget"]["usd"] == "12.50"


@pytest.fixture
def ledger_with_two(sqlite_ledger_url: str) -> str:
    """Two policies on record: `GOOD`, and then one with a cohort more."""
    journal = SqlJournal(open_database(sqlite_ledger_url))
    journal.policy_applied(parse_policy(GOOD), "ann", "first", AT)
    journal.policy_applied(parse_policy(GOOD.replace("cohorts:", f"cohorts:{OTHER}")), "bob", "code apart", AT + 60)
    journal.close()
    return sqlite_ledger_url


def test_the_history_is_newest_first_with_who_and_why(ledger_with_two: str) -> None:
    code, out, _ = run("history", "--database-url", ledger_with_two, "--json")
    entries = json.loads(out)["history"]
    assert code == 0
    assert [(e["applied_by"], e["why"], e["applied_at"]) for e in entries] == [
        ("bob", "code apart", AT + 60),
        ("ann", "first", AT),
    ]


def test_the_history_of_a_new_ledger_says_that_it_is_empty(sqlite_ledger_url: str) -> None:
    code, out, _ = run("history", "--database-url", sqlite_ledger_url)
    assert (code, "no policy was put in force yet" in out) == (0, True)


def test_a_history_without_a_database_is_one_line_with_the_way_out(tmp_path: Path) -> None:
    code, _, err = run("history", "--database-url", f"sqlite:///{tmp_path}/none.db")
    assert (code, len(err.splitlines()), "kadence db upgrade" in err) == (1, 1, True)


def test_two_revisions_differ_by_what_was_changed(ledger_with_two: str, good: Path) -> None:
    new, old = (
        e["revision"] for e in json.loads(run("history", "--database-url", ledger_with_two, "--json")[1])["history"]
    )
    code, out, _ = run("diff", old[:6], new, "--database-url", ledger_with_two, "--json")
    said = json.loads(out)
    assert (code, said["changes"]) == (1, ["code: cohort added"])
    assert any(line.startswith("+  - {name: code") for line in said["text"].splitlines())


def test_a_revision_can_be_held_against_a_file(ledger_with_two: str, good: Path) -> None:
    old = json.loads(run("history", "--database-url", ledger_with_two, "--json")[1])["history"][1]["revision"]
    good.write_text(GOOD.replace("start: 2", "start: 0") + "# a comment\n")
    _, out, _ = run("diff", old, good, "--database-url", ledger_with_two)
    assert out.splitlines()[0] == "default: speculation.start: 2 -> 0"


def test_a_comment_is_no_difference(good: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(GOOD + "# a comment\n")
    code, out, _ = run("diff", good, other)
    assert (code, out.splitlines()[0]) == (0, "no setting changes")


def test_a_revision_that_nobody_applied_is_wrong_use(ledger_with_two: str, good: Path) -> None:
    code, _, err = run("diff", "ffff", good, "--database-url", ledger_with_two)
    assert (code, "no policy of the history" in err) == (2, True)

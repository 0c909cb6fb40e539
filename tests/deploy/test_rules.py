"""Recording and alert rules: by Prometheus' own checker and unit tests, and what an operator reads of an alert."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
TESTS = sorted(Path(__file__).with_name("rules").glob("*.yml"))
ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((PROMETHEUS / "alert.rules.yml").read_text())["groups"] for rule in group["rules"]
]
NAMES = sorted({rule["alert"] for rule in ALERTS})
OF_THE_RESEARCH = {  # what finops asks for -> the alert that it is
    "CostPerMTokHigh", "BudgetBurnFast", "IdleRatioHigh", "EnergyPerTokenRegression", "AcceptanceCollapse", "KAtBound",
    "PlanStale", "EnergySourceMissing", "ControllerDown",
}  # fmt: skip


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool of Debian's prometheus package")
    command = ["promtool", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def cases() -> list[tuple[str, bool]]:
    """(alert, whether it is to fire) of every unit test."""
    found = []
    for file in TESTS:
        for test in yaml.load(file.read_text(), Loader=yaml.CSafeLoader)["tests"]:
            for asked in test.get("alert_rule_test", []):
                found.append((asked["alertname"], bool(asked["exp_alerts"])))
            for asked in test.get("promql_expr_test", []):
                (alert,) = re.findall(r'alertname="(\w+)"', asked["expr"])
                found.append((alert, bool(asked["exp_samples"])))
    return found


CASES = cases()


def test_the_example_configuration_and_its_rules_are_valid() -> None:
    checked = promtool("check", "config", str(PROMETHEUS / "prometheus.yml"))
    assert (checked.returncode, checked.stderr) == (0, "")
    assert checked.stdout.count("rules found") == 2


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.stem)
def test_the_alerts_fire_when_they_should_and_are_silent_when_not(file: Path) -> None:
    tested = promtool("test", "rules", str(file))
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_a_wrong_expectation_fails_so_that_the_others_mean_something(tmp_path: Path) -> None:
    """One alert that fires is expected to be silent."""
    file = Path(__file__).with_name("rules") / "health.yml"
    told = yaml.safe_load(file.read_text())
    test = next(t for t in told["tests"] if "alert_rule_test" in t)
    test["alert_rule_test"][0]["exp_alerts"] = []
    rules = [str((file.parent / rule).resolve()) for rule in told["rule_files"]]
    (tmp_path / "wrong.yml").write_text(yaml.safe_dump({**told, "rule_files": rules, "tests": [test]}))
    assert "FAILED" in promtool("test", "rules", str(tmp_path / "wrong.yml")).stderr


@pytest.mark.parametrize("alert", NAMES)
def test_every_alert_is_tested_both_firing_and_silent(alert: str) -> None:
    assert {fires for name, fires in CASES if name == alert} == {True, False}


def test_no_unit_test_is_of_an_alert_that_is_gone() -> None:
    assert {alert for alert, _ in CASES} - set(NAMES) == set()


def test_the_alerts_that_operators_were_promised_are_there() -> None:
    assert {f"Kadence{name}" for name in OF_THE_RESEARCH} - set(NAMES) == set()


def headings() -> set[str]:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    return {heading.lower() for heading in re.findall(r"^#+ (\w+)$", page, re.MULTILINE)}


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_to_do_and_how_urgent_it_is(rule: dict[str, Any]) -> None:
    told = rule["annotations"]
    page, _, anchor = told["runbook_url"].partition("#")
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert (page, anchor, anchor in headings()) == ("docs/monitoring.md", rule["alert"].lower(), True)
    # What is the case, and a second sentence or half of one with what to do.
    assert len(re.split(r"[.:;] ", re.sub(r"\{\{.*?\}\}", "x", told["summary"]))) > 1
    assert told["summary"].endswith(".")


def test_every_alert_is_shown_once_with_the_words_that_an_operator_reads() -> None:
    """Summaries are compared word by word where a test has them, so a label that is not there would be seen."""
    shown: dict[str, list[str]] = {name: [] for name in NAMES}
    for file in TESTS:
        for test in yaml.load(file.read_text(), Loader=yaml.CSafeLoader)["tests"]:
            for asked in test.get("alert_rule_test", []):
                shown[asked["alertname"]] += [a["exp_annotations"]["summary"] for a in asked["exp_alerts"]]
    assert [name for name, summaries in shown.items() if not summaries] == []
    every = [summary for summaries in shown.values() for summary in summaries]
    assert [s for s in every if re.search(r"error expanding|no value|  | of \.| ,", s)] == []

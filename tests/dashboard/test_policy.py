"""The policy page: what is in force, what was, what a pasted policy would do, decisions and events."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

from controlplane.alerts import Alert
from controlplane.policy import parse_policy
from controlplane.policy_cli import policy_app
from controlplane.store.alerts import alert_row
from controlplane.store.models import AlertEntry, PlanEntry, PolicyRevision, PolicyRollout
from dashboard import policy_tables as tables
from dashboard import policy_trial as trials
from dashboard.policy_reading import Asked, PolicyReading, in_force
from tests.dashboard.looks import alone, in_app

EVIL = "<img src=x onerror=alert(1)>"
OLD = """\
version: 1
cohorts:
  - {name: json, match: {}, speculation: {tuner: fixed, ladder: [0, 1, 4], start: 1, fallback: 0}}
"""
NEW = """\
version: 1
cohorts:
  - name: json
    match: {api_key: [ide]}
    speculation: {tuner: goodput, ladder: [0, 1, 2, 4], start: 2, fallback: 1, objective: latency}
    slo: {tpot_p95: 40ms}
    budget: {usd: 25, period: day, soft: [80%], on_exceeded: warn}
  - name: rest
    match: {}
    speculation: {tuner: threshold, acceptance_floor: 50%, ladder: [0, 2], start: 2, fallback: 0}
"""
BAD = "version: 1\ncohorts:\n  - name: json\n    match: {}\n    speculation: {tuner: guess, ladder: [0, 2]}\n"


def revision(text: str, age_s: float, by: str = "ann", why: str = "because") -> PolicyRevision:
    return PolicyRevision(
        revision=parse_policy(text).revision, applied_at=time.time() - age_s, applied_by=by, why=why, text=text
    )


def rollout(text: str = NEW, **changes: Any) -> PolicyRollout:
    at = time.time() - 500
    values: dict[str, Any] = {
        "revision": parse_policy(text).revision, "incumbent": parse_policy(OLD).revision, "unit": "replicas",
        "share": 0.1, "min_windows": 60, "max_s": 1800.0, "members": ["w0"], "stage": "rolled_back", "started_at": at,
        "ended_at": at + 60, "started_by": "bob", "why": "try", "sentence": "it was slower", "text": text, **changes,
    }  # fmt: skip
    return PolicyRollout(**values)


def plan_entry(version: int, age_s: float, kill_switch: str) -> PlanEntry:
    at = time.time() - age_s
    return PlanEntry(
        version=version, epoch=1, issued_at=at, expires_at=at + 10, k={}, fallback={}, policy_revision="p1",
        kill_switch=kill_switch,
    )  # fmt: skip


@pytest.fixture
def audited(filled: Any) -> Any:
    """Two policies, the second in force; a rollout that failed before it."""
    filled.add([revision(OLD, 1000, why="start"), revision(NEW, 100, by="bob", why="slower answers"), rollout()])
    return filled


def texts(app: AppTest) -> str:
    return "\n".join(e.value for kind in (app.text, app.caption) for e in kind).replace("\\", "")


def table_of(app: AppTest, column: str) -> Any:
    return next(d.value for d in app.dataframe if column in d.value.columns)


def test_the_effective_policy_is_a_line_a_cohort_with_what_the_plan_obeys():
    table = tables.effective_table(parse_policy(NEW), None).set_index("Cohort")
    assert table.loc["json", ["Tuner", "Objective", "Ladder", "Start", "Fallback", "TPOT p95"]].tolist() == [
        "goodput",
        "latency",
        "[0, 1, 2, 4]",
        "2",
        "1",
        "40 ms",
    ]
    assert table.loc["json", ["Budget", "Matches"]].tolist() == ["25 USD a day, warn", "api_key [ide]"]
    assert table.loc["rest", ["Floor", "Objective", "Matches"]].tolist() == ["50%", "throughput", "every request"]
    assert table.loc["rest", ["TPOT p95", "Budget", "K by load"]].tolist() == ["–", "–", "no plan"]


def test_every_field_says_whether_it_was_given_or_is_the_default():
    table = tables.field_table(parse_policy(NEW), "json").set_index("Field")["From"]
    assert (table["tuner"], table["tpot_p95_s"], table["hold_s"]) == ("line 5", "line 6", "default")


def test_budgets_of_cohorts_and_of_tenants_are_in_one_table():
    text = NEW + "budgets:\n  - {name: all, tenant: ide, usd: 5, period: month, on_exceeded: reject}\n"
    table = tables.budget_table(parse_policy(text)).set_index("Budget")
    assert table[["Cohort", "Tenant", "Amount"]].values.tolist() == [["json", "–", "25 USD"], ["–", "ide", "5 USD"]]


def test_revisions_are_each_policy_on_record_once_newest_first():
    rows = [_row(NEW, 30.0), _row(OLD, 10.0), _row(NEW, 5.0)]
    found = PolicyReading(Asked("Revisions"), applied=rows)
    assert list(found.texts) == [parse_policy(NEW).revision, parse_policy(OLD).revision]


def _row(text: str, at: float) -> Any:
    from controlplane.store.queries import PolicyRow

    return PolicyRow(parse_policy(text).revision, at, "ann", "because", text)


def test_a_policy_of_another_release_is_one_sentence():
    policy, problem = in_force([replace(_row(OLD, 1.0), text="version: 9\ncohorts: []\n")])
    assert policy is None
    assert "not one of this release" in (problem or "")


def test_a_pasted_policy_is_wrong_by_line():
    trial = trials.check(BAD)
    table = tables.problem_table(trial.problems)
    assert ("5", "cohorts[0].speculation.tuner") in set(zip(table["Line"], table["Field"], strict=True))
    assert trials.commands(trial) == "kadence policy check policies.yaml"


def test_the_page_shows_what_is_in_force(audited):
    audited.add([replace_plan(audited)])
    app = in_app("policy")
    table = table_of(app, "Ladder")
    assert table["Cohort"].tolist() == ["json", "rest"]
    assert table["K by load"].tolist() == ["4 4 4 2 2 1 1 0 0", "no plan"]
    assert f"Revision {parse_policy(NEW).revision}, by bob: slower answers" in texts(app)


def replace_plan(audited: Any) -> PlanEntry:
    now = time.time()
    return PlanEntry(
        version=9, epoch=1, issued_at=now, expires_at=now + 60, k={"json": [4, 4, 4, 2, 2, 1, 1, 0, 0]}, fallback={},
        policy_revision=parse_policy(NEW).revision, kill_switch="off",
    )  # fmt: skip


def test_without_a_policy_the_page_says_how_one_comes(ledger):
    ledger.migrate()
    assert "No policy was put in force" in texts(alone("policy"))


@pytest.mark.usefixtures("audited")
def test_revisions_say_who_applied_them_and_why_and_differ_as_the_command_says(audited):
    app = alone("policy", part="Revisions")
    history = table_of(app, "Revision")
    assert history[["What", "By", "Why"]].values.tolist() == [
        ["applied", "bob", "slower answers"],
        ["rolled_back", "bob", "it was slower"],
        ["staged", "bob", "try"],
        ["applied", "ann", "start"],
    ]
    old, new = parse_policy(OLD).revision, parse_policy(NEW).revision
    told = CliRunner().invoke(policy_app, ["diff", old, new, "--json", "--database-url", audited.url])
    said = json.loads(told.stdout)
    assert said["text"] in [code.value for code in app.code]
    assert set(said["changes"]) <= set(texts(app).splitlines())
    app.selectbox(key="old").select(new).run()
    assert "No setting changes." in texts(app)


def test_a_pasted_policy_is_checked_on_a_click_alone(audited):
    app = alone("policy", part="Try one")
    app.text_area(key="policy_text").set_value(BAD).run()
    assert not app.dataframe
    click(app, "Check")
    assert "cohorts[0].speculation.tuner" in table_of(app, "Problem")["Field"].tolist()
    app.text_area(key="policy_text").set_value(NEW).run()
    assert "The text has changed since" in texts(app)
    click(app, "Check")
    assert f"Revision {parse_policy(NEW).revision}, 2 cohorts: json, rest" in texts(app)
    assert any("kadence policy apply policies.yaml" in code.value for code in app.code)


def test_a_pasted_policy_is_planned_as_the_command_plans_it(audited, tmp_path):
    app = alone("policy", part="Try one")
    text = NEW.replace("ladder: [0, 2]", "ladder: [0, 1, 2]")
    app.text_area(key="policy_text").set_value(text).run()
    click(app, "Plan")
    file = tmp_path / "pasted.yaml"
    file.write_text(text)
    told = CliRunner().invoke(policy_app, ["plan", str(file), "--since", "1h", "--database-url", audited.url])
    printed = "\n".join(told.stdout.splitlines())
    assert printed in [code.value for code in app.code]
    assert table_of(app, "K after")["Cohort"].tolist() == ["json", "rest"]
    assert "rest: speculation.ladder: [0, 2] -> [0, 1, 2]" in texts(app)
    warnings = [line.partition("warning: ")[2] for line in told.stderr.splitlines()]
    assert warnings
    assert {f"Warning: {line}" for line in warnings} <= set(texts(app).splitlines())


def test_looking_and_trying_put_nothing_in_force(audited):
    app = alone("policy", part="Try one")
    click(app, "Take the text in force")
    assert app.text_area(key="policy_text").value == NEW
    click(app, "Plan")
    told = CliRunner().invoke(policy_app, ["history", "--json", "--database-url", audited.url])
    assert len(json.loads(told.stdout)["history"]) == 4


def test_without_a_policy_in_force_there_is_nothing_to_plan_against(filled):
    app = alone("policy", part="Try one")
    app.text_area(key="policy_text").set_value(OLD).run()
    click(app, "Plan")
    assert "There is nothing to compare with" in texts(app)


def click(app: AppTest, label: str) -> None:
    next(button for button in app.button if button.label == label).click().run()
    assert not app.exception


@pytest.mark.usefixtures("filled")
def test_decisions_are_shown_newest_first_and_those_that_kept_k_on_request():
    app = alone("policy", part="Decisions")
    table = table_of(app, "Why")
    assert table["Cohort"].tolist() == ["fiction", "json"]
    assert table["Reason"].tolist() == ["below_floor", "step_up"]
    assert table["Why"][1] == "position 2 accepted 83 % (floor 50 %), 100 samples"
    app.toggle(key="holds").set_value(True).run()
    assert "hold" in table_of(app, "Why")["Reason"].tolist()


@pytest.mark.usefixtures("filled")
def test_decisions_can_be_narrowed_to_a_cohort_and_to_a_text():
    app = in_app("policy", part="Decisions", cohort="json")
    assert table_of(app, "Why")["Cohort"].tolist() == ["json"]
    app = alone("policy", part="Decisions", text="Position 1")
    assert table_of(app, "Why")["Cohort"].tolist() == ["fiction"]
    app.text_input(key="text").set_value("nowhere").run()
    assert "No decision in this time range matches" in texts(app)


def test_decisions_can_be_narrowed_to_reasons(filled, make_decision):
    filled.add([make_decision("json", "raised"), make_decision("fiction", "canary")])
    app = alone("policy", part="Decisions")
    app.multiselect(key="reason").select("canary").run()
    assert table_of(app, "Why")["Reason"].tolist() == ["canary"]


@pytest.fixture
def make_decision() -> Any:
    from controlplane.store.models import DecisionEntry

    def make(name: str, reason: str) -> DecisionEntry:
        return DecisionEntry(
            at=time.time() - 10, cohort=name, load_bucket=1, old_k=0, new_k=1, reason=reason, sentence="why", samples=1,
            accept_at=[], plan_version=7, policy_revision="p",
        )  # fmt: skip

    return make


def test_events_are_the_kill_switch_rollouts_and_alerts_with_who_cleared_them(audited):
    now = time.time()
    alert = Alert(
        "canary", "ngram@1", "critical", now - 60, now - 50, 3, "text is wrong", "cleared", now, "ann", "fixed"
    )
    audited.add(
        [
            plan_entry(10, 40, "zero"),
            plan_entry(11, 30, "zero"),
            plan_entry(12, 20, "off"),
            AlertEntry(**alert_row(alert)),
        ]
    )
    app = alone("policy", part="Events")
    assert table_of(app, "Kill switch")[["Kill switch", "Plan"]].values.tolist() == [
        ["zero → off", 12],
        ["off → zero", 10],
    ]
    assert table_of(app, "Tried")[["On", "Stage", "What became of it"]].values.tolist() == [
        ["10% of the replicas", "rolled_back", "it was slower"]
    ]
    (line,) = table_of(app, "Alert").to_dict("records")
    assert (line["Alert"], line["State"], line["Seen"]) == ("canary:ngram@1", "cleared", 3)
    assert line["Cleared by"].startswith("ann, ")
    assert line["Cleared by"].endswith(": fixed")


@pytest.mark.usefixtures("filled")
def test_no_event_is_said_in_words():
    said = texts(alone("policy", part="Events"))
    assert "It was not touched" in said
    assert "No alert was ever raised" in said


@pytest.mark.parametrize("part", ["In force", "Revisions", "Events", "Decisions"])
def test_html_of_a_person_or_a_policy_stays_text(ledger, part):
    ledger.migrate()
    ledger.price()
    ledger.fill(first=EVIL)
    text = OLD.replace("name: json", f'name: "{"a" * 3}"').replace("version: 1\n", f"version: 1\n# {EVIL}\n")
    ledger.add([revision(text, 10, by=EVIL, why=EVIL), revision(OLD, 20), rollout(why=EVIL, sentence=EVIL)])
    app = alone("policy", part=part)
    for element in (*app.markdown, *app.caption, *app.metric, *app.title, *app.header):
        assert "<img" not in str(element.value)
    shown = [*(d.value.to_string(max_colwidth=None) for d in app.dataframe), *(t.value for t in app.text)]
    assert any(EVIL in each for each in shown)

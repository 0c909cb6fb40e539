"""`kadence policy plan`: recorded traffic under another policy, and what that is expected to bring."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from controlplane.controller import Controller
from controlplane.finops.attribution import NS_PER_HOUR
from controlplane.finops.budget import BudgetStatus, fresh, status
from controlplane.finops.spending import Spent
from controlplane.policy import Budget, NamedBudget, parse_policy
from controlplane.policy_cli import policy_app
from controlplane.policy_forecast import moves, spent_over, targets
from controlplane.policy_plan import Brought, percentile
from controlplane.store.engine import open_database
from controlplane.store.journal import SqlJournal
from controlplane.store.recorded import RequestGroup
from controlplane.telemetry import (
    CohortWindow,
    LatencyCell,
    LatencyHistogram,
    ProfileCell,
    Report,
    StepCell,
    StepCount,
)

Make = Callable[..., Any]
AT = 1_790_000_000.0
SINCE = ("--since", "2026-09-01", "--until", "2026-10-01")
PRICES = """
version: 1
prices:
  - {sku: cpu-2core, basis: on_demand, currency: USD, per_hour: 0.36, source: a test, as_of: 2026-09-01,
     effective_from: 2026-01-01}
"""
TEXT = """\
version: 1
cohorts:
  - {name: code, match: {api_key: [ide]}, speculation: {tuner: fixed, ladder: [0, 1, 4], start: 4, fallback: 0}}
  - {name: rest, match: {}, speculation: {tuner: fixed, ladder: [0, 1, 4], start: 1, fallback: 0}}
"""
ACCEPT = 0.8


def seconds_of(k: int) -> float:
    return 0.020 + 0.001 * k


def gain(before: int, after: int) -> float:
    """The true change of tokens per second, from one K to another."""
    rate = [sum(ACCEPT**j for j in range(k + 1)) / seconds_of(k) for k in (before, after)]
    return rate[1] / rate[0] - 1


def serve(url: str, make_window: Make, make_request: Make, text: str = TEXT, seconds: int = 60) -> None:
    """A worker for a minute: two sequences a cohort, each draft token kept with probability ACCEPT."""
    rng, journal, policy = random.Random(1), SqlJournal(open_database(url)), parse_policy(text)
    controller = Controller(policy, journal, epoch=int(AT * 1e9))
    controller.apply_policy(policy, by="kadence", why="start", now=AT)
    profile = tuple(ProfileCell(n, k, 100, seconds_of(k), 0.0) for n in (1, 2, 4) for k in (0, 1, 2, 4))
    for i in range(1, seconds):
        cohorts, latency = [], []
        for cohort in policy.cohorts:
            k = controller.plan.k_for(cohort.name, 2, AT + i)
            tally: dict[int, int] = {}
            for _ in range(40):
                kept = next((j for j in range(k) if rng.random() > ACCEPT), k)
                tally[kept] = tally.get(kept, 0) + 1
            counts = tuple(StepCount(k, kept, False, n) for kept, n in sorted(tally.items()))
            cell = StepCell(1, k, counts, 40 * seconds_of(k))
            tpot = LatencyHistogram().observe(0.012)
            cohorts.append(CohortWindow(cohort.name, (cell,), requests_finished=1, tpot=tpot))
            latency.append(LatencyCell(2, 2 * (k + 1), 20, 20 * seconds_of(k), 4000))
        window = make_window(
            i, tuple(cohorts), started_at=AT + i - 1, latency=tuple(latency), profile=profile if i == 1 else (),
            energy_uj=10_000_000, energy_source="counter",
        )  # fmt: skip
        requests = (
            make_request(f"a{i}", cohort="code", tenant="ide", finished_at=AT + i),
            make_request(f"b{i}", cohort="rest", tenant=None, finished_at=AT + i),
        )
        controller.observe(Report(window, requests))
        controller.tick(AT + i + 0.1)
    journal.close()


@dataclass
class Planner:
    """The command on a ledger of a minute's traffic."""

    url: str
    folder: Path

    def text(self, policy: str, *arguments: str) -> tuple[int, str, str]:
        file, prices = self.folder / "new.yaml", self.folder / "prices.yaml"
        file.write_text(policy)
        prices.write_text(PRICES)
        flags = ["plan", str(file), *SINCE, "--database-url", self.url, "--prices", str(prices), *arguments]
        result = CliRunner().invoke(policy_app, flags)
        return result.exit_code, result.stdout, result.stderr

    def __call__(self, policy: str, *arguments: str) -> dict[str, Any]:
        code, out, err = self.text(policy, "--json", *arguments)
        assert code == 0, (out, err)
        return dict(json.loads(out))

    def cohort(self, policy: str, name: str) -> dict[str, Any]:
        return next(c for c in self(policy)["cohorts"] if c["name"] == name)


@pytest.fixture
def plan(sqlite_ledger_url: str, tmp_path: Path, make_worker_window: Make, make_request_record: Make) -> Planner:
    serve(sqlite_ledger_url, make_worker_window, make_request_record)
    return Planner(sqlite_ledger_url, tmp_path)


def test_the_same_policy_changes_nothing(plan: Planner) -> None:
    said = plan(TEXT)
    assert (said["changes"], said["warnings"]) == ([], [])
    assert [(c["k_before"], c["k_after"]) for c in said["cohorts"]] == [
        ({"4": 1.0}, {"4": 1.0}),
        ({"1": 1.0}, {"1": 1.0}),
    ]
    assert [c["tokens_per_s_change_percent"] for c in said["cohorts"]] == [0.0, 0.0]
    assert said["cohorts"][0]["interval"] == {"low": 0.0, "high": 0.0}
    assert [c["requests"] for c in said["cohorts"]] == [59, 59]


def test_another_k_is_expected_to_bring_what_it_would(plan: Planner) -> None:
    cohort = plan.cohort(TEXT.replace("start: 4", "start: 1"), "code")
    assert (cohort["k_before"], cohort["k_after"]) == ({"4": 1.0}, {"1": 1.0})
    truth = 100 * gain(4, 1)
    assert cohort["tokens_per_s_change_percent"] == pytest.approx(truth, abs=4)
    assert cohort["interval"]["low"] < truth < cohort["interval"]["high"]


def test_money_joules_and_latency_follow_the_speed(plan: Planner) -> None:
    cohort = plan.cohort(TEXT.replace("start: 4", "start: 1"), "code")
    factor = 1 + cohort["tokens_per_s_change_percent"] / 100
    assert float(cohort["cost_per_million_after"]) == pytest.approx(
        float(cohort["cost_per_million_before"]) / factor, rel=1e-4
    )
    assert cohort["j_per_million_after"] == pytest.approx(cohort["j_per_million_before"] / factor)
    assert cohort["tpot_p95_ms"] == pytest.approx(cohort["tpot_p95_ms_before"] / factor)
    bounds = cohort["cost_per_million_interval"]
    assert bounds["low"] < float(cohort["cost_per_million_after"]) < bounds["high"]


def test_what_was_never_measured_has_a_wider_interval(plan: Planner) -> None:
    narrow, wide = (
        plan.cohort(TEXT.replace(f"start: {was}", f"start: {becomes}"), name)["interval"]
        for was, becomes, name in ((4, 1, "code"), (1, 4, "rest"))
    )
    assert wide["high"] - wide["low"] > 2 * (narrow["high"] - narrow["low"])


def test_a_tuner_finds_its_k_from_the_record(plan: Planner) -> None:
    goodput = TEXT.replace("tuner: fixed", "tuner: goodput", 1).replace("start: 4", "start: 1")
    cohort = plan.cohort(goodput, "code")
    assert max(cohort["k_after"], key=cohort["k_after"].get) == "4"


def test_cohorts_that_are_matched_otherwise_say_how_many_requests_move(plan: Planner) -> None:
    speculation = "{tuner: fixed, ladder: [1, 4], start: 4, fallback: 1}"
    said = plan(f"version: 1\ncohorts:\n  - {{name: all, match: {{}}, speculation: {speculation}}}\n")
    (cohort,) = said["cohorts"]
    assert (cohort["requests"], cohort["moved_in"]) == (118, {"code": 59, "rest": 59})
    assert cohort["k_before"] == {"1": 0.5, "4": 0.5}
    assert cohort["cost_per_million_before"] is not None


def test_a_match_that_no_request_meets_is_a_warning(plan: Planner) -> None:
    extra = (
        "  - {name: web, match: {route: /v1/none}, speculation: {tuner: fixed, ladder: [0], start: 0, fallback: 0}}\n"
    )
    said = plan(TEXT.replace("cohorts:\n", f"cohorts:\n{extra}"))
    assert any("no recorded request would be in 'web'" in warning for warning in said["warnings"])


def test_a_range_without_traffic_is_one_warning_and_blames_no_match(plan: Planner) -> None:
    said = plan(TEXT, "--since", "2026-09-02", "--until", "2026-09-03")
    assert [w for w in said["warnings"] if "recorded" in w] == [
        "no request is recorded in this range: nothing can be said of matches; try a longer --since"
    ]


def test_what_cannot_be_known_is_said(plan: Planner) -> None:
    extra = "  - {name: vip, match: {user: ann}, speculation: {tuner: fixed, ladder: [0], start: 0, fallback: 0}}\n"
    said = plan(TEXT.replace("cohorts:\n", f"cohorts:\n{extra}"))
    assert {c["name"]: c["requests_uncertain"] for c in said["cohorts"]} == {"vip": 0, "code": 59, "rest": 59}
    assert sum("cannot be known" in warning for warning in said["warnings"]) == 2


def test_an_slo_that_no_k_meets_is_a_warning(plan: Planner) -> None:
    policy = TEXT.replace("fallback: 0}}", "fallback: 0}, slo: {tpot_p95: 1ms}}", 1).replace("fixed", "goodput", 1)
    assert any("slo.tpot_p95 of 1 ms is met at no K beside 2" in warning for warning in plan(policy)["warnings"])


def test_the_text_reads_like_a_plan(plan: Planner) -> None:
    code, out, _ = plan.text(TEXT.replace("start: 4", "start: 1"))
    lines = out.splitlines()
    assert (code, lines[2], lines[3]) == (0, "~ code: 59 requests", "    speculation.start: 4 -> 1")
    assert any(line.startswith("    K after        1: 100%") for line in lines)
    assert any("USD" in line for line in lines)
    joules = next(line for line in lines if line.endswith(" J"))
    assert re.search(r"per 1M tokens  \d{1,3},\d{3} -> \d{1,3},\d{3} \(", joules)  # 26,774, not 2.677e+04


def test_the_present_policy_can_be_a_file(plan: Planner, tmp_path: Path) -> None:
    old = tmp_path / "old.yaml"
    old.write_text(TEXT.replace("start: 4", "start: 0"))
    assert plan(TEXT, "--against", str(old))["changes"] == ["code: speculation.start: 0 -> 4"]


def test_a_ledger_without_a_policy_names_the_way_out(sqlite_ledger_url: str, tmp_path: Path) -> None:
    code, out, _ = Planner(sqlite_ledger_url, tmp_path).text(TEXT, "--json")
    assert (code, "--against" in json.loads(out)["message"]) == (1, True)


def test_without_step_times_nothing_is_expected_and_that_is_said(plan: Planner) -> None:
    with open_database(plan.url).begin() as connection:
        connection.execute(sa.text("UPDATE window SET profile = '[]'"))
    said = plan(TEXT.replace("start: 4", "start: 1"))
    assert (said["tokens_per_s_change_percent"], said["cohorts"][0]["k_after"]) == (None, {"1": 1.0})
    assert any("no worker's step times" in warning for warning in said["warnings"])


def test_a_kill_switch_is_left_out(plan: Planner) -> None:
    with open_database(plan.url).begin() as connection:
        connection.execute(sa.text("UPDATE tick SET kill_switch = 'zero' WHERE at > :at"), {"at": AT + 50})
    assert any("under a kill switch" in warning for warning in plan(TEXT)["warnings"])


@pytest.mark.parametrize(
    ("spent", "says"),
    [(100, None), (401, "401.00 USD of the budget of 500"), (612, "the budget of 500.00 is exceeded")],
)
def test_a_budget_that_is_nearly_or_quite_spent_is_a_warning(spent: int, says: str | None) -> None:
    line = spent_over(said_of(Spent({0: spent * 10**9 * NS_PER_HOUR}, spent * 10**9 * NS_PER_HOUR)))
    assert (line is None) if says is None else (line is not None and says in line)


def test_an_unpriced_cohort_has_no_budget_warning() -> None:
    assert spent_over(said_of(Spent(unpriced_ns=5, why="no price"))) is None


def said_of(money: Spent) -> BudgetStatus:
    named = NamedBudget("code", "code", None, Budget(Decimal(500), "month", (0.8,), "warn"))
    return status(named, fresh(named, AT), money, AT)


def test_windows_follow_most_of_their_cohorts_requests() -> None:
    old, new = parse_policy(TEXT), parse_policy(TEXT.replace("[ide]", "[web]"))
    groups = [
        RequestGroup("code", "ide", "/v1/completions", "m", 5),
        RequestGroup("rest", None, "/v1/completions", "m", 3),
    ]
    moved = moves(old, new, groups)
    assert targets(moved, ["code", "rest", "gone"], new) == {"code": "rest", "rest": "rest", "gone": "rest"}
    assert (moved.uncertain, moved.share("code", "rest")) == ({"rest": 3}, 1.0)


def test_a_request_is_matched_by_the_model_that_was_asked_for_however_its_weights_were_held() -> None:
    speculation = "speculation: {tuner: fixed, ladder: [0], start: 0, fallback: 0}"
    rest = f"  - {{name: rest, match: {{}}, {speculation}}}\n"
    old = parse_policy(f"version: 1\ncohorts:\n{rest}")
    new = parse_policy(f"version: 1\ncohorts:\n  - {{name: small, match: {{model: [m]}}, {speculation}}}\n{rest}")
    moved = moves(old, new, [RequestGroup("rest", None, "/v1/completions", "m:int8", 5)])
    assert moved.requests == {"small": 5}


def test_nothing_seen_is_no_change() -> None:
    assert Brought().change is None
    assert percentile(LatencyHistogram(), 0.95) is None

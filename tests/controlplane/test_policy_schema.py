"""The JSON Schema for editors: it takes what the parser takes, and refuses what a schema can."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from controlplane.policy import PolicyError, parse_policy
from controlplane.policy.schema import policy_schema

ROOT = Path(__file__).parents[2]
SCHEMA = policy_schema()
VALIDATOR = Draft202012Validator(SCHEMA)
FULL: dict[str, Any] = yaml.safe_load("""
version: 1
cohorts:
  - name: code-copilot
    match: {api_key: [team-ide, team-web], route: "/v1/*", headers: {X-App: [ide, "web*"]}, metadata: {tier: 1}}
    speculation: {tuner: threshold, acceptance_floor: 62.5%, ladder: [0, 2, 4], start: 4, fallback: 2}
    slo: {tpot_p95: 40ms, ttft_p95: 1.5s}
    guard: {tolerance: 3%, hold: 5s, min_samples: 20, probe_every: 2m}
    budget: {usd: 500.50, period: month, soft: 75%, on_exceeded: reject}
  - name: chat
    match: {service_tier: [flex, default], model: "smol*", user: alice}
    speculation: {tuner: goodput, objective: latency, slots: ragged, ladder: [0, 2, 4], start: 4, fallback: 2}
    slo: {tpot_p95: 40ms}
  - name: default
    match: {}
    speculation: {tuner: fixed, ladder: [0, 2], start: 0, fallback: 0}
budgets:
  - {name: ide, tenant: team-ide, usd: 5, period: week, timezone: Europe/Berlin, soft: [50%, 80%], on_exceeded: reject}
  - {name: 7, cohort: chat, tenant: 7, usd: "9.5", period: day, notify: "https://example.com/hook", secret_env: HOOK}
experiment: {holdout: 5%, unit: window, window: 15m, burn_in: 5m}
""")


def changed(path: str, value: Any) -> dict[str, Any]:
    """FULL with another value at `path`, such as `cohorts.0.guard.hold`; ... removes it."""
    document: Any = copy.deepcopy(FULL)
    *way, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    at = document
    for step in way:
        at = at[step]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return dict(document)


def parses(document: object) -> bool:
    try:
        parse_policy(yaml.safe_dump(document, sort_keys=False))
    except PolicyError:
        return False
    return True


def documented() -> list[str]:
    fences = re.findall(r"```yaml\n(version: 1\n.*?)```", (ROOT / "docs" / "policy.md").read_text(), re.DOTALL)
    return [*fences, (ROOT / "policies.yaml").read_text()]


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("text", documented())
def test_every_documented_policy_is_valid(text: str) -> None:
    VALIDATOR.validate(yaml.safe_load(text))


def test_the_full_policy_is_valid_and_parses() -> None:
    VALIDATOR.validate(FULL)
    assert parses(FULL)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("version", 2),
        ("version", ...),
        ("cohorts", []),
        ("cohorts", {}),
        ("cohorts.0", "default"),
        ("cohort", []),
        ("cohorts.0.name", "a b"),
        ("cohorts.0.hold", "10s"),
        ("cohorts.0.match", ...),
        ("cohorts.0.match.rout", "/v1"),
        ("cohorts.0.match.api_key", []),
        ("cohorts.0.match.headers", {"a b": "x"}),
        ("cohorts.1.match.service_tier", "gold"),
        ("cohorts.0.speculation.tuner", "goodputs"),
        ("cohorts.0.speculation.ladder", []),
        ("cohorts.0.speculation.ladder", [0, 17]),
        ("cohorts.0.speculation.ladder", [0, 2, 4, 4]),
        ("cohorts.0.speculation.start", ...),
        ("cohorts.0.speculation.objective", "cost"),
        ("cohorts.0.speculation.slots", "ragged"),
        ("cohorts.1.speculation.acceptance_floor", "50%"),
        ("cohorts.1.speculation.objective", "speed"),
        ("cohorts.1.slo", ...),
        ("cohorts.1.slo.tpot_p95", ...),
        ("cohorts.0.slo.tpot_p95", 40),
        ("cohorts.0.guard", []),
        ("cohorts.0.guard.hold", 10),
        ("cohorts.0.guard.hold", "-1s"),
        ("cohorts.0.guard.tolerance", 0.02),
        ("cohorts.0.guard.min_samples", 0),
        ("cohorts.0.guard.min_samples", "many"),
        ("cohorts.0.guard.probe_every", None),
        ("cohorts.0.budget.usd", -5),
        ("cohorts.0.budget.period", "year"),
        ("cohorts.0.budget.period", ...),
        ("budgets", {}),
        ("budgets.0.name", ...),
        ("budgets.0.tenant", ...),
        ("budgets.0.usd", 0),
        ("budgets.0.soft", []),
        ("budgets.0.soft", [50]),
        ("budgets.1.notify", "ftp://example.com"),
        ("budgets.1.secret_env", "s3cr3t!"),
        ("experiment.holdout", 5),
        ("experiment.window", ...),
    ],
)
def test_what_a_schema_can_refuse_both_refuse(path: str, value: Any) -> None:
    document = changed(path, value)
    assert not VALIDATOR.is_valid(document)
    assert not parses(document)


PATHS = [
    "version", "cohorts.0.name", "cohorts.0.match.api_key", "cohorts.0.match.route", "cohorts.0.match.metadata",
    "cohorts.0.match.headers", "cohorts.1.match.service_tier", "cohorts.0.speculation.tuner",
    "cohorts.1.speculation.tuner", "cohorts.0.speculation.ladder", "cohorts.0.speculation.start",
    "cohorts.1.speculation.objective", "cohorts.1.speculation.slots", "cohorts.0.slo.tpot_p95", "cohorts.1.slo",
    "cohorts.0.guard.hold", "cohorts.0.guard.tolerance", "cohorts.0.guard.min_samples", "cohorts.0.budget.usd",
    "cohorts.0.budget.soft", "budgets.0.soft", "budgets.0.tenant", "budgets.1.cohort",
    "budgets.1.notify", "experiment.burn_in", "experiment.unit",
]  # fmt: skip
VALUES = [
    ..., None, 0, 1, 2, 4, 12, 0.5, 1e-3, True, "a", "7", "12.50", "+3", "5s", "1.5m", "90ms", "2d", "3 %", "100%", [],
    {}, ["0", "4"], [0, 2, 4], ["a", 1, True], [4, 2, 0], {"k": "v"}, {"tpot_p95": "40ms"}, "goodput", "fixed",
    "threshold", "cost", "latency", "uniform", "flex", "replica",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_the_schema_never_refuses_what_the_parser_takes(path: str) -> None:
    refused = [value for value in VALUES if not VALIDATOR.is_valid(changed(path, value))]
    assert [value for value in refused if parses(changed(path, value))] == []


def test_the_shipped_schema_is_this_one() -> None:
    assert json.loads((ROOT / "docs" / "policy.schema.json").read_text()) == SCHEMA

"""A pasted policy: checked and planned by the commands' own functions, on a click. Nothing here applies anything."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from controlplane.policy import Policy, PolicyError, PolicyProblem, parse_policy
from controlplane.policy_cli.planned import Planned, planned
from controlplane.store.policies import policy_in_force
from controlplane.store.time_range import TimeRange, parse_duration
from dashboard.ledger import Ledger

SOURCE = "the pasted policy"
FILE = "policies.yaml"
SPANS = ("15m", "1h", "6h", "24h")
"""Stretches of recorded traffic to plan on: each recorded second is gone through."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of one click on `text`. problems: all that is wrong with it; failed: why it could not be planned."""

    text: str
    span: str | None = None
    policy: Policy | None = None
    problems: tuple[PolicyProblem, ...] = ()
    planned: Planned | None = None
    failed: str | None = None


def check(text: str) -> Trial:
    """As `kadence policy check` does."""
    try:
        return Trial(text, policy=parse_policy(text, SOURCE))
    except PolicyError as error:
        return Trial(text, problems=error.problems)


def plan(ledger: Ledger, text: str, span: str) -> Trial:
    """As `kadence policy plan --since <span>` does, against the policy in force."""
    checked = check(text)
    if checked.policy is None:
        return checked
    range = TimeRange(ledger.now - parse_duration(span), ledger.now)
    try:
        old = policy_in_force(ledger.engine)
    except ValueError as error:
        return Trial(text, span, checked.policy, failed=f"There is nothing to compare with: {error}.")
    found = planned(ledger.engine, range, checked.policy, old, ledger.sheet)
    return Trial(text, span, checked.policy, planned=found)


def commands(trial: Trial) -> str:
    """What to type to do the same, and to put it in force: once it is saved as FILE."""
    lines = [f"kadence policy check {FILE}"]
    if trial.policy is not None:
        lines.append(f"kadence policy plan {FILE} --since {trial.span or '24h'}")
        lines.append(shlex.join(["kadence", "policy", "apply", FILE, "--stage", "10%", "--why", "why it changes"]))
        lines.append(shlex.join(["kadence", "policy", "apply", FILE, "--why", "why it changes"]))
    return "\n".join(lines)

"""What the policy page reads: what the chosen part of it needs, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from controlplane.alerts import Alert
from controlplane.policy import Policy, PolicyError, parse_policy
from controlplane.store import policies
from controlplane.store.alerts import alert_log
from controlplane.store.engine import Database
from controlplane.store.kill_switch import SwitchChange, kill_switch_log
from controlplane.store.policies import PolicyEntry, RolloutEntry, policy_history, rollouts
from controlplane.store.queries import DecisionRow, PlanRow, PolicyRow, decision_log, latest_plan, policy_log
from dashboard.ledger import Ledger

Part = Literal["In force", "Revisions", "Try one", "Decisions", "Events"]
PARTS: tuple[Part, ...] = get_args(Part)
DECISION_LIMIT = 500
REVISION_LIMIT = 50


class Asked(NamedTuple):
    """part: of the page. held: with decisions that kept K. reasons: none = all of them. text: in their sentence."""

    part: Part
    held: bool = False
    reasons: tuple[str, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class PolicyReading:
    """asked: what was read for. applied, tried: policies with their text, newest first. problem: why the policy in
    force cannot be shown. Parts that were not asked for are empty.
    """

    asked: Asked
    applied: Sequence[PolicyRow] = ()
    policy: Policy | None = None
    problem: str | None = None
    plan: PlanRow | None = None
    history: Sequence[PolicyEntry] = ()
    tried: Sequence[RolloutEntry] = ()
    decisions: Sequence[DecisionRow] = ()
    switches: Sequence[SwitchChange] = ()
    alerts: Sequence[Alert] = ()

    @property
    def texts(self) -> dict[str, str]:
        """Revision -> text of every policy on record, newest first."""
        found: dict[str, str] = {}
        dated = [(row.applied_at, row.revision, row.text) for row in self.applied]
        dated += [(row.started_at, row.revision, row.text) for row in self.tried]
        for _, revision, text in sorted(dated, reverse=True):
            found.setdefault(revision, text)
        return found


def read_policy(ledger: Ledger, asked: Asked) -> PolicyReading:
    engine = ledger.engine
    if asked.part == "Decisions":
        key = ("decisions", ledger.range, ledger.cohort, asked)
        return PolicyReading(
            asked,
            decisions=ledger.cached(
                key,
                lambda: decision_log(
                    engine,
                    ledger.range,
                    ledger.cohort,
                    DECISION_LIMIT,
                    changes_only=not asked.held,
                    reasons=asked.reasons,
                    text=asked.text,
                ),
            ),
        )
    if asked.part == "Events":
        return PolicyReading(
            asked,
            tried=rollouts(engine, REVISION_LIMIT),
            switches=ledger.cached(("switches", ledger.range), lambda: kill_switch_log(engine, ledger.range)),
            alerts=alert_log(engine),
        )
    applied = policy_log(engine, limit=1 if asked.part != "Revisions" else REVISION_LIMIT)
    if asked.part == "Revisions":
        history = policy_history(engine, REVISION_LIMIT)
        return PolicyReading(asked, applied, history=history, tried=rollouts(engine, REVISION_LIMIT))
    policy, problem = in_force(applied)
    return PolicyReading(asked, applied, policy, problem, latest_plan(engine))


def policy_in_force(engine: Database) -> Policy | None:
    """The policy that was applied last; None where none is on record, or this release cannot read it."""
    try:
        return policies.policy_in_force(engine)
    except ValueError:
        return None


def in_force(applied: Sequence[PolicyRow]) -> tuple[Policy | None, str | None]:
    """The newest of them, or why it cannot be shown."""
    if not applied:
        return None, "No policy was put in force on this ledger yet: `kadence up` does it, with the one it is given."
    try:
        return parse_policy(applied[0].text, source=f"revision {applied[0].revision}"), None
    except PolicyError as error:
        return None, f"The policy on record is not one of this release: {str(error).splitlines()[0]}"

"""What an order takes away is the K that a batch may have drafted, not the one that the price alone would say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.decision.decide import DecisionState, Reason
from controlplane.decision.plan import Plan
from controlplane.ordered_decisions import stopped_or_freed, switched
from controlplane.policy import Policy, parse_policy
from controlplane.telemetry import LOAD_BUCKETS, MAX_K, PRICE_LOADS

NOW, DRAFTER = 1000.0, "eagle@1"


@pytest.fixture
def policy() -> Policy:
    rule = "{tuner: goodput, slots: ragged, ladder: [0, 4], start: 4, fallback: 0}"
    return parse_policy(f"version: 1\ncohorts:\n  - {{name: code, match: {{}}, speculation: {rule}}}\n")


@pytest.fixture
def plan() -> Plan:
    """In the batch that is expected nothing pays; another batch may draft four."""
    loads = len(PRICE_LOADS)
    return Plan(
        epoch=1, version=1, issued_at=NOW, expires_at=NOW + 10, k={"code": (4,) * len(LOAD_BUCKETS)},
        fallback={"code": 0}, policy_revision="", survival={"code": (0.9,) * MAX_K}, price=(1.0,) * loads,
        depth=(0,) * loads,
    )  # fmt: skip


def test_a_drafter_that_is_blocked_is_said_to_have_drafted_up_to_its_rung(policy: Policy, plan: Plan) -> None:
    blocked = replace(plan, blocked_drafters=(DRAFTER,))
    state = DecisionState.start(policy)
    (decision,) = stopped_or_freed(plan, blocked, DRAFTER, state, policy, "wrong text", NOW)
    assert (decision.old_k, decision.new_k, decision.reason) == (4, 0, Reason.CANARY)


def test_a_kill_switch_is_said_to_end_drafts_up_to_the_rung(policy: Policy, plan: Plan) -> None:
    state = DecisionState.start(policy)
    (decision,) = switched(plan, replace(plan, kill_switch="zero"), state, policy, Reason.KILL_SWITCH, "ops", NOW)
    assert (decision.old_k, decision.new_k) == (4, 0)

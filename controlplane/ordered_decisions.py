"""Changes of K that no tick decided: a policy, a kill switch, an experiment or an alert ordered them.

K is the one up to which a batch may draft, whatever its positions are weighed as: that is what an order takes away.
They are stated as decisions are, so that the journal tells of every change of K and why it came.
"""

from __future__ import annotations

from collections.abc import Iterator

from controlplane.decision.decide import Decision, DecisionState, Reason
from controlplane.decision.plan import Plan
from controlplane.policy import Policy
from controlplane.telemetry import LOAD_BUCKETS


def moved(old: Plan, state: DecisionState, policy: Policy, sentence: str, now: float) -> list[Decision]:
    """What a policy moves that came into force since the plan `old`."""
    new_k = state.k_by_load()
    return [
        _ordered(state, policy, name, bucket, old_k, new_k[name][bucket], Reason.POLICY_APPLIED, sentence, now)
        for name, old_by_load in old.k.items()
        if name in new_k
        for bucket, old_k in enumerate(old_by_load)
        if old_k != new_k[name][bucket]
    ]


def switched(
    old: Plan, new: Plan, state: DecisionState, policy: Policy, reason: Reason, sentence: str, now: float
) -> list[Decision]:
    """Every cohort's K under either plan, at the loads that it was ever decided at (the first, where at none): also
    where an order leaves it as it is.
    """
    return [
        _ordered(
            state,
            policy,
            cohort.name,
            bucket,
            old.most_k_for(cohort.name, running, old.issued_at),
            new.most_k_for(cohort.name, running, now),
            reason,
            sentence,
            now,
        )
        for cohort in policy.cohorts
        for bucket, running in _decided_buckets(state, cohort.name)
    ]


def stopped_or_freed(
    old: Plan, new: Plan, drafter: str, state: DecisionState, policy: Policy, sentence: str, now: float
) -> Iterator[Decision]:
    """For each cohort, the change of K under `drafter` at the lowest load at which there is one."""
    for cohort in policy.cohorts:
        for bucket, running in enumerate(LOAD_BUCKETS):
            before, after = (
                plan.most_k_for(cohort.name, running, old.issued_at, drafter=drafter) for plan in (old, new)
            )
            if before != after:
                yield _ordered(state, policy, cohort.name, bucket, before, after, Reason.CANARY, sentence, now)
                break


def _decided_buckets(state: DecisionState, cohort: str) -> list[tuple[int, int]]:
    """(index, bound) of the load buckets that the cohort was ever decided at, or the first."""
    decided = state.cells.k[state.table.names.index(cohort)] >= 0
    return [(i, bound) for i, bound in enumerate(LOAD_BUCKETS) if decided[i]] or [(0, LOAD_BUCKETS[0])]


def _ordered(
    state: DecisionState,
    policy: Policy,
    cohort: str,
    bucket: int,
    old_k: int,
    new_k: int,
    reason: Reason,
    sentence: str,
    now: float,
) -> Decision:
    estimate, c = state.estimate, state.table.names.index(cohort)
    return Decision(
        cohort=cohort,
        load_bucket=bucket,
        old_k=old_k,
        new_k=new_k,
        reason=reason,
        sentence=f"{cohort} {old_k} -> {new_k}: {sentence}",
        samples=round(float(estimate.samples[c])),
        accept_at=estimate.hazards().accept_at(c),
        at=now,
        plan_version=0,
        policy_revision=policy.revision,
    )

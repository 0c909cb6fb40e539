"""The policies under which benchmarks have K chosen: the shipped ladder and guard, the same rule for every cohort."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.policy import Policy, parse_policy

LADDER = (0, 1, 2, 4, 8)
ADAPTIVE = {"adaptive": "tuner: goodput, slots: ragged", "threshold": "tuner: threshold, acceptance_floor: 50%"}


def policy_of(cohorts: Sequence[str], speculation: str) -> Policy:
    """Every cohort under the same rule, the guard as shipped."""
    lines = ["version: 1", "cohorts:"]
    for i, name in enumerate(cohorts):
        match = "{}" if i == len(cohorts) - 1 else f"{{headers: {{x-kadence-cohort: {name}}}}}"
        rule = f"{speculation}, ladder: {list(LADDER)}, start: 2, fallback: 2"
        lines += [f"  - name: {name}", f"    match: {match}", f"    speculation: {{{rule}}}"]
    return parse_policy("\n".join(lines))

"""Which cohort a recorded request would be in under another policy, as far as what was recorded can tell.

The ledger keeps a request's cohort, key name (where the policy named it), route and model, but neither headers, `user`,
`metadata` nor `service_tier`: those may be personal. What it was matched by still says something: a request in a cohort
satisfies that cohort's match, and none of those before it.
"""

from __future__ import annotations

import glob
from dataclasses import dataclass, replace

from controlplane.policy.model import Match, Policy
from controlplane.policy.overlap import covers, overlaps


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the ledger knows of a request. tenant: the name of its key; None where it had none that the policy named."""

    cohort: str
    tenant: str | None
    route: str
    model: str


def reassign(old: Policy, new: Policy, request: Recorded) -> tuple[str, ...]:
    """The cohorts of `new` that the request could be in, by order; one name where that is certain."""
    possible = []
    for cohort in new.cohorts:
        verdict = _would_match(old, request, cohort.match)
        if verdict is not False:
            possible.append(cohort.name)
        if verdict:
            break
    return tuple(possible)


def _would_match(old: Policy, request: Recorded, match: Match) -> bool | None:
    """Whether the request matches; None where that cannot be known."""
    facts = Match(route=(glob.escape(request.route),), model=(glob.escape(request.model),))
    if request.tenant is not None:
        facts = replace(facts, api_key=(request.tenant,))
    names = [cohort.name for cohort in old.cohorts]
    at = names.index(request.cohort) if request.cohort in names else None
    if at is not None:
        was = old.cohorts[at].match
        facts = replace(facts, headers=was.headers, user=was.user, metadata=was.metadata, service_tier=was.service_tier)
    if match.api_key and request.tenant is None and old.key_names >= set(match.api_key):
        return False
    if not overlaps(match, facts):
        return False
    if covers(match, facts):
        return True
    if any(covers(earlier.match, match) for earlier in old.cohorts[: at or 0]):
        return False
    return None

"""Which cohort a request belongs to: decided once from its attributes, then carried by the sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from controlplane.policy import CohortPolicy, Match, Policy


@dataclass(frozen=True, slots=True)
class RequestAttributes:
    """What a policy can tell requests apart by. api_key is the key's name; header names are in lower case.

    bound_to: the cohort that the key is bound to, which goes before every match; None where it is bound to none.
    """

    api_key: str | None = None
    route: str = ""
    model: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    service_tier: str | None = None
    bound_to: str | None = None


def match_cohort(policy: Policy, attributes: RequestAttributes) -> CohortPolicy:
    """The cohort that the key is bound to, where the policy has it; else the first that matches, and a parsed policy
    always has one. Raises LookupError for a hand-made one without.
    """
    for cohort in policy.cohorts:
        if cohort.name == attributes.bound_to:
            return cohort
    for cohort in policy.cohorts:
        if matches(cohort.match, attributes):
            return cohort
    raise LookupError("no cohort matches; the last cohort of a policy must have `match: {}`")


def matches(match: Match, attributes: RequestAttributes) -> bool:
    """Whether every field that `match` sets allows the request's value; an absent value is allowed by no pattern."""
    return (
        (not match.api_key or attributes.api_key in match.api_key)
        and (not match.service_tier or attributes.service_tier in match.service_tier)
        and _allowed(match.route, attributes.route)
        and _allowed(match.model, attributes.model)
        and _allowed(match.user, attributes.user)
        and all(_allowed(patterns, attributes.headers.get(name)) for name, patterns in match.headers.items())
        and all(_allowed(patterns, attributes.metadata.get(name)) for name, patterns in match.metadata.items())
    )


def _allowed(patterns: tuple[str, ...], value: str | None) -> bool:
    return not patterns or (value is not None and any(fnmatchcase(value, pattern) for pattern in patterns))

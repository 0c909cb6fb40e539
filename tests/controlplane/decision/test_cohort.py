"""Matching a request to its cohort."""

import pytest

from controlplane.decision.cohort import RequestAttributes, match_cohort, matches
from controlplane.policy import Match, Policy, parse_policy

POLICY = parse_policy("""
version: 1
cohorts:
  - {name: ide, match: {api_key: [team-ide]}, speculation: {tuner: fixed, ladder: [0, 2], start: 2, fallback: 0}}
  - {name: json, match: {headers: {X-Kadence-Cohort: json}},
     speculation: {tuner: fixed, ladder: [0, 2], start: 2, fallback: 0}}
  - {name: default, match: {}, speculation: {tuner: fixed, ladder: [0], start: 0, fallback: 0}}
""")


@pytest.mark.parametrize(
    ("attributes", "cohort"),
    [
        (RequestAttributes(api_key="team-ide"), "ide"),
        (RequestAttributes(api_key="team-web"), "default"),
        (RequestAttributes(), "default"),
        (RequestAttributes(headers={"x-kadence-cohort": "json"}), "json"),
        (RequestAttributes(headers={"x-kadence-cohort": "ide"}), "default"),
        (RequestAttributes(api_key="team-ide", headers={"x-kadence-cohort": "json"}), "ide"),
        (RequestAttributes(api_key="team-ide", bound_to="json"), "json"),
        (RequestAttributes(headers={"x-kadence-cohort": "json"}, bound_to="ide"), "ide"),
        (RequestAttributes(headers={"x-kadence-cohort": "json"}, bound_to="of an older policy"), "json"),
    ],
)
def test_the_first_matching_cohort_takes_the_request(attributes: RequestAttributes, cohort: str) -> None:
    assert match_cohort(POLICY, attributes).name == cohort


@pytest.mark.parametrize(
    ("match", "attributes", "expected"),
    [
        (Match(route=("/v1/*",)), RequestAttributes(route="/v1/completions"), True),
        (Match(route=("/v1/chat/*",)), RequestAttributes(route="/v1/completions"), False),
        (Match(route=("/V1/*",)), RequestAttributes(route="/v1/completions"), False),
        (Match(model=("smollm2-*", "qwen*")), RequestAttributes(model="qwen3"), True),
        (Match(user=("*",)), RequestAttributes(user=None), False),
        (Match(user=("*",)), RequestAttributes(user=""), True),
        (Match(api_key=("team-*",)), RequestAttributes(api_key="team-ide"), False),
        (Match(metadata={"tier": ("gold", "silver")}), RequestAttributes(metadata={"tier": "silver"}), True),
        (Match(metadata={"tier": ("gold",), "app": ("x",)}), RequestAttributes(metadata={"tier": "gold"}), False),
        (Match(service_tier=("flex",)), RequestAttributes(service_tier="flex"), True),
        (Match(service_tier=("flex",)), RequestAttributes(service_tier=None), False),
    ],
)
def test_every_field_that_is_set_must_allow_the_request(
    match: Match, attributes: RequestAttributes, expected: bool
) -> None:
    assert matches(match, attributes) is expected


def test_a_policy_without_a_last_resort_says_so() -> None:
    with pytest.raises(LookupError, match="no cohort matches"):
        match_cohort(Policy(1, POLICY.cohorts[:1], None, "", ""), RequestAttributes())

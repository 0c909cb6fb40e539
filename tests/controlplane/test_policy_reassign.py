"""Where recorded requests would go under another policy: certain where the record can tell, and never wrongly so."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.decision.cohort import RequestAttributes, match_cohort
from controlplane.policy import Policy, parse_policy
from controlplane.policy.reassign import Recorded, reassign

SPECULATION = "speculation: {tuner: fixed, ladder: [0, 2], start: 2, fallback: 0}"


def policy(**matches: str) -> Policy:
    cohorts = "".join(f"  - {{name: {name}, match: {match}, {SPECULATION}}}\n" for name, match in matches.items())
    return parse_policy(f"version: 1\ncohorts:\n{cohorts}")


OLD = policy(code="{api_key: [ide]}", flagged="{headers: {x-a: b}}", default="{}")


def recorded(cohort: str, tenant: str | None = None, route: str = "/v1/completions") -> Recorded:
    return Recorded(cohort, tenant, route, "smol")


@pytest.mark.parametrize(
    ("new", "request_", "expected"),
    [
        (OLD, recorded("code", "ide"), ("code",)),
        (OLD, recorded("flagged"), ("flagged",)),
        (OLD, recorded("default"), ("default",)),
        (policy(all="{}"), recorded("flagged"), ("all",)),
        (policy(completions="{route: '*/completions'}", rest="{}"), recorded("default"), ("completions",)),
        (policy(chat="{route: '*/chat/*'}", rest="{}"), recorded("default"), ("rest",)),
        (policy(b="{headers: {x-a: b}}", rest="{}"), recorded("flagged"), ("b",)),
        (policy(b="{headers: {x-a: b}}", rest="{}"), recorded("default"), ("rest",)),
        (policy(c="{headers: {x-a: c}}", rest="{}"), recorded("flagged"), ("rest",)),
        (policy(b="{headers: {x-a: b}}", rest="{}"), recorded("code", "ide"), ("b", "rest")),
        (policy(c="{headers: {x-a: c}}", rest="{}"), recorded("default"), ("c", "rest")),
        (policy(u="{user: ann}", rest="{}"), recorded("default"), ("u", "rest")),
        (policy(key="{api_key: [ide]}", rest="{}"), recorded("default"), ("rest",)),
        (policy(key="{api_key: [web]}", rest="{}"), recorded("default"), ("key", "rest")),
        (policy(key="{api_key: [web]}", rest="{}"), recorded("code", "ide"), ("rest",)),
        (policy(code="{api_key: [ide]}", rest="{}"), recorded("of-an-older-policy"), ("rest",)),
    ],
)
def test_a_recorded_request_goes_where_its_record_says(
    new: Policy, request_: Recorded, expected: tuple[str, ...]
) -> None:
    assert reassign(OLD, new, request_) == expected


MATCHES = st.sampled_from(
    ["{api_key: [ide]}", "{api_key: [web]}", "{headers: {x-a: b}}", "{headers: {x-a: '*'}}", "{user: ann}",
     "{route: '*/chat/*'}", "{route: '*/completions', user: 'a*'}", "{api_key: [ide], headers: {x-a: [b, c]}}",
     "{service_tier: [flex]}", "{metadata: {tier: gold}}"]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    st.lists(MATCHES, min_size=1, max_size=3, unique=True), st.lists(MATCHES, min_size=1, max_size=3, unique=True),
    st.sampled_from([None, "ide", "web", "other"]), st.sampled_from(["/v1/chat/completions", "/v1/completions"]),
    st.sampled_from([None, "b", "c"]), st.sampled_from([None, "ann", "abe", "zoe"]), st.sampled_from([None, "flex"]),
)  # fmt: skip
def test_the_true_cohort_is_always_among_the_possible_ones(
    old: list[str], new: list[str], key: str | None, route: str, header: str | None, user: str | None, tier: str | None
) -> None:
    try:
        before, after = (
            policy(**{f"c{i}": match for i, match in enumerate(each)}, default="{}") for each in (old, new)
        )
    except ValueError:  # one of them can never be reached
        return
    seen_key = key if any(key in cohort.match.api_key for cohort in before.cohorts) else None
    headers = {"x-a": header} if header else {}
    request = RequestAttributes(seen_key, route, "smol", headers, user, {}, tier)
    record = Recorded(match_cohort(before, request).name, seen_key, route, "smol")
    new_key = key if any(key in cohort.match.api_key for cohort in after.cohorts) else None
    truth = match_cohort(after, RequestAttributes(new_key, route, "smol", headers, user, {}, tier)).name
    assert truth in reassign(before, after, record)

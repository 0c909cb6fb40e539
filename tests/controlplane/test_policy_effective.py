"""What a policy comes to, where each value comes from, and what differs between two."""

from __future__ import annotations

import pytest

from controlplane.policy import Policy, parse_policy
from controlplane.policy.effective import differences, policy_view, settings_of

TEXT = """\
version: 1
cohorts:
  - name: code
    match: {api_key: [a]}
    speculation: {tuner: goodput, ladder: [0, 2], start: 2, fallback: 0, slots: ragged}
    guard:
      hold: 5s
  - name: default
    match: {}
    speculation: {tuner: threshold, ladder: [0, 2], start: 2, fallback: 0}
"""


def changed(old: str, new: str) -> Policy:
    assert old in TEXT
    return parse_policy(TEXT.replace(old, new))


def test_a_given_value_has_its_line_and_a_default_has_none() -> None:
    origin = policy_view(parse_policy(TEXT))["cohorts"][0]["origin"]
    assert origin["guard.hold_s"] == {"from": "given", "line": 7}
    assert origin["guard.min_samples"] == {"from": "default", "line": None}
    assert origin["speculation.slots"] == {"from": "given", "line": 5}


def test_every_value_of_a_cohort_has_an_origin() -> None:
    for cohort in policy_view(parse_policy(TEXT))["cohorts"]:
        shown = {
            f"{s}.{f}" for s, fields in cohort.items() if s != "origin" and isinstance(fields, dict) for f in fields
        }
        assert shown == set(cohort["origin"])


def test_a_field_that_the_tuner_does_not_use_is_none() -> None:
    code, default = policy_view(parse_policy(TEXT))["cohorts"]
    assert (code["speculation"]["acceptance_floor"], code["speculation"]["slots"]) == (None, "ragged")
    assert (default["speculation"]["acceptance_floor"], default["speculation"]["slots"]) == (0.5, None)


def test_one_cohort_can_be_asked_for() -> None:
    assert [c["name"] for c in policy_view(parse_policy(TEXT), "default")["cohorts"]] == ["default"]
    with pytest.raises(KeyError):
        policy_view(parse_policy(TEXT), "nobody")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("hold: 5s", "hold: 7s", ["code: guard.hold_s: 5 -> 7"]),
        ("hold: 5s", "hold: 10s", ["code: guard.hold_s: 5 -> 10"]),
        ("api_key: [a]", "api_key: [a, b]", ["code: match.api_key: [a] -> [a, b]"]),
        ("    guard:\n      hold: 5s\n", "    guard: {hold: 5s}\n", []),
        ("hold: 5s", "hold: 5s  # as before", []),
        ("hold: 5s", "hold: 5s\n    budget: {usd: 5, period: day}", [
            "code: budget.usd: none -> 5", "code: budget.period: none -> day", "code: budget.timezone: none -> UTC",
            "code: budget.soft: none -> [0.8]", "code: budget.on_exceeded: none -> warn",
        ]),
        ("name: code", "name: ide", ["code: cohort removed", "ide: cohort added"]),
    ],
)  # fmt: skip
def test_differences_are_of_settings_not_of_spelling(old: str, new: str, says: list[str]) -> None:
    assert differences(parse_policy(TEXT), changed(old, new)) == says


def test_the_order_of_cohorts_is_a_difference() -> None:
    first = TEXT.replace("match: {api_key: [a]}", "match: {user: b}").replace("name: code", "name: other")
    both = TEXT.replace("cohorts:\n", "cohorts:\n" + "".join(first.splitlines(keepends=True)[2:7]))
    swapped = (
        both.replace("name: code", "name: x").replace("name: other", "name: code").replace("name: x", "name: other")
    )
    assert (
        differences(parse_policy(both), parse_policy(swapped))[-1]
        == "order of cohorts: other, code, default -> code, other, default"
    )


def test_settings_leave_out_who_is_in_the_cohort() -> None:
    one, other = parse_policy(TEXT).cohorts[0], changed("api_key: [a]", "api_key: [b]").cohorts[0]
    assert settings_of(one) == settings_of(other)


OF_A_TENANT = "budgets:\n  - {name: ide, tenant: team-ide, usd: 5, period: day, soft: [50%, 80%]}\n"


def test_a_budget_of_the_list_is_shown_with_the_origin_of_each_value() -> None:
    (budget,) = policy_view(parse_policy(TEXT + OF_A_TENANT))["budgets"]
    assert (budget["tenant"], budget["usd"], budget["soft"], budget["timezone"]) == ("team-ide", "5", [0.5, 0.8], "UTC")
    assert budget["origin"]["usd"] == {"from": "given", "line": 12}
    assert budget["origin"]["timezone"] == {"from": "default", "line": None}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("usd: 5", "usd: 7", ["budget ide: usd: 5 -> 7"]),
        ("name: ide", "name: team", ["budget ide: removed", "budget team: added"]),
    ],
)
def test_another_budget_is_a_difference(old: str, new: str, says: list[str]) -> None:
    assert differences(parse_policy(TEXT + OF_A_TENANT), parse_policy(TEXT + OF_A_TENANT.replace(old, new))) == says

"""Budgets in a policy file: what is read, whose money it is, and what is refused with which words."""

from __future__ import annotations

from decimal import Decimal

import pytest

from controlplane.policy import Budget, NamedBudget, PolicyError, parse_policy

POLICY = """\
version: 1
cohorts:
  - name: code
    match: {api_key: [team-ide]}
    speculation: {tuner: goodput, ladder: [0, 2], start: 2, fallback: 0}
    budget: {usd: 500, period: month, on_exceeded: dial}
  - name: default
    match: {}
    speculation: {tuner: threshold, ladder: [0, 2], start: 2, fallback: 0}
budgets:
  - {name: web, tenant: team-web, usd: 7.50, period: week, timezone: Europe/Berlin, soft: [50%, 80%]}
"""


def with_list(*budgets: str) -> str:
    return POLICY.partition("budgets:")[0] + "budgets:\n" + "".join(f"  - {each}\n" for each in budgets)


def only_problem(text: str) -> tuple[str, str]:
    with pytest.raises(PolicyError) as caught:
        parse_policy(text)
    (problem,) = caught.value.problems
    return problem.field, problem.message


def test_a_cohorts_own_budget_is_called_like_it_and_comes_before_the_list() -> None:
    own, listed = parse_policy(POLICY).all_budgets
    assert own == NamedBudget("code", "code", None, Budget(Decimal(500), "month", (0.8,), "dial"))
    web = Budget(Decimal("7.50"), "week", (0.5, 0.8), "warn", "Europe/Berlin")
    assert listed == NamedBudget("web", None, "team-web", web)


def test_a_key_with_a_budget_is_known_by_name_though_no_cohort_matches_it() -> None:
    assert parse_policy(POLICY).key_names == {"team-ide", "team-web"}


def test_a_webhook_has_its_url_and_the_name_of_its_secrets_variable() -> None:
    told = "{name: a, cohort: code, usd: 1, period: day, notify: 'https://x.test/h?a=b', secret_env: HOOK}"
    budget = parse_policy(with_list(told)).budgets[0].budget
    assert (budget.notify, budget.secret_env) == ("https://x.test/h?a=b", "HOOK")


@pytest.mark.parametrize(
    ("budget", "field", "says"),
    [
        ("{name: a, usd: 1, period: day}", "cohort", "say whose money"),
        ("{name: a, cohort: cod, usd: 1, period: day}", "cohort", 'did you mean "code"?'),
        ("{name: code, tenant: t, usd: 1, period: day}", "name", "taken by another budget"),
        ("{tenant: t, usd: 1, period: day}", "name", "is missing"),
        ("{name: a, tenant: t, usd: 1, period: day, timezone: Europe/Berln}", "timezone", 'mean "Europe/Berlin"?'),
        ("{name: a, tenant: t, usd: 1, period: day, timezone: localtime}", "timezone", "not a time zone"),
        ("{name: a, tenant: t, usd: 1, period: day, timezone: right/Europe/Berlin}", "timezone", "not a time zone"),
        ("{name: a, tenant: t, usd: 0, period: day}", "usd", "outside 0 (exclusive)"),
        ("{name: a, tenant: t, usd: 0.0000000001, period: day}", "usd", "more than 9 decimals"),
        ("{name: a, tenant: t, usd: 1, period: day, soft: 99.99999%}", "soft", "hundredth of a percent"),
        ("{name: a, tenant: t, usd: 1, period: day, soft: [80%, 50%]}", "soft", "must rise"),
        ("{name: a, tenant: t, usd: 1, period: day, soft: []}", "soft", "empty list"),
        ("{name: a, tenant: t, usd: 1, period: day, soft: 0.8}", "soft", "with its sign"),
        ("{name: a, tenant: t, usd: 1, period: day, on_exceeded: dial}", "on_exceeded", "dial needs a cohort"),
        ("{name: a, cohort: default, usd: 1, period: day, on_exceeded: dial}", "on_exceeded", "choose goodput"),
        ("{name: a, tenant: t, usd: 1, period: day, notify: 'https://x.test'}", "notify", "needs secret_env"),
        ("{name: a, tenant: t, usd: 1, period: day, secret_env: X}", "secret_env", "give notify"),
        ("{name: a, tenant: t, usd: 1, period: day, notify: 'file:///x', secret_env: X}", "notify", "not an http"),
        ("{name: a, tenant: t, usd: 1, period: day, notify: 'http://u:p@x', secret_env: X}", "notify", "user name"),
        ("{name: a, tenant: t, usd: 1, period: day, notify: 'http://x:0x1', secret_env: X}", "notify", "not an http"),
    ],
)
def test_what_is_wrong_is_one_line_that_names_the_field(budget: str, field: str, says: str) -> None:
    at, message = only_problem(with_list(budget))
    assert (at, says in message) == (f"budgets[0].{field}", True), message


def test_a_secret_in_the_file_is_refused_and_not_repeated() -> None:
    hooked = "{name: a, tenant: t, usd: 1, period: day, notify: 'http://x', secret_env: 'wh-s3cret'}"
    field, message = only_problem(with_list(hooked))
    assert field == "budgets[0].secret_env"
    assert "s3cret" not in message


def test_a_cohorts_own_budget_that_cannot_dial_it_is_refused() -> None:
    text = POLICY.replace("tuner: goodput", "tuner: fixed")
    assert only_problem(text)[0] == "cohorts[0].budget.on_exceeded"


@pytest.mark.parametrize(
    ("objective", "says"),
    [("cost", ["pursues cost already"]), ("throughput", ["is least cost"]), ("energy", [])],
)
def test_dialling_a_cohort_that_wants_the_same_k_anyway_is_a_warning(objective: str, says: list[str]) -> None:
    text = POLICY.replace("fallback: 0}\n    budget", f"fallback: 0, objective: {objective}}}\n    budget")
    warnings = [w for w in parse_policy(text).warnings if w.startswith("cohorts[0].budget.on_exceeded")]
    assert [part for warning, part in zip(warnings, says, strict=True) if part in warning] == says

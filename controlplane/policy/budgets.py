"""Budgets in a policy file: a cohort's own `budget:` and the list `budgets:`, and what must hold between them."""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Sequence
from decimal import Decimal
from typing import cast
from urllib.parse import urlsplit

import yaml

from controlplane.policy import nodes
from controlplane.policy.model import Budget, BudgetAction, BudgetPeriod, CohortPolicy, NamedBudget
from controlplane.policy.nodes import Fields, Problems

BUDGET_PERIODS = ("day", "week", "month")
BUDGET_ACTIONS = ("warn", "reject", "dial")
BUDGET_FIELDS = ("usd", "period", "timezone", "soft", "on_exceeded", "notify", "secret_env")
MAX_TENANT = 200
"""Characters of a tenant, which is the name of an API key."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_SMALLEST = Decimal("1e-9")
_NO_PLACES = ("localtime", "posixrules", "posix", "right")
"""Zones that differ from machine to machine, or that count leap seconds, which unix time does not."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")

_NEEDS_GOODPUT = "dial makes a cohort pursue cost, which only the tuner goodput weighs; choose goodput, warn or reject"
_NEEDS_COHORT = "dial needs a cohort, because K is chosen by cohort; give cohort, or choose reject"


def name(node: yaml.Node) -> str:
    """The name of a cohort or a budget."""
    text = nodes.scalar(node)
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text!r} must be 1 to 63 letters, digits, dots, dashes or underscores, no dot or dash first")
    return text


def read_budget(fields: Fields) -> Budget | None:
    """The budget in `fields`, of which the caller may have taken others; None where it is too wrong to go on with."""
    usd = fields.take("usd", _dollars, required=True)
    period = fields.take("period", nodes.choice(BUDGET_PERIODS), required=True)
    timezone = fields.take("timezone", _timezone)
    soft = fields.take("soft", _shares)
    action = fields.take("on_exceeded", nodes.choice(BUDGET_ACTIONS))
    notify, secret = fields.child("notify"), fields.child("secret_env")
    url, variable = fields.take("notify", _url), fields.take("secret_env", _variable)
    fields.finish()
    if notify is not None and secret is None:
        fields.problem("notify", "needs secret_env: the name of the environment variable that holds the signing secret")
    if secret is not None and notify is None:
        fields.problem("secret_env", "signs what notify sends; give notify: a URL, or remove it")
    if usd is None or period is None:
        return None
    return Budget(
        usd,
        cast(BudgetPeriod, period),
        (0.8,) if soft is None else soft,
        cast(BudgetAction, action or "warn"),
        timezone or "UTC",
        url,
        variable,
    )


def read_budgets(node: yaml.Node, problems: Problems) -> list[tuple[Fields, NamedBudget]]:
    """The list `budgets:`, as far as it could be read."""
    if not isinstance(node, yaml.SequenceNode):
        problems.add(node, "budgets", "must be a list; start each budget with `- name:`")
        return []
    read = []
    for i, item in enumerate(node.value):
        fields = Fields(item, f"budgets[{i}]", problems)
        called = fields.take("name", name, required=True)
        cohort, tenant = fields.take("cohort", name), fields.take("tenant", _tenant)
        if fields.is_mapping and not {"cohort", "tenant"} & set(fields.given()):
            fields.problem("cohort", "is missing, and so is tenant: say whose money it is with one of them, or both")
        budget = read_budget(fields)
        if called is not None and budget is not None:
            read.append((fields, NamedBudget(called, cohort, tenant, budget)))
    return read


def check_budgets(
    cohorts: Sequence[CohortPolicy], budgets: Sequence[tuple[Fields, NamedBudget]], problems: Problems
) -> list[str]:
    """Notes what is wrong between budgets and cohorts; the warnings."""
    by_name = {cohort.name: cohort for cohort in cohorts}
    taken = {cohort.name for cohort in cohorts if cohort.budget is not None}
    warnings = []
    for i, (fields, named) in enumerate(budgets):
        if named.name in taken:
            fields.problem("name", f"{named.name!r} is taken by another budget; a cohort's own has the cohort's name")
        taken.add(named.name)
        if named.cohort is not None and named.cohort not in by_name:
            known = nodes.meant(named.cohort, list(by_name)) or f"; there are {', '.join(by_name)}"
            fields.problem("cohort", f"there is no cohort {named.cohort!r}{known}")
        if named.budget.on_exceeded == "dial":
            if named.cohort is None:
                fields.problem("on_exceeded", _NEEDS_COHORT)
            elif named.cohort in by_name:
                if by_name[named.cohort].speculation.tuner != "goodput":
                    fields.problem("on_exceeded", _NEEDS_GOODPUT)
                warnings += _dials_nothing(f"budgets[{i}]", by_name[named.cohort])
    for i, cohort in enumerate(cohorts):
        if cohort.budget is not None and cohort.budget.on_exceeded == "dial":
            warnings += _dials_nothing(f"cohorts[{i}].budget", cohort)
    return warnings


def dial_problem(cohort: CohortPolicy) -> str | None:
    """Why a cohort's own budget cannot dial it."""
    dials = cohort.budget is not None and cohort.budget.on_exceeded == "dial"
    return _NEEDS_GOODPUT if dials and cohort.speculation.tuner != "goodput" else None


def _dials_nothing(path: str, cohort: CohortPolicy) -> list[str]:
    speculation = cohort.speculation
    if speculation.tuner != "goodput" or speculation.objective == "energy":
        return []
    if speculation.objective == "cost":
        return [f"{path}.on_exceeded: dial changes nothing, for {cohort.name!r} pursues cost already"]
    why = (
        f"where only machine time is paid for, most {speculation.objective} is least cost; reject bounds what is spent"
    )
    return [f"{path}.on_exceeded: dial changes little for {cohort.name!r}: {why}"]


def _dollars(node: yaml.Node) -> Decimal:
    amount = nodes.money(node)
    if amount % _SMALLEST:
        raise ValueError(f"{amount:f} has more than 9 decimals; money is counted in billionths of a dollar")
    return amount


def _timezone(node: yaml.Node) -> str:
    text = nodes.scalar(node)
    try:
        if text.partition("/")[0] in _NO_PLACES:
            raise ValueError
        zoneinfo.ZoneInfo(text)
    except (KeyError, ValueError, OSError):
        close = nodes.meant(text, sorted(zoneinfo.available_timezones()))
        raise ValueError(f"{text!r} is not a time zone such as UTC or Europe/Berlin{close}") from None
    return text


def _shares(node: yaml.Node) -> tuple[float, ...]:
    items = node.value if isinstance(node, yaml.SequenceNode) else [node]
    if not items:
        raise ValueError("is an empty list; give a share such as 80%, or remove the line")
    shares = tuple(nodes.percent(1, 100)(item) for item in items)
    if list(shares) != sorted(set(shares)):
        raise ValueError("must rise, each share once, such as [50%, 80%]")
    rounded = tuple(round(share, 4) for share in shares)
    if any(abs(a - b) > 1e-12 for a, b in zip(shares, rounded, strict=True)):
        raise ValueError("is finer than a hundredth of a percent, which alerts are called by; write 66.67%")
    return rounded


def _tenant(node: yaml.Node) -> str:
    text = nodes.scalar(node)
    if len(text) > MAX_TENANT or not text.isprintable():
        raise ValueError(f"must be the name of an API key, at most {MAX_TENANT} printable characters")
    return text


def _url(node: yaml.Node) -> str:
    text = nodes.scalar(node)
    try:
        parts = urlsplit(text)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # a port that is none
        is_good = False
    if not is_good or any(c.isspace() for c in text):
        raise ValueError("is not an http:// or https:// URL")
    if parts.username is not None:
        raise ValueError("holds a user name; secrets belong in the environment, not in the file")
    return text


def _variable(node: yaml.Node) -> str:
    text = nodes.scalar(node)
    if not _VARIABLE.fullmatch(text):
        # It may be the secret itself, so it is not repeated.
        raise ValueError("must be the name of an environment variable, such as BUDGET_HOOK_SECRET, not the secret")
    return text

"""What a policy comes to: every cohort with all of its fields, and for each whether it was given or is the default."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from controlplane.policy.model import Budget, CohortPolicy, NamedBudget, Policy
from controlplane.policy.parse import LOADER

SECTIONS = ("match", "speculation", "guard", "slo", "budget")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value comes from. line: 1-based line of the file that gives it, None where it is the default."""

    line: int | None

    @property
    def word(self) -> str:
        return "default" if self.line is None else "given"


def policy_view(policy: Policy, cohort: str | None = None) -> dict[str, Any]:
    """The whole policy as JSON has it, or only the cohort of that name; raises KeyError where there is none.

    Each cohort has its sections (seconds, shares, money as a decimal string) and `origin`: "section.field" ->
    {"from": "given" | "default", "line": the file's line or null}. Each of `budgets` has `origin` by field.
    """
    names = [each.name for each in policy.cohorts]
    if cohort is not None and cohort not in names:
        raise KeyError(cohort)
    lines = given_lines(policy.text)
    experiment = policy.experiment
    return {
        "version": policy.version,
        "revision": policy.revision,
        "warnings": list(policy.warnings),
        "cohorts": [
            {**cohort_view(each), "origin": _origins(i, each, lines)}
            for i, each in enumerate(policy.cohorts)
            if cohort in (None, each.name)
        ],
        "budgets": [
            {**named_budget_view(each), "origin": _budget_origins(i, each, lines)}
            for i, each in enumerate(policy.budgets)
            if cohort in (None, each.cohort)
        ],
        "experiment": None
        if experiment is None
        else {
            "holdout": experiment.holdout,
            "unit": experiment.unit,
            "window_s": experiment.window_s,
            "burn_in_s": experiment.burn_in_s,
        },
    }


def cohort_view(cohort: CohortPolicy) -> dict[str, Any]:
    """Everything in force for a cohort; a field that its tuner does not use is None."""
    match, speculation, guard, budget = cohort.match, cohort.speculation, cohort.guard, cohort.budget
    is_goodput = speculation.tuner == "goodput"
    return {
        "name": cohort.name,
        "match": {
            "api_key": list(match.api_key),
            "route": list(match.route),
            "model": list(match.model),
            "headers": {name: list(allowed) for name, allowed in match.headers.items()},
            "user": list(match.user),
            "metadata": {name: list(allowed) for name, allowed in match.metadata.items()},
            "service_tier": list(match.service_tier),
        },
        "speculation": {
            "tuner": speculation.tuner,
            "acceptance_floor": speculation.acceptance_floor if speculation.tuner == "threshold" else None,
            "ladder": list(speculation.ladder),
            "start": speculation.start,
            "fallback": speculation.fallback,
            "objective": speculation.objective,
            "slots": speculation.slots if is_goodput else None,
        },
        "guard": {
            "tolerance": guard.tolerance,
            "hold_s": guard.hold_s,
            "min_samples": guard.min_samples,
            "probe_every_s": guard.probe_every_s,
        },
        "slo": {"tpot_p95_s": cohort.slo.tpot_p95_s, "ttft_p95_s": cohort.slo.ttft_p95_s},
        "budget": None if budget is None else budget_view(budget),
    }


def budget_view(budget: Budget) -> dict[str, Any]:
    """Everything in force for a budget."""
    return {
        "usd": str(budget.usd),
        "period": budget.period,
        "timezone": budget.timezone,
        "soft": list(budget.soft),
        "on_exceeded": budget.on_exceeded,
        "notify": budget.notify,
        "secret_env": budget.secret_env,
    }


def named_budget_view(named: NamedBudget) -> dict[str, Any]:
    """The same of a budget of the list `budgets:`."""
    return {"name": named.name, "cohort": named.cohort, "tenant": named.tenant, **budget_view(named.budget)}


def settings_of(cohort: CohortPolicy) -> dict[str, Any]:
    """The view without name and match: "section.field" -> value, by which two policies' cohorts are compared."""
    view = cohort_view(cohort)
    return {path: value for path, value in _leaves(view) if not path.startswith("match.")}


def differences(before: Policy, after: Policy) -> list[str]:
    """What changes from one policy to the other, one line each; none where only comments or spelling differ."""
    old, new = {c.name: c for c in before.cohorts}, {c.name: c for c in after.cohorts}
    found = [f"{name}: cohort removed" for name in old if name not in new]
    found += [f"{name}: cohort added" for name in new if name not in old]
    for name, cohort in new.items():
        if name in old:
            was, becomes = dict(_leaves(cohort_view(old[name]))), dict(_leaves(cohort_view(cohort)))
            found += [
                f"{name}: {path}: {text_of(was.get(path))} -> {text_of(becomes.get(path))}"
                for path in (*was, *(path for path in becomes if path not in was))
                if was.get(path) != becomes.get(path)
            ]
    kept_before = [name for name in old if name in new]
    kept_after = [name for name in new if name in old]
    if kept_before != kept_after:
        found.append(f"order of cohorts: {', '.join(kept_before)} -> {', '.join(kept_after)}")
    found += _budget_differences(before, after)
    if before.experiment != after.experiment:
        found.append("experiment: changed" if before.experiment and after.experiment else
                     f"experiment: {'added' if after.experiment else 'removed'}")  # fmt: skip
    return found


def _budget_differences(before: Policy, after: Policy) -> list[str]:
    old, new = ({b.name: named_budget_view(b) for b in policy.budgets} for policy in (before, after))
    found = [f"budget {name}: removed" for name in old if name not in new]
    found += [f"budget {name}: added" for name in new if name not in old]
    return found + [
        f"budget {name}: {field}: {text_of(old[name][field])} -> {text_of(value)}"
        for name in new
        if name in old
        for field, value in new[name].items()
        if old[name][field] != value
    ]


def given_lines(text: str) -> dict[str, int]:
    """Path of every field that a policy's text gives, such as `cohorts[0].guard.hold` -> its 1-based line."""
    return dict(_walk(yaml.compose(text, Loader=LOADER), ""))


def text_of(value: object) -> str:
    """A value for a person: lists in brackets, nothing as `none`."""
    if value is None or value in ([], {}):
        return "none"
    if isinstance(value, dict):
        return "; ".join(f"{name}: {text_of(each)}" for name, each in value.items())
    if isinstance(value, list):
        return "[" + ", ".join(str(each) for each in value) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _walk(node: yaml.Node | None, path: str) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name = f"{path}.{key.value}" if path else str(key.value)
            yield name, int(key.start_mark.line) + 1
            yield from _walk(value, name)
    elif isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            yield from _walk(item, f"{path}[{i}]")


def _origins(index: int, cohort: CohortPolicy, lines: dict[str, int]) -> dict[str, Any]:
    found = {}
    for section, fields in cohort_view(cohort).items():
        for field in fields if isinstance(fields, dict) else ():
            # The view says in a field's name that it is in seconds, the file says it in the value.
            origin = Origin(lines.get(f"cohorts[{index}].{section}.{field.removesuffix('_s')}"))
            found[f"{section}.{field}"] = {"from": origin.word, "line": origin.line}
    return found


def _budget_origins(index: int, named: NamedBudget, lines: dict[str, int]) -> dict[str, Any]:
    found = {}
    for field in named_budget_view(named):
        origin = Origin(lines.get(f"budgets[{index}].{field}"))
        found[field] = {"from": origin.word, "line": origin.line}
    return found


def _leaves(view: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Pairs of "section.field" and its value, of all sections that are there."""
    for section in SECTIONS:
        for field, value in (view[section] or {}).items():
            yield f"{section}.{field}", value

"""From YAML text to a Policy, or to all that is wrong with it at once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import yaml

from controlplane.policy import nodes
from controlplane.policy.model import (
    MAX_K,
    Budget,
    BudgetAction,
    BudgetPeriod,
    CohortPolicy,
    Experiment,
    ExperimentUnit,
    Guard,
    Match,
    Policy,
    PolicyError,
    PolicyFileError,
    PolicyProblem,
    Slo,
    Speculation,
    TunerName,
)
from controlplane.policy.nodes import Fields, Problems
from controlplane.policy.order import UNREADABLE, check_order

TUNERS = ("fixed", "threshold")
LATER_TUNERS = ("goodput",)
OBJECTIVES = ("throughput",)
LATER_OBJECTIVES = ("latency", "cost", "energy")
SERVICE_TIERS = ("auto", "default", "flex", "scale", "priority")
MAX_TEXT = 1_000_000
MAX_SAMPLES = 250
"""Largest min_samples: the discounted evidence of a cohort never grows beyond about 433 (decision/estimate.py)."""

_SECTIONS = ("match", "speculation", "slo", "guard", "budget")
_NO_SPECULATION = Speculation("threshold", 0.5, (0,), 0, 0)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_ELSEWHERE = {
    **dict.fromkeys(("tuner", "ladder", "start", "fallback", "acceptance_floor", "objective"), "speculation"),
    **dict.fromkeys(("tolerance", "hold", "min_samples", "probe_every"), "guard"),
    **dict.fromkeys(("tpot_p95", "ttft_p95"), "slo"),
    **dict.fromkeys(("api_key", "route", "model", "headers", "user", "metadata", "service_tier"), "match"),
    **dict.fromkeys(("usd", "period", "soft", "on_exceeded"), "budget"),
}


def load_policy(path: str | Path) -> Policy:
    """The policy in a file; raises PolicyFileError when it cannot be read, PolicyError when it cannot be used."""
    source = str(path)
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else (error.strerror or str(error))
        raise PolicyFileError(source, (PolicyProblem(None, "", f"cannot be read: {reason}"),)) from None
    except ValueError as error:  # a NUL in the path
        raise PolicyFileError(source, (PolicyProblem(None, "", f"cannot be read: {error}"),)) from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise PolicyError(source, (PolicyProblem(line, "", "is not UTF-8 text; save the file as UTF-8"),)) from None
    return parse_policy(text, source)


def parse_policy(text: str, source: str = "policies.yaml") -> Policy:
    """The policy in `text`; raises PolicyError with every problem found. `source` names the file in messages."""
    root = _compose(text, source)
    problems, warnings = Problems(), list[str]()
    top = Fields(root, "", problems)
    version = top.take("version", nodes.integer(1, 1), required=True)
    cohort_nodes = top.child("cohorts", required=True)
    cohorts = _cohorts(cohort_nodes, problems) if cohort_nodes is not None else []
    experiment_node = top.child("experiment")
    experiment = None if experiment_node is None else _experiment(Fields(experiment_node, "experiment", problems))
    top.finish()
    check_order(cohorts, problems, warnings)
    if problems.found:
        raise PolicyError(source, problems.found)
    for i, (_, cohort) in enumerate(cohorts):
        if cohort.budget is not None:
            warnings.append(f"cohorts[{i}].budget: of {cohort.name!r} is checked, but this release does not enforce it")
        if cohort.slo != Slo():
            warnings.append(f"cohorts[{i}].slo: of {cohort.name!r} is checked, but this release does not act on it")
    if experiment is not None:
        warnings.append("experiment: is checked, but this release does not run it yet")
    return Policy(
        version=version or 1,
        cohorts=tuple(cohort for _, cohort in cohorts),
        experiment=experiment,
        revision=hashlib.sha256(text.encode()).hexdigest()[:12],
        text=text,
        warnings=tuple(warnings),
    )


def _compose(text: str, source: str) -> yaml.Node:
    def fail(line: int | None, message: str) -> PolicyError:
        return PolicyError(source, (PolicyProblem(line, "", message),))

    if len(text) > MAX_TEXT:
        raise fail(None, f"is longer than {MAX_TEXT} characters")
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = ", ".join(part for part in (error.context, error.problem) if part)
        raise fail(mark.line + 1 if mark else None, f"is not valid YAML: {said}") from None
    except yaml.reader.ReaderError as error:
        at = error.position if isinstance(error.position, int) else 0
        raise fail(text[:at].count("\n") + 1, f"is not valid YAML: {error.reason}") from None
    except RecursionError:
        raise fail(None, "is nested too deeply") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise fail(None, f"is not valid YAML: {' '.join(str(error).split())}") from None
    if root is None:
        raise fail(None, "is empty; it needs at least `version: 1` and `cohorts:`")
    return root


def _cohorts(node: yaml.Node, problems: Problems) -> list[tuple[yaml.Node, CohortPolicy]]:
    if not isinstance(node, yaml.SequenceNode):
        problems.add(node, "cohorts", "must be a list; start each cohort with `- name:`")
        return []
    if not node.value:
        problems.add(node, "cohorts", "is empty; give at least one cohort with `match: {}`")
    return [(item, _cohort(item, f"cohorts[{i}]", problems)) for i, item in enumerate(node.value)]


def _cohort(node: yaml.Node, path: str, problems: Problems) -> CohortPolicy:
    """The cohort as far as it could be read: parts that are wrong are noted and stand as defaults."""
    fields = Fields(node, path, problems)
    name = fields.take("name", _name, required=True)
    children = {key: fields.child(key, required=key in ("match", "speculation")) for key in _SECTIONS}
    fields.finish(_ELSEWHERE)
    read = {key: Fields(child, f"{path}.{key}", problems) for key, child in children.items() if child is not None}
    return CohortPolicy(
        name=name or "",
        match=_match(read["match"], problems) if "match" in read else UNREADABLE,
        speculation=_speculation(read["speculation"]) if "speculation" in read else _NO_SPECULATION,
        slo=_slo(read["slo"]) if "slo" in read else Slo(),
        guard=_guard(read["guard"]) if "guard" in read else Guard(),
        budget=_budget(read["budget"]) if "budget" in read else None,
    )


def _name(node: yaml.Node) -> str:
    text = nodes.scalar(node)
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text!r} must be 1 to 63 letters, digits, dots, dashes or underscores, no dot or dash first")
    return text


def _match(fields: Fields, problems: Problems) -> Match:
    before = len(problems.found)
    match = Match(
        api_key=fields.take("api_key", nodes.words) or (),
        route=fields.take("route", nodes.words) or (),
        model=fields.take("model", nodes.words) or (),
        headers=_patterns_by_name(fields.child("headers"), fields.at("headers"), problems, headers=True),
        user=fields.take("user", nodes.words) or (),
        metadata=_patterns_by_name(fields.child("metadata"), fields.at("metadata"), problems, headers=False),
        service_tier=fields.take("service_tier", _tiers) or (),
    )
    fields.finish()
    return match if len(problems.found) == before else UNREADABLE


def _tiers(node: yaml.Node) -> tuple[str, ...]:
    tiers = nodes.words(node)
    for tier in tiers:
        if tier not in SERVICE_TIERS:
            raise ValueError(f"{tier!r} is not one of {', '.join(SERVICE_TIERS)}{nodes.meant(tier, SERVICE_TIERS)}")
    return tiers


def _patterns_by_name(
    node: yaml.Node | None, path: str, problems: Problems, *, headers: bool
) -> dict[str, tuple[str, ...]]:
    if node is None:
        return {}
    fields = Fields(node, path, problems)
    patterns: dict[str, tuple[str, ...]] = {}
    for name in fields.names():
        if headers and not _HEADER.fullmatch(name):
            fields.problem(name, f"{name!r} cannot be the name of a header")
            continue
        key = name.lower() if headers else name
        if key in patterns:
            fields.problem(name, "is given twice; header names do not distinguish upper and lower case")
        allowed = fields.take(name, nodes.words)
        if allowed:
            patterns[key] = allowed
    return patterns


def _speculation(fields: Fields) -> Speculation:
    tuner = fields.take("tuner", _available("tuner", TUNERS, LATER_TUNERS), required=True)
    floor = fields.take("acceptance_floor", nodes.percent(0, 100))
    ladder = fields.take("ladder", _ladder, required=True)
    start = fields.take("start", nodes.integer(0, MAX_K), required=True)
    fallback = fields.take("fallback", nodes.integer(0, MAX_K), required=True)
    objective = fields.take("objective", _available("objective", OBJECTIVES, LATER_OBJECTIVES))
    fields.finish()
    for name, k in (("start", start), ("fallback", fallback)):
        if ladder is not None and k is not None and k not in ladder:
            fields.problem(name, f"{k} is not a rung of the ladder [{', '.join(map(str, ladder))}]")
    if tuner == "fixed" and floor is not None:
        fields.problem("acceptance_floor", "is not used by the tuner fixed; remove it or choose threshold")
    return Speculation(
        tuner=cast(TunerName, tuner or "threshold"),
        acceptance_floor=0.5 if floor is None else floor,
        ladder=ladder or (0,),
        start=start or 0,
        fallback=fallback or 0,
        objective=objective or "throughput",
    )


def _available(what: str, now: tuple[str, ...], later: tuple[str, ...]) -> Callable[[yaml.Node], str]:
    def parse(node: yaml.Node) -> str:
        text = nodes.scalar(node)
        if text in later:
            raise ValueError(f"{what} {text!r} is not available in this release; available: {', '.join(now)}")
        return nodes.choice(now)(node)

    return parse


def _ladder(node: yaml.Node) -> tuple[int, ...]:
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        raise ValueError("must be a list of K, such as [0, 1, 2, 4]")
    rungs = tuple(nodes.integer(0, MAX_K)(item) for item in node.value)
    if len(set(rungs)) < len(rungs):
        raise ValueError(f"[{', '.join(map(str, rungs))}] holds a rung twice")
    if list(rungs) != sorted(rungs):
        raise ValueError(f"must rise: write [{', '.join(map(str, sorted(rungs)))}]")
    return rungs


def _slo(fields: Fields) -> Slo:
    slo = Slo(
        tpot_p95_s=fields.take("tpot_p95", nodes.duration(0.0001, 60)),
        ttft_p95_s=fields.take("ttft_p95", nodes.duration(0.0001, 3600)),
    )
    fields.finish()
    return slo


def _guard(fields: Fields) -> Guard:
    read = {
        "tolerance": fields.take("tolerance", nodes.percent(0, 50)),
        "hold_s": fields.take("hold", nodes.duration(0, 3600)),
        "min_samples": fields.take("min_samples", nodes.integer(1, MAX_SAMPLES)),
        "probe_every_s": fields.take("probe_every", nodes.duration(5, 86400)),
    }
    fields.finish()
    return replace(Guard(), **{key: value for key, value in read.items() if value is not None})  # type: ignore[arg-type]


def _budget(fields: Fields) -> Budget | None:
    usd = fields.take("usd", nodes.money, required=True)
    period = fields.take("period", nodes.choice(("day", "week", "month")), required=True)
    soft = fields.take("soft", nodes.percent(1, 100))
    action = fields.take("on_exceeded", nodes.choice(("warn", "reject", "dial")))
    fields.finish()
    if usd is None or period is None:
        return None
    return Budget(usd, cast(BudgetPeriod, period), 0.8 if soft is None else soft, cast(BudgetAction, action or "warn"))


def _experiment(fields: Fields) -> Experiment | None:
    holdout = fields.take("holdout", nodes.percent(0.1, 50), required=True)
    unit = fields.take("unit", nodes.choice(("window", "replica")), required=True)
    window = fields.take("window", nodes.duration(60, 86400), required=True)
    burn_in = fields.take("burn_in", nodes.duration(0, 86400))
    fields.finish()
    if window is not None and burn_in is not None and burn_in >= window:
        fields.problem("burn_in", "must be shorter than the window, or nothing is left to measure")
    if holdout is None or unit is None or window is None:
        return None
    return Experiment(holdout, cast(ExperimentUnit, unit), window, burn_in or 0.0)

"""The sections of a cohort and the experiment, each from its fields to its frozen value.

What is wrong is noted on the fields; the value returned is then only good enough for checking the rest of the file.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import cast

import yaml

from controlplane.policy import nodes
from controlplane.policy.model import (
    MAX_K,
    Experiment,
    ExperimentUnit,
    Guard,
    Match,
    Objective,
    Slo,
    Slots,
    Speculation,
    TunerName,
)
from controlplane.policy.nodes import Fields, Problems
from controlplane.policy.order import UNREADABLE

TUNERS = ("fixed", "threshold", "goodput")
OBJECTIVES = ("throughput", "latency", "cost", "energy")
SLOTS = ("uniform", "ragged")
SERVICE_TIERS = ("auto", "default", "flex", "scale", "priority")
EXPERIMENT_UNITS = ("window", "replica")
MAX_SAMPLES = 250
"""Largest min_samples: the discounted evidence of a cohort never grows beyond about 433 (decision/estimate.py)."""

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def read_match(fields: Fields, problems: Problems) -> Match:
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


def read_speculation(fields: Fields) -> Speculation:
    tuner = fields.take("tuner", nodes.choice(TUNERS), required=True)
    floor = fields.take("acceptance_floor", nodes.percent(0, 100))
    ladder = fields.take("ladder", _ladder, required=True)
    start = fields.take("start", nodes.integer(0, MAX_K), required=True)
    fallback = fields.take("fallback", nodes.integer(0, MAX_K), required=True)
    objective = fields.take("objective", nodes.choice(OBJECTIVES))
    slots = fields.take("slots", nodes.choice(SLOTS))
    fields.finish()
    for name, k in (("start", start), ("fallback", fallback)):
        if ladder is not None and k is not None and k not in ladder:
            fields.problem(name, f"{k} is not a rung of the ladder [{', '.join(map(str, ladder))}]")
    if tuner in ("fixed", "goodput") and floor is not None:
        fields.problem("acceptance_floor", f"is not used by the tuner {tuner}; remove it or choose threshold")
    if tuner in ("fixed", "threshold"):
        if objective not in (None, "throughput"):
            fields.problem("objective", f"{objective} is not weighed by the tuner {tuner}; choose goodput for it")
        if slots is not None:
            fields.problem("slots", f"is not used by the tuner {tuner}; remove it or choose goodput")
    return Speculation(
        tuner=cast(TunerName, tuner or "threshold"),
        acceptance_floor=0.5 if floor is None else floor,
        ladder=ladder or (0,),
        start=start or 0,
        fallback=fallback or 0,
        objective=cast(Objective, objective or "throughput"),
        slots=cast(Slots, slots or "uniform"),
    )


def _ladder(node: yaml.Node) -> tuple[int, ...]:
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        raise ValueError("must be a list of K, such as [0, 1, 2, 4]")
    rungs = tuple(nodes.integer(0, MAX_K)(item) for item in node.value)
    if len(set(rungs)) < len(rungs):
        raise ValueError(f"[{', '.join(map(str, rungs))}] holds a rung twice")
    if list(rungs) != sorted(rungs):
        raise ValueError(f"must rise: write [{', '.join(map(str, sorted(rungs)))}]")
    return rungs


def read_slo(fields: Fields) -> Slo:
    slo = Slo(
        tpot_p95_s=fields.take("tpot_p95", nodes.duration(0.0001, 60)),
        ttft_p95_s=fields.take("ttft_p95", nodes.duration(0.0001, 3600)),
    )
    fields.finish()
    return slo


def read_guard(fields: Fields) -> Guard:
    read = {
        "tolerance": fields.take("tolerance", nodes.percent(0, 50)),
        "hold_s": fields.take("hold", nodes.duration(0, 3600)),
        "min_samples": fields.take("min_samples", nodes.integer(1, MAX_SAMPLES)),
        "probe_every_s": fields.take("probe_every", nodes.duration(5, 86400)),
    }
    fields.finish()
    return replace(Guard(), **{key: value for key, value in read.items() if value is not None})  # type: ignore[arg-type]


def read_experiment(fields: Fields) -> Experiment | None:
    holdout = fields.take("holdout", nodes.percent(0.1, 50), required=True)
    unit = fields.take("unit", nodes.choice(EXPERIMENT_UNITS), required=True)
    window = fields.take("window", nodes.duration(60, 86400), required=True)
    burn_in = fields.take("burn_in", nodes.duration(0, 86400))
    fields.finish()
    if window is not None and burn_in is not None and burn_in >= window:
        fields.problem("burn_in", "must be shorter than the window, or nothing is left to measure")
    if holdout is None or unit is None or window is None:
        return None
    return Experiment(holdout, cast(ExperimentUnit, unit), window, burn_in or 0.0)

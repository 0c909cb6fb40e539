"""Traces summed up: the object that `--json` prints, the tables, and the lines of the CSV file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from math import isnan
from statistics import fmean, median
from typing import Any

from rich.table import Table

from benchmarks.control.adapt import Adaptation
from benchmarks.control.ours_checks import OursChecks
from benchmarks.control.profile import Profile
from benchmarks.control.roster import OURS
from benchmarks.control.score import Score
from benchmarks.control.trace import Trace

HEADLINE: Mapping[str, Callable[[Iterable[float]], float]] = {
    "percent_of_clairvoyant": fmean,
    "gain_over_best_fixed_percent": fmean,
    "worst_cell_percent": min,
    "worst_mid_cell_percent": min,
    "worst_large_cell_percent": min,
    "worst_own_gap_percent": min,
    "mean_own_gap_percent": fmean,
    "drawn_percent_of_clairvoyant": fmean,
    "goodput": fmean,
}
"""The one number of a measure over all traces: the mean, or the worst where the measure is a worst case itself."""

CELL_SIZES = ("", "mid_", "large_")

Number = float | None


def spread(values: Iterable[float]) -> dict[str, float]:
    """{min, median, max, mean}, rounded; empty without values."""
    known = [value for value in values if not isnan(value)]
    if not known:
        return {}
    figures = {"min": min(known), "median": median(known), "max": max(known), "mean": fmean(known)}
    return {name: round(float(figure), 4) for name, figure in figures.items()}


def result(
    conditions: Mapping[str, Any], profiles: Sequence[Profile], traces: Sequence[Trace], ours: OursChecks
) -> dict[str, Any]:
    """The whole result. What could not be taken is null."""
    adaptations = [trace.adaptations for trace in traces]
    arms = list(dict.fromkeys(arm for each in adaptations for arm in each))
    by_arm = {arm: _adaptation_figures([each[arm] for each in adaptations if arm in each]) for arm in arms}
    own = by_arm.get(OURS, {})
    steps, estimator = ours.steps_to_adapt, ours.estimator
    return {
        "machine": dict(conditions),
        "profiles": [
            _profile_figures(profile, [t for t in traces if t.profile == profile.name]) for profile in profiles
        ],
        "bias_percent": round(estimator.bias_percent, 4) if estimator else None,
        "coverage_percent": round(estimator.coverage_percent, 4) if estimator else None,
        "worst_coverage_percent": round(estimator.worst_coverage_percent, 4) if estimator else None,
        "steps_to_adapt": max(steps, default=None),
        "windows_to_adapt": _worst(own.get("windows_down"), own.get("windows_up")),
        "windows_to_recover": _worst(own.get("windows_to_recover")),
        "changes_per_minute": _worst(own.get("changes_per_minute")),
        "tick_ms": ours.tick_ms,
        "lookup_us": ours.lookup_us,
        "spreads": {"steps_to_adapt": spread(steps)},
        "adaptation": by_arm,
    }


def _profile_figures(profile: Profile, traces: Sequence[Trace]) -> dict[str, Any]:
    """Ours at the top, as the contract has it, and every arm below."""
    arms = {
        arm: {
            name: _headline(headline, [getattr(t.scores[arm], name) for t in traces])
            for name, headline in HEADLINE.items()
        }
        | {"changes_per_minute": round(_per_minute(profile, (t.scores[arm] for t in traces)), 4)}
        | {"spreads": {name: spread(getattr(t.scores[arm], name) for t in traces) for name in HEADLINE}}
        for arm in traces[0].scores
    }
    own = arms.get(OURS, {})
    top = (
        "percent_of_clairvoyant",
        "gain_over_best_fixed_percent",
        "worst_cell_percent",
        "worst_mid_cell_percent",
        "worst_large_cell_percent",
        "mean_own_gap_percent",
        "spreads",
    )
    return {
        "name": profile.name,
        "description": profile.description,
        "traces": len(traces),
        "steps": profile.steps,
        "steps_per_second": profile.steps_per_second,
        **{name: own.get(name) for name in top},
        "arms": [{"name": arm, **figures} for arm, figures in arms.items()],
    }


def _headline(headline: Callable[[Iterable[float]], float], values: Iterable[float]) -> Number:
    """Of the traces that have the measure (one without a cell so large has no worst one); None where none has."""
    known = [value for value in values if not isnan(value)]
    return round(float(headline(known)), 4) if known else None


def _per_minute(profile: Profile, scores: Iterable[Score]) -> float:
    return fmean(score.changes_per_step for score in scores) * profile.steps_per_second * 60.0


def _adaptation_figures(seen: Sequence[Adaptation]) -> dict[str, dict[str, float]]:
    names = [field.name for field in fields(Adaptation)]
    return {name: spread(value for each in seen if (value := getattr(each, name)) is not None) for name in names}


def _worst(*spreads: Mapping[str, float] | None) -> Number:
    return max((each["max"] for each in spreads if each), default=None)


def tables(result: Mapping[str, Any]) -> list[Table]:
    """One table a profile, one on changes, one on what only the production controller is asked."""
    return [*(_profile_table(each) for each in result["profiles"]), _adaptation_table(result), _ours_table(result)]


def _profile_table(profile: Mapping[str, Any]) -> Table:
    table = Table(title=f"{profile['name']}: {profile['description']} ({profile['traces']} x {profile['steps']} steps)")
    table.add_column("arm")
    for name in (
        "% of clairvoyant",
        "min-max",
        "over best fixed K",
        "min-max",
        "worst cell",
        "of 5 %",
        "of 10 %",
        "changes/min",
    ):
        table.add_column(name, justify="right")
    for arm in sorted(profile["arms"], key=lambda each: -each["percent_of_clairvoyant"]):
        share, gain = (arm["spreads"][name] for name in ("percent_of_clairvoyant", "gain_over_best_fixed_percent"))
        table.add_row(
            arm["name"],
            f"{share['mean']:.2f}",
            f"{share['min']:.1f}-{share['max']:.1f}",
            f"{gain['mean']:+.2f} %",
            f"{gain['min']:+.1f} to {gain['max']:+.1f}",
            *("" if (worst := arm[f"worst_{size}cell_percent"]) is None else f"{worst:+.2f} %" for size in CELL_SIZES),
            f"{arm['changes_per_minute']:.1f}",
        )
    return table


def _adaptation_table(result: Mapping[str, Any]) -> Table:
    table = Table(title="After a change, median (and worst) of profiles and seeds, in windows of a second")
    table.add_column("arm")
    columns = {
        "windows_down": "0.9 to 0.35",
        "windows_up": "0.35 to 0.9",
        "windows_to_recover": "out of K = 0",
        "changes_per_minute": "changes/min at rest",
    }
    for title in columns.values():
        table.add_column(title, justify="right")
    for arm, figures in result["adaptation"].items():
        cells = [f"{each['median']:g} ({each['max']:g})" if (each := figures[name]) else "" for name in columns]
        table.add_row(arm, *cells)
    return table


def _ours_table(result: Mapping[str, Any]) -> Table:
    table = Table("measure", "of the production controller", title="Estimator, tick and look-up")
    for name in ("bias_percent", "coverage_percent", "steps_to_adapt", "tick_ms", "lookup_us"):
        value = result[name]
        table.add_row(name, "not taken" if value is None else f"{value:g}")
    return table


def csv_header(conditions: Mapping[str, Any]) -> list[str]:
    """Columns of `csv_lines`."""
    measures = (field.name for kind in (Score, Adaptation) for field in fields(kind))
    return [*conditions, "profile", "seed", "arm", *measures]


def csv_lines(conditions: Mapping[str, Any], traces: Sequence[Trace]) -> list[dict[str, Any]]:
    """One line an arm and trace; adaptation columns are empty where it was not asked for."""
    names = [field.name for field in fields(Adaptation)]
    return [
        {
            **conditions,
            "profile": trace.profile,
            "seed": trace.seed,
            "arm": arm,
            **{name: None if isnan(value) else round(value, 6) for name, value in asdict(score).items()},
            **{name: getattr(trace.adaptations.get(arm), name, None) for name in names},
        }
        for trace in traces
        for arm, score in trace.scores.items()
    ]

"""Everything that is said of an experiment, put together: savings, what they rest on, and what they do not say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from controlplane.experiment import Run, Window, run_json
from controlplane.finops.confidence_sequence import MIN_PAIRS
from controlplane.finops.savings import ALPHA, MEASURES, WHAT, Measure, Pair, Saving, Sums, saving
from controlplane.finops.savings_checks import DriftCheck, Guardrail, drift_checks, guardrails, length_distance
from controlplane.finops.savings_projection import LoadHour, Projection, projection

DRAFTED_MOST = 0.001
"""Draft tokens by emitted token of a control window, over which it was none."""
MISSING_MOST = 0.2
"""By how much the machine time of a pair's windows may differ: else some are missing, or workers came and went."""
DAY_S = 86_400.0

NOT_SAID: Mapping[str, tuple[str, ...]] = {
    "window": (
        "the drafter stayed loaded in control windows: what its memory costs (a smaller KV cache, a smaller batch) is "
        "not in it; `unit: replica` charges it",
        "what training or hosting a drafter costs is not in it",
    ),
    "replica": (
        "differences between the machines are in it: the same replicas are compared all along",
        "what training or hosting a drafter costs beyond its replicas is not in it",
    ),
}
ALWAYS_NOT_SAID = (
    "it is about the loads and the traffic of these pairs, and about no others",
    "capacity is not cash: on a fleet of fixed size nothing is saved until it shrinks",
    "requests that were refused are in neither arm",
)


class Refused(NamedTuple):
    """A pair that is not counted, and why."""

    pair: int
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """An experiment as it stands. savings: by measure; refused: pairs not counted; pending: pairs not over yet.

    revisions: policies under which its pairs were made. sources: of the energy. currency: of projection.nano.
    """

    run: Run
    savings: Mapping[Measure, Saving]
    guardrails: tuple[Guardrail, ...]
    checks: tuple[DriftCheck, ...]
    length_distance: float | None
    projection: Projection
    refused: tuple[Refused, ...]
    pending: int
    revisions: tuple[str, ...]
    sources: tuple[str, ...]
    currency: str | None

    @property
    def broken(self) -> tuple[Guardrail, ...]:
        return tuple(rail for rail in self.guardrails if rail.verdict == "broken")

    @property
    def is_saving(self) -> bool:
        """Whether capacity was saved, beyond chance and without a guardrail broken."""
        found = self.savings["capacity"]
        return found.low is not None and found.low > 0 and not self.broken

    @property
    def headline(self) -> str:
        """One sentence that may be quoted."""
        found = self.savings["capacity"]
        if found.share is None or found.low is None or found.high is None:
            return f"no verdict yet: {found.pairs} of the {MIN_PAIRS} pairs that it takes before anything is said"
        interval = f"{found.low:.1%} to {found.high:.1%}"
        if not found.is_clear:
            return f"not told apart from no saving: {found.share:.1%} of capacity, interval {interval}"
        if found.high < 0:
            return f"a loss of {-found.share:.1%} of capacity (interval {-found.high:.1%} to {-found.low:.1%})"
        if self.broken:
            what = ", ".join(rail.name for rail in self.broken)
            return f"no saving: {found.share:.1%} of capacity ({interval}), but a guardrail is broken: {what}"
        return f"a saving of {found.share:.1%} of capacity (interval {interval})"

    @property
    def not_said(self) -> tuple[str, ...]:
        """What nobody may read into it."""
        mixed = len(self.revisions) > 1
        notes = [f"{len(self.revisions)} policies were in force: it is of their mixture"] if mixed else []
        return (*notes, *NOT_SAID[self.run.spec.unit], *ALWAYS_NOT_SAID)

    def as_json(self) -> dict[str, Any]:
        """Shares as numbers, money as a decimal string, unknown as null."""
        month = self.projection
        return {
            "experiment": run_json(self.run),
            "headline": self.headline,
            "is_saving": self.is_saving,
            "greyed_out": not self.savings["capacity"].is_clear,
            "confidence": 1 - ALPHA,
            "savings": {measure: _saving_json(found) for measure, found in self.savings.items()},
            "guardrails": [_fields(rail, "sentence") for rail in self.guardrails],
            "checks": [_fields(check, "is_good") for check in self.checks],
            "length_distance": self.length_distance,
            "projection": {
                **{name: getattr(month, name) for name in ("covered", "share", "low", "high", "refused", "label")},
                "money": _money(month.nano),
                "money_low": _money(month.nano_low),
                "money_high": _money(month.nano_high),
                "currency": self.currency,
            },
            "pairs": {
                "used": self.savings["capacity"].pairs,
                "refused": [each._asdict() for each in self.refused],
                "pending": self.pending,
            },
            "policy_revisions": list(self.revisions),
            "energy_sources": list(self.sources),
            "does_not_say": list(self.not_said),
        }


class Arm(NamedTuple):
    """One window and what was measured in it."""

    window: Window
    sums: Sums
    sources: tuple[str, ...] = ()


def build(run: Run, arms: Sequence[Arm], month: Iterable[LoadHour], currency: str | None = None) -> Report:
    """The report of `run` from its windows, in any order, and the hours of the month to project to."""
    pairs, refused, pending, silent = pairs_of(run, arms)
    used = {pair.index for pair in pairs}
    counted = [arm for arm in arms if arm.window.pair in used]
    every_s, target = run.spec.pair_every_s, run.spec.pairs
    return Report(
        run=run,
        savings={m: saving(pairs, m, target=target, pair_every_s=every_s) for m in MEASURES},
        guardrails=guardrails([*pairs, *silent]),
        checks=drift_checks(pairs),
        length_distance=length_distance(pairs),
        projection=projection(pairs, month),
        refused=tuple(refused),
        pending=pending,
        revisions=tuple(sorted({arm.window.policy_revision for arm in counted})),
        sources=tuple(sorted({source for arm in counted for source in arm.sources})),
        currency=currency,
    )


def pairs_of(run: Run, arms: Sequence[Arm]) -> tuple[list[Pair], list[Refused], int, list[Pair]]:
    """The pairs that count, by number; those that do not, with why; how many are not over yet; and silent ones.

    Silent is a pair without a ratio because an arm emitted nothing: where requests came and failed, it still says so.
    """
    by_pair: dict[int, dict[str, Arm]] = {}
    for arm in arms:
        by_pair.setdefault(arm.window.pair, {})[arm.window.arm] = arm
    pairs: list[Pair] = []
    silent: list[Pair] = []
    refused, pending = [], 0
    for number in sorted(by_pair):
        both = by_pair[number]
        if len(both) < 2 or any(arm.window.state == "running" for arm in both.values()):
            pending += 1
            continue
        treatment, control = both["treatment"], both["control"]
        reason = _why_not(run, treatment, control)
        pair = _pair(run, number, treatment, control)
        if reason is None:
            pairs.append(pair)
            continue
        refused.append(Refused(number, reason))
        if "aborted" not in (treatment.window.state, control.window.state) and _is_silent(pair):
            silent.append(pair)
    return pairs, refused, pending, silent


def _pair(run: Run, number: int, treatment: Arm, control: Arm) -> Pair:
    at_once = run.spec.unit == "replica"
    first = None if at_once else treatment.window.started_at < control.window.started_at
    start = min(treatment.window.started_at, control.window.started_at)
    ours, theirs = treatment.sums, control.sums
    if ("model" in treatment.sources) != ("model" in control.sources):
        # What was measured is not compared with what was guessed.
        ours, theirs = replace(ours, energy_uj=None), replace(theirs, energy_uj=None)
    return Pair(number, start, first, ours, theirs)


def _is_silent(pair: Pair) -> bool:
    return not (pair.treatment.tokens and pair.control.tokens)


def _why_not(run: Run, treatment: Arm, control: Arm) -> str | None:
    for arm in (treatment, control):
        if arm.window.state == "aborted":
            return arm.window.reason or "aborted"
        if not arm.sums.tokens or not arm.sums.busy_ns:
            return f"nothing was emitted in its {arm.window.arm} window"
    if control.sums.draft_tokens > DRAFTED_MOST * control.sums.tokens:
        return f"{control.sums.draft_tokens} tokens were drafted in its control window"
    ours, theirs = treatment.sums.seconds_ns, control.sums.seconds_ns
    if run.spec.unit == "window" and abs(ours - theirs) > MISSING_MOST * max(ours, theirs):
        return f"{ours / 1e9:.0f} s of machines in one window and {theirs / 1e9:.0f} s in the other"
    return None


def _money(nano: int | None) -> str | None:
    return None if nano is None else f"{nano / 10**9:.2f}"


def _saving_json(found: Saving) -> dict[str, Any]:
    days = None if found.seconds_needed is None else round(found.seconds_needed / DAY_S, 2)
    return {
        "estimand": WHAT[found.measure],
        **_fields(found, "is_clear"),
        "covariates": list(found.covariates),
        "days_needed": days,
    }


def _fields(value: Any, *properties: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in (*value.__dataclass_fields__, *properties)}

"""Where speculation pays, what is left on the table, and whose drafter wants retraining: rows and sentences. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.decision.break_even import Z95, BreakEven, Left, break_even, left_on_the_table
from controlplane.decision.sentence import load_label
from controlplane.store.queries import DecisionRow
from dashboard.speculation_evidence import Evidence, busiest_first

HOUR_S = 3600.0
FELL_LEAST = 0.05
"""A fall of conditional acceptance by less than this is not told."""
LEAST_PAST = 3
"""Decisions of before without which there is no past to compare with."""

UNTRAINED = ("ngram", "none", "lookup")
"""Drafters that have no weights: another one is what can be had in their place."""


@dataclass(frozen=True, slots=True)
class EvenRow:
    """One cohort at one load at which it had steps.

    rung: the best rung over 0; None where the ladder has none. needed, expected: tokens a step. low, high: 95 %
    interval of expected. accept_needed: None where not even full acceptance pays. k_used: mean K, by time. left_share:
    of the time, against the best rung; left_tokens_per_s: of all workers together; left_money: an hour, None where
    unpriced. is_within: what is left is no more than the policy's dead band.
    """

    cohort: str
    load_bucket: int
    rung: int | None
    best: int
    k_used: float
    needed: float
    expected: float
    low: float
    high: float
    accept_needed: float | None
    accept_now: float
    samples: float
    left_share: float
    left_tokens_per_s: float
    left_money: float | None
    is_within: bool
    machine_s: float

    @property
    def load(self) -> str:
        return load_label(self.load_bucket)

    @property
    def pays(self) -> bool | None:
        """Whether speculation pays; None where the interval has both answers in it, or there is no rung to ask of."""
        if self.rung is None:
            return None
        if self.low > self.needed:
            return True
        return False if self.high < self.needed else None


def even_rows(evidence: Evidence, price_per_hour: float | None, cohort: str | None = None) -> list[EvenRow] | None:
    """Of every cohort and load with steps, busiest cohorts first, by load; None where no step times are known."""
    even = break_even(evidence.believed)
    if even is None:
        return None
    left = left_on_the_table(evidence.believed, even)
    return [
        _row(evidence, even, left, price_per_hour, c, b)
        for c in busiest_first(evidence, cohort)
        for b in np.flatnonzero(evidence.believed.steps[c].any(axis=1)).tolist()
    ]


def _row(evidence: Evidence, even: BreakEven, left: Left, price: float | None, c: int, b: int) -> EvenRow:
    believed = evidence.believed
    share = float(left.share[c, b])
    span = evidence.span_s
    tokens_per_s = float(evidence.tokens[c, b]) / span if span > 0 else 0.0
    used = float(left.speed_used[c, b])
    gain = float(left.speed_best[c, b]) / used - 1.0 if used > 0 else 0.0
    machine_h_per_hour = float(evidence.machine_s[c, b]) / span if span > 0 else 0.0
    sd, expected = float(even.sd[c, b]), float(even.expected[c, b])
    needed = float(even.accept_needed[c, b])
    rung = int(even.rung[c, b])
    return EvenRow(
        cohort=believed.names[c],
        load_bucket=b,
        rung=rung if rung > 0 else None,
        best=int(even.best[c, b]),
        k_used=evidence.k_used(c, b),
        needed=float(even.needed[c, b]),
        expected=expected,
        low=expected - Z95 * sd,
        high=expected + Z95 * sd,
        accept_needed=None if np.isnan(needed) else needed,
        accept_now=float(even.accept_now[c, b]),
        samples=float(believed.state.estimate.samples[c]),
        left_share=share,
        left_tokens_per_s=tokens_per_s * max(gain, 0.0),
        left_money=None if price is None else price * machine_h_per_hour * share,
        is_within=share <= float(believed.state.table.tolerance[c]),
        machine_s=float(evidence.machine_s[c, b]),
    )


@dataclass(frozen=True, slots=True)
class TotalLeft:
    """Of all rows: tokens per second of all workers together, money an hour (None: unpriced), share of machine time."""

    tokens_per_s: float
    money: float | None
    share: float


def total_left(rows: Iterable[EvenRow]) -> TotalLeft:
    rows = list(rows)
    money = [row.left_money for row in rows]
    machine = sum(row.machine_s for row in rows)
    return TotalLeft(
        sum(row.left_tokens_per_s for row in rows),
        None if None in money else sum(m for m in money if m is not None),
        sum(row.left_share * row.machine_s for row in rows) / machine if machine > 0 else 0.0,
    )


@dataclass(frozen=True, slots=True)
class Past:
    """Conditional acceptance at the first position as decisions of before have it: mean, spread, and how many."""

    accepted: float
    sd: float
    decisions: int


def pasts(decisions: Iterable[DecisionRow], least_samples: int = 50) -> dict[str, Past]:
    """By cohort, from decisions that rest on enough drafts; those with little are left out.

    What a decision keeps is the estimator's own figure (Decision.accept_at), not accepted over drafted.
    """
    found: dict[str, list[float]] = {}
    for row in decisions:
        if row.samples >= least_samples and row.accept_at and row.accept_at[0] is not None:
            found.setdefault(row.cohort, []).append(row.accept_at[0])
    return {
        cohort: Past(float(np.mean(values)), float(np.std(values)), len(values)) for cohort, values in found.items()
    }


@dataclass(frozen=True, slots=True)
class Retrain:
    """A cohort whose drafter wants retraining, and why in a sentence without the cohort's name."""

    cohort: str
    drafter: str
    sentence: str


def wants_retraining(
    evidence: Evidence, rows: Sequence[EvenRow], before: Mapping[str, Past], cohort: str | None = None
) -> Iterator[Retrain]:
    """Cohorts below break-even where they mostly run, and those whose acceptance fell against their own past.

    Only where the evidence is enough for a decision, and the interval is clear of chance.
    """
    hazards = evidence.believed.hazards
    table = evidence.believed.state.table
    by_cohort: dict[str, list[EvenRow]] = {}
    for row in rows:
        by_cohort.setdefault(row.cohort, []).append(row)
    for c in busiest_first(evidence, cohort):
        name = evidence.believed.names[c]
        samples = float(hazards.examined[c, 0])
        if samples < float(table.min_samples[c]):
            continue
        drafter = evidence.drafters.get(name, "")
        what = "another drafter" if drafter.lower().startswith(UNTRAINED) and "+" not in drafter else "retraining"
        own = by_cohort.get(name, [])
        main = max(own, key=lambda row: (row.machine_s, -row.load_bucket), default=None)
        said = []
        if main is not None and main.pays is False and main.rung is not None:
            needed = "more than 100 %" if main.accept_needed is None else f"{100 * main.accept_needed:.0f} %"
            said.append(
                f"below break-even beside {main.load} running: K {main.rung} brings {main.expected:.2f} tokens a step"
                f" and must bring {main.needed:.2f}; acceptance {100 * main.accept_now:.0f} %, {needed} wanted"
            )
        past = before.get(name)
        now, sd = float(hazards.mean[c, 0]), float(hazards.sd[c, 0])
        if past is not None and past.decisions >= LEAST_PAST:
            fell = past.accepted - now
            if fell > max(FELL_LEAST, Z95 * float(np.hypot(sd, past.sd))):
                said.append(
                    f"position 1 accepts {100 * now:.0f} %, {100 * past.accepted:.0f} % in the {past.decisions}"
                    " decisions before"
                )
        if said:
            yield Retrain(name, drafter, f"wants {what}: {'; '.join(said)}; {samples:.0f} drafts examined")

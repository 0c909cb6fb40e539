"""What-if: what the sliders ask, and what they bring beside what is now. Pure.

Expected figures are controlplane.decision.what_if's, of the same beliefs on both sides; the measured ones stand beside
them so that a reader sees how far the expectation is to be trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from controlplane.decision.break_even import Z95
from controlplane.decision.what_if import Brings, Change, Machine, brings
from controlplane.telemetry import LOAD_BUCKETS
from dashboard import format as fmt
from dashboard.speculation_evidence import Evidence

AS_NOW = "now"
SHARES = (AS_NOW, *(str(share) for share in range(5, 101, 5)))
LOADS = (AS_NOW, *(str(bound) for bound in LOAD_BUCKETS))
FULL = 100
PERCENT = (10, 300, 5)
"""Least, most and step of a slider that is in percent of what is now, which is FULL."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The sliders as they stand. price, acceptance: percent of now; the others AS_NOW or a number in digits."""

    price: int = FULL
    utilisation: str = AS_NOW
    k: str = AS_NOW
    acceptance: int = FULL
    load: str = AS_NOW

    def change(self, cohort: int | None) -> Change:
        """As the decision core takes it. cohort: index of the only one that counts."""
        return Change(
            price=self.price / 100,
            acceptance=self.acceptance / 100,
            utilisation=None if self.utilisation == AS_NOW else int(self.utilisation) / 100,
            load_bucket=None if self.load == AS_NOW else LOAD_BUCKETS.index(int(self.load)),
            k=None if self.k == AS_NOW else int(self.k),
            cohort=cohort,
        )


def rungs(evidence: Evidence, cohort: int | None) -> tuple[str, ...]:
    """K that can be asked for: the rungs of the ladder, or of all ladders together."""
    table = evidence.believed.state.table.is_rung
    own = table if cohort is None else table[cohort : cohort + 1]
    return (AS_NOW, *(str(k) for k in np.flatnonzero(own.any(axis=0))))


@dataclass(frozen=True, slots=True)
class Figure:
    """One line: texts of what is expected now, measured, and expected then; change as a share of now, None where either
    is not known. is_better_low: whether less of it is better.
    """

    name: str
    now: str
    measured: str
    then: str
    change: float | None
    is_better_low: bool

    @property
    def difference(self) -> str:
        """`+12.0 %`, `none`, or a dash where it is not known."""
        if self.change is None:
            return fmt.NOTHING
        return "none" if abs(self.change) < 5e-5 else f"{100 * self.change:+.1f} %"


@dataclass(frozen=True, slots=True)
class WhatIf:
    """figures: speed, TPOT, money, joules. interval: 95 % of the speed asked about, as a share of it, from acceptance
    alone. now, then: the expectations themselves.
    """

    figures: tuple[Figure, ...]
    interval: float
    now: Brings
    then: Brings


@dataclass(frozen=True, slots=True)
class Measured:
    """What the windows came to, of all their cohorts or of one; None where it is not known."""

    tokens_per_s: float | None
    tpot_s: float | None
    money: float | None
    joules: float | None


def measured(evidence: Evidence, machine: Machine, cohort: int | None) -> Measured:
    """tokens_per_s: emitted by steps over the machine time of steps. tpot_s: wall seconds of steps over their tokens.

    money, joules: of a million tokens with idle and prefill in them, of all cohorts together only: idle is nobody's.
    """
    rows = slice(None) if cohort is None else slice(cohort, cohort + 1)
    tokens, output_s = float(evidence.tokens[rows].sum()), float(evidence.machine_s[rows].sum())
    wall = float(evidence.believed.seconds[rows].sum())
    money = joules = None
    if cohort is None and tokens > 0:
        whole_s = evidence.busy_s + evidence.idle_s
        money = None if machine.price_per_hour is None else machine.price_per_hour / 3600 * whole_s / tokens * 1e6
        joules = None if evidence.energy_j is None else evidence.energy_j / tokens * 1e6
    return Measured(
        tokens / output_s if output_s > 0 and tokens > 0 else None,
        wall / tokens if tokens > 0 and wall > 0 else None,
        money,
        joules,
    )


def what_if(
    evidence: Evidence, price_per_hour: float | None, asked: Asked, currency: str | None, cohort: int | None
) -> WhatIf | None:
    """Both expectations and their figures; None where step times or steps are missing."""
    machine, change = evidence.machine(price_per_hour), asked.change(cohort)
    now, then = (brings(evidence.believed, machine, each) for each in (change.as_now, change))
    if now is None or then is None:
        return None
    seen = measured(evidence, machine, cohort)
    lines = (
        _figure("Tokens per second", now.tokens_per_s, seen.tokens_per_s, then.tokens_per_s, fmt.rate, low=False),
        _figure("TPOT", now.tpot_s, seen.tpot_s, then.tpot_s, _milliseconds, low=True),
        _figure("Cost per 1M tokens", now.money, seen.money, then.money, lambda v: fmt.money(v, currency), low=True),
        _figure("Energy per 1M tokens", now.joules, seen.joules, then.joules, _joules, low=True),
    )
    return WhatIf(lines, Z95 * then.sd / then.tokens_per_s, now, then)


def _figure(
    name: str, now: float | None, seen: float | None, then: float | None, text: Callable[[float | None], str], *,
    low: bool,
) -> Figure:  # fmt: skip
    change = then / now - 1.0 if now and then is not None else None
    return Figure(name, text(now), fmt.NOTHING if seen is None else text(seen), text(then), change, low)


def _milliseconds(value: float | None) -> str:
    return fmt.NOTHING if value is None else f"{fmt.number(1000 * value)} ms"


def _joules(value: float | None) -> str:
    return fmt.NOT_MEASURED if value is None else f"{fmt.number(value)} J"


FIGURE_COLUMNS = ("Figure", "Expected now", "Measured", "What if", "Difference")


def figure_table(found: WhatIf) -> pd.DataFrame:
    return pd.DataFrame(
        [(f.name, f.now, f.measured, f.then, f.difference) for f in found.figures], columns=list(FIGURE_COLUMNS)
    )


def by_rung(
    evidence: Evidence, price_per_hour: float | None, asked: Asked, cohort: int | None, ks: Sequence[str]
) -> pd.DataFrame:
    """Tokens per second at every K, all else as asked, with the 95 % interval that acceptance leaves it."""
    machine, rows = evidence.machine(price_per_hour), []
    for k in (k for k in ks if k != AS_NOW):
        found = brings(evidence.believed, machine, replace(asked, k=k).change(cohort))
        if found is not None:
            spread = Z95 * found.sd
            rows.append((int(k), found.tokens_per_s, found.tokens_per_s - spread, found.tokens_per_s + spread))
    return pd.DataFrame(rows, columns=["k", "tokens_per_s", "low", "high"])

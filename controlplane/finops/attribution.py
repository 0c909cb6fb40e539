"""Who used what part of a window: exact integer splits by largest remainder.

A window's machine time (nanoseconds) or energy (microjoules) has a busy part, busy/seconds of it, and an idle part.
The busy part is split over the cohorts by the positions computed for them (prefill, verification with its rejected
drafts, drafting). Nothing is rounded away: cohorts + idle = the window, for every window and every sum of windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.telemetry import CohortWindow, WorkerWindow

NS_PER_SECOND = 1_000_000_000
NS_PER_HOUR = 3600 * NS_PER_SECOND


def split(total: int, weights: Sequence[int]) -> list[int]:
    """`total` in parts proportional to `weights`, summing to `total` exactly (largest remainder, ties to the first).

    All weights zero: even parts, so that nothing disappears. Raises ValueError on a negative number, or when there
    is something to split and nobody to give it to.
    """
    if total < 0 or any(w < 0 for w in weights):
        raise ValueError(f"cannot split {total} by {list(weights)}: neither may be negative")
    if not weights:
        if total:
            raise ValueError(f"cannot split {total} among nobody")
        return []
    whole = sum(weights)
    if not whole:
        weights, whole = [1] * len(weights), len(weights)
    parts = [total * w // whole for w in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: -(total * weights[i] % whole))
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    return parts


def nanoseconds(seconds: float) -> int:
    """Whole nanoseconds of a duration; a clock that went backwards counts as no time."""
    return max(round(seconds * NS_PER_SECOND), 0)


@dataclass(frozen=True, slots=True)
class Share:
    """One cohort's part of a window, and how much of that part went into rejected draft positions."""

    cohort: str
    amount: int
    wasted: int


@dataclass(frozen=True, slots=True)
class Attribution:
    """A window's amount, taken apart: total = sum of the shares' amounts + idle."""

    total: int
    shares: tuple[Share, ...]
    idle: int


def rejected_positions(window: CohortWindow) -> int:
    """Positions that the target verified for draft tokens which were not kept."""
    return window.draft_tokens - window.accepted_tokens


def attribute(total: int, window: WorkerWindow) -> Attribution:
    """`total` (ns or uJ of that window, integer) over the window's cohorts and idle.

    A window that computed no position is idle as a whole, even if its worker says it was busy.
    """
    seconds_ns = nanoseconds(window.seconds)
    busy_ns = min(nanoseconds(window.busy_s), seconds_ns)
    weights = [c.positions for c in window.cohorts]
    if not seconds_ns or not sum(weights):
        return Attribution(total, tuple(Share(c.cohort, 0, 0) for c in window.cohorts), total)
    busy, idle = split(total, (busy_ns, seconds_ns - busy_ns))
    shares = []
    for cohort, amount in zip(window.cohorts, split(busy, weights), strict=True):
        rejected = min(rejected_positions(cohort), cohort.positions)
        wasted = split(amount, (rejected, cohort.positions - rejected))[0] if cohort.positions else 0
        shares.append(Share(cohort.cohort, amount, wasted))
    return Attribution(total, tuple(shares), idle)


def attribute_time(window: WorkerWindow) -> Attribution:
    """Machine time of the window in nanoseconds."""
    return attribute(nanoseconds(window.seconds), window)


def attribute_energy(window: WorkerWindow) -> Attribution | None:
    """Energy of the window in microjoules; None where it was not measured."""
    return None if window.energy_uj is None else attribute(window.energy_uj, window)


def cost_of_time(machine_ns: int, per_hour_nano: int) -> int:
    """Bill in nano-units for that much machine time, rounded half to even: ns * price / (3600 * 10^9)."""
    whole, rest = divmod(machine_ns * per_hour_nano, NS_PER_HOUR)
    return whole + (2 * rest > NS_PER_HOUR or (2 * rest == NS_PER_HOUR and whole % 2 == 1))


def cost_by_part(machine_ns: Sequence[int], per_hour_nano: int) -> list[int]:
    """Nano-units for each part of machine time; together exactly the bill of all of it (idle must be one of them)."""
    total = sum(machine_ns)
    return split(cost_of_time(total, per_hour_nano), machine_ns) if total else [0] * len(machine_ns)


def window_cost(window: WorkerWindow, per_hour_nano: int) -> Attribution:
    """One window's bill in nano-units, by cohort and idle."""
    time = attribute_time(window)
    *amounts, idle = cost_by_part([*(s.amount for s in time.shares), time.idle], per_hour_nano)
    shares = tuple(
        Share(s.cohort, amount, split(amount, (s.wasted, s.amount - s.wasted))[0] if s.amount else 0)
        for s, amount in zip(time.shares, amounts, strict=True)
    )
    return Attribution(sum(amounts) + idle, shares, idle)

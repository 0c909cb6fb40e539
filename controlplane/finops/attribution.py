"""Who used what part of a window: exact integer splits by largest remainder.

A window's machine time (nanoseconds) has a busy and an idle part. The busy part is taken apart by measured seconds into
three pools, prefill, verification and drafting, and each pool is split over cohorts and tenants by the positions that
were computed for them in it. Energy (microjoules) follows the same pools. Nothing is rounded away: uses + idle = the
window, for every window and every sum of windows. Why so: docs/adr/0005-measured-seconds-and-tenants-in-the-ledger.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from controlplane.telemetry import TenantUse, WorkerWindow

Direction = Literal["input", "output"]
"""input: prefill. output: verification, with its rejected drafts, and drafting."""

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


def first_of_two(total: int, weight: int, rest: int) -> int:
    """The first part of `split(total, (weight, rest))`, where that is asked very often: none negative, one over 0."""
    part, remainder = divmod(total * weight, weight + rest)
    # What this one lacks to a whole is the other's remainder; a tie is the first's.
    return part + (remainder > 0 and 2 * remainder >= weight + rest)


def nanoseconds(seconds: float) -> int:
    """Whole nanoseconds of a duration; a clock that went backwards counts as no time."""
    return max(round(seconds * NS_PER_SECOND), 0)


class Use(NamedTuple):
    """One tenant's part of a window in one direction.

    ns: machine time, of which wasted_ns went into draft tokens that were not kept: verifying and drafting them. uj,
    wasted_uj: microjoules likewise, None where energy was not measured. tokens: prompt tokens, or completion tokens.
    """

    cohort: str
    tenant: str | None
    direction: Direction
    ns: int
    wasted_ns: int
    uj: int | None
    wasted_uj: int | None
    tokens: int


@dataclass(frozen=True, slots=True)
class WindowUse:
    """A window taken apart: total_ns = sum of the uses' ns + idle_ns, and likewise microjoules where measured."""

    uses: tuple[Use, ...]
    idle_ns: int
    idle_uj: int | None
    total_ns: int
    total_uj: int | None


class _Pool(NamedTuple):
    """A part of the busy time and the positions, by claim, that it went into."""

    ns: int
    positions: list[int]


class _Parts(NamedTuple):
    """One claim's amounts out of the three pools, ns or microjoules."""

    prefill: int
    verification: int
    drafting: int

    def wasted(self, use: TenantUse) -> int:
        """What of it went into draft tokens that were not kept; drafting that gave no token is wasted whole."""
        rejected = min(max(use.rejected_tokens, 0), use.verify_positions)
        verified = first_of_two(self.verification, rejected, use.verify_positions - rejected) if rejected else 0
        if not self.drafting:
            return verified
        kept = min(use.accepted_tokens, use.draft_tokens)
        return verified + self.drafting - (first_of_two(self.drafting, kept, use.draft_tokens - kept) if kept else 0)


def window_use(window: WorkerWindow) -> WindowUse:
    """Machine time and energy of the window over cohorts, tenants and directions, and idle.

    Where no position was computed or no time was busy, the window is idle as a whole.
    """
    total_ns, total_uj = nanoseconds(window.seconds), window.energy_uj
    claims = [(cohort.cohort, use) for cohort in window.cohorts for use in cohort.by_tenant]
    busy_ns = min(nanoseconds(window.busy_s), total_ns)
    pools = _pools(window, busy_ns, [use for _, use in claims])
    active_ns = sum(pool.ns for pool in pools)
    by_time = _dealt(active_ns, pools, len(claims))
    if total_uj is None:
        by_energy, active_uj = None, 0
    else:
        active_uj = _active_uj(window, total_uj, active_ns, total_ns)
        by_energy = _dealt(active_uj, pools, len(claims))
    uses: list[Use] = []
    for i, (cohort, use) in enumerate(claims):
        uses += _uses(cohort, use, by_time[i], None if by_energy is None else by_energy[i])
    return WindowUse(
        tuple(uses), total_ns - active_ns, None if total_uj is None else total_uj - active_uj, total_ns, total_uj
    )


def _active_uj(window: WorkerWindow, total_uj: int, active_ns: int, total_ns: int) -> int:
    """Energy beyond idle: over the idle power's where that is known, else the busy share of the time."""
    if not active_ns:
        return 0
    if window.idle_energy_uj is not None:
        return total_uj - min(window.idle_energy_uj, total_uj)
    return split(total_uj, (active_ns, total_ns - active_ns))[0]


def _pools(window: WorkerWindow, busy_ns: int, uses: list[TenantUse]) -> list[_Pool]:
    """Busy time as verification, prefill and drafting; none where nothing was computed.

    Time of a pool that nobody has positions in goes to the first one that somebody has. Without step times (a window
    that was made before workers sent them) the pools are as large as their positions.
    """
    prefill = [use.prefill_positions for use in uses]
    verification = [use.verify_positions for use in uses]
    computed = [use.draft_positions for use in uses]
    # A drafter that computes nothing (n-gram) leaves the tokens it found as the measure.
    drafting = computed if any(computed) else [use.draft_tokens for use in uses]
    positions = (verification, prefill, drafting)
    takers = [i for i, each in enumerate(positions) if any(each)]
    if not takers:
        return []
    if window.latency:
        step_ns = min(nanoseconds(sum(cell.seconds for cell in window.latency)), busy_ns)
        # A drafter that looked and found nothing drafted nothing for anyone: that is a cost of the step.
        drafted = (c for c in window.latency if any(computed) or c.positions > c.sequences)
        draft_ns = min(nanoseconds(sum(cell.draft_seconds for cell in drafted)), step_ns)
        ns = [step_ns - draft_ns, busy_ns - step_ns, draft_ns]
    else:
        ns = split(busy_ns, (sum(verification), sum(prefill), sum(computed)))
    for i in range(len(ns)):
        if i not in takers:
            ns[takers[0]] += ns[i]
    return [_Pool(ns[i] if i in takers else 0, each) for i, each in enumerate(positions)]


def _dealt(amount: int, pools: list[_Pool], claims: int) -> list[_Parts]:
    """`amount` over the pools as their time is, then over the claims on each."""
    if not amount:
        return [_Parts(0, 0, 0)] * claims
    of_pools = split(amount, [pool.ns for pool in pools])
    verification, prefill, drafting = (
        split(of_pool, pool.positions) if of_pool else [0] * claims
        for of_pool, pool in zip(of_pools, pools, strict=True)
    )
    return [_Parts(*parts) for parts in zip(prefill, verification, drafting, strict=True)]


def _uses(cohort: str, use: TenantUse, time: _Parts, energy: _Parts | None) -> Iterable[Use]:
    if use.prefill_positions or use.input_tokens:
        uj, none = (None, None) if energy is None else (energy.prefill, 0)
        yield Use(cohort, use.tenant, "input", time.prefill, 0, uj, none, use.input_tokens)
    if use.verify_positions or use.draft_positions or use.emitted_tokens:
        uj, wasted = (None, None) if energy is None else (energy.verification + energy.drafting, energy.wasted(use))
        ns = time.verification + time.drafting
        yield Use(cohort, use.tenant, "output", ns, time.wasted(use), uj, wasted, use.emitted_tokens)


class Wasted(NamedTuple):
    """What a cohort's speculation spent on draft tokens that were not kept: to verify them and to draft them.

    ns: machine time. cost_nano: nano-units of the currency, None where there is no price. uj: microjoules, of the uses
    that were measured; None where none was.
    """

    ns: int
    cost_nano: int | None
    uj: int | None


def wasted_speculation(uses: Iterable[Use], per_hour_nano: int | None) -> dict[str, Wasted]:
    """By cohort, what its tenants' uses of machines at that price (nano-units an hour) wasted."""
    ns: dict[str, int] = {}
    uj: dict[str, int] = {}
    for use in uses:
        ns[use.cohort] = ns.get(use.cohort, 0) + use.wasted_ns
        if use.wasted_uj is not None:
            uj[use.cohort] = uj.get(use.cohort, 0) + use.wasted_uj
    return {
        cohort: Wasted(spent, None if per_hour_nano is None else cost_of_time(spent, per_hour_nano), uj.get(cohort))
        for cohort, spent in sorted(ns.items())
    }


def cost_of_time(machine_ns: int, per_hour_nano: int) -> int:
    """Bill in nano-units for that much machine time, rounded half to even: ns * price / (3600 * 10^9)."""
    return rounded_cost(machine_ns * per_hour_nano)


def cost_of_times(machine_ns: Iterable[int], per_hour_nano: int) -> int:
    """The sum of cost_of_time over them, each rounded: in one loop, as a year of hours has many thousand."""
    total = 0
    for ns in machine_ns:
        whole, rest = divmod(ns * per_hour_nano, NS_PER_HOUR)
        twice = 2 * rest
        if twice > NS_PER_HOUR or (twice == NS_PER_HOUR and whole % 2 == 1):
            whole += 1
        total += whole
    return total


def rounded_cost(exact: int) -> int:
    """Nano-units, half to even, of machine time in ns times its price in nano-units an hour, or of a sum of those."""
    whole, rest = divmod(exact, NS_PER_HOUR)
    return whole + (2 * rest > NS_PER_HOUR or (2 * rest == NS_PER_HOUR and whole % 2 == 1))


def cost_by_part(machine_ns: Sequence[int], per_hour_nano: int) -> list[int]:
    """Nano-units for each part of machine time; together exactly the bill of all of it (idle must be one of them)."""
    total = sum(machine_ns)
    return split(cost_of_time(total, per_hour_nano), machine_ns) if total else [0] * len(machine_ns)

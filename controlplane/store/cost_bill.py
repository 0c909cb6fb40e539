"""From usage and prices to a report: the bill of the range, split over rows, rest and idle without a remainder. Pure.

The bill is the sum over hours and skus of machine time x price, each rounded once to the nano-unit. Every part's weight
in it is the exact product of its nanoseconds and their price; the bill is split by these weights by largest remainder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from controlplane.finops.attribution import cost_of_times, split
from controlplane.finops.pricing import Prices
from controlplane.store.cost_claims import Claim, Idle, Share, plus, shares_of_idle
from controlplane.store.cost_dimensions import OF_MACHINES
from controlplane.store.cost_pieces import HOUR_S, Pieces
from controlplane.store.cost_rows import CostReport, CostRow, IdleRule
from controlplane.store.cost_usage import Group
from controlplane.store.rollup import IDLE

NS_PER_S = 1_000_000_000


class Asked(NamedTuple):
    """What a report is asked: end of the range (unix seconds), dimension, rule for idle, whether there is a filter."""

    end: float
    by: str
    rule: IdleRule
    is_filtered: bool


class Priced(NamedTuple):
    """Prices of one basis for the pieces of a range: (piece, sku) -> nano-units an hour, None = unpriced."""

    per_hour: Mapping[tuple[int, str], int | None]
    unpriced: tuple[str, ...]
    warnings: tuple[str, ...]


def prices_of(found: Pieces, prices: Prices, basis: str, end: float) -> Priced:
    """The price of each sku in each piece; and a line for each that is missing, or was read too long before `end`."""
    per_hour: dict[tuple[int, str], int | None] = {}
    unpriced: dict[str, None] = {}
    warnings: dict[str, None] = {}
    for i, sku in sorted(found.machine_ns):
        price = prices.price_at(sku, basis, found.pieces[i].hour * HOUR_S)
        per_hour[i, sku] = None if price is None else price.per_hour_nano
        if price is None:
            unpriced[prices.why_unpriced(sku, basis, found.pieces[i].start)] = None
        elif (line := prices.why_stale(price, end)) is not None:
            warnings[line] = None
    return Priced(per_hour, tuple(unpriced), tuple(warnings))


def bill_of(found: Pieces, priced: Priced) -> int:
    """Nano-units of all machine time that has a price."""
    total = 0
    for key, hours in found.machine_ns.items():
        per_hour = priced.per_hour[key]
        if per_hour is not None:
            total += cost_of_times(hours, per_hour)
    return total


def report_of(found: Pieces, groups: Iterable[Group], prices: Prices, basis: str, asked: Asked) -> CostReport:
    """The report of one basis. What is not known is None in the rows, and named in the report's lines."""
    priced = prices_of(found, prices, basis, asked.end)
    claims, pools, idle_of_rest = _gather(groups, priced, asked.by)
    shares = shares_of_idle(claims, pools, asked.rule, stays_at_home=asked.by in OF_MACHINES)
    is_spread = asked.rule != "none" and bool(claims)
    idle_weights = [sum(pool.money.exact for pool in pools) * (not is_spread), idle_of_rest.money.exact]
    spread_weights = [share.exact if is_spread else 0 for share in shares]
    work_weights = [claim.money[direction].exact for claim in claims for direction in ("input", "output")]
    costs = split(bill_of(found, priced), [*idle_weights, *spread_weights, *work_weights])
    idle = _idle_row([] if is_spread else pools, costs[0])
    apart = _idle_row([idle_of_rest], costs[1])
    of_work = costs[2 + len(claims) :]
    of_idle = costs[2 : 2 + len(claims)]
    if claims and not is_spread:  # not in the rows' cost: for the figures that show it beside
        of_idle = split(costs[0], [share.exact for share in shares])
    rows = [
        _row(claim, of_work[2 * i : 2 * i + 2], share, of_idle[i], is_spread=is_spread)
        for i, (claim, share) in enumerate(zip(claims, shares, strict=True))
    ]
    if asked.by in OF_MACHINES:
        own: dict[str, list[Idle]] = {}
        for pool in pools:
            own.setdefault(pool.key, []).append(pool)
        rows = [
            _with_own_idle(row, claim, own.get(claim.key, []) if claim.is_taken else [])
            for row, claim in zip(rows, claims, strict=True)
        ]
    inside = [row for row, claim in zip(rows, claims, strict=True) if claim.is_taken]
    outside = [row for row, claim in zip(rows, claims, strict=True) if not claim.is_taken]
    idle_ns = sum(pool.ns for pool in (*pools, idle_of_rest))
    idle_rows = [*(rows if is_spread else ()), idle, apart]
    total = replace(
        merged("total", [*rows, idle, apart]),
        has_idle=True,
        idle_ns=idle_ns,
        idle_cost_nano=_known_sum(row.idle_cost_nano for row in idle_rows),
        idle_uj=_measured_sum(row.idle_uj for row in idle_rows),
    )
    return CostReport(
        rows=tuple(inside),
        idle=idle,
        total=total,
        currency=prices.currency,
        basis=basis,
        machine_s=sum(map(sum, found.machine_ns.values())) / NS_PER_S,
        unpriced=priced.unpriced,
        warnings=(*priced.warnings, *found.warnings),
        idle_s=idle_ns / NS_PER_S,
        rest=merged("rest", [*outside, apart]) if asked.is_filtered else None,
        idle_rule=asked.rule,
    )


def _gather(groups: Iterable[Group], priced: Priced, by: str) -> tuple[list[Claim], list[Idle], Idle]:
    """Claims, those inside the filter first; idle inside the filter, by sku and value; idle outside of it."""
    claims: dict[tuple[bool, str], Claim] = {}
    pools: dict[tuple[str, str], Idle] = {}
    idle_of_rest = Idle("", "")
    for group in groups:
        per_hour = priced.per_hour.get((group.piece, group.sku))
        if group.direction == IDLE and not group.is_taken:
            idle_of_rest.add(group.amounts, per_hour, group.energy_source)
            continue
        if group.direction == IDLE:
            pool = pools.setdefault((group.sku, group.key), Idle(group.sku, group.key))
            pool.add(group.amounts, per_hour, group.energy_source)
            if by not in OF_MACHINES:
                continue
        claim = claims.setdefault((not group.is_taken, group.key), Claim(group.key, group.is_taken))
        if group.direction != IDLE:
            claim.add(group.sku, group.direction, group.amounts, per_hour, group.energy_source)
    return [claims[key] for key in sorted(claims)], list(pools.values()), idle_of_rest


def _row(claim: Claim, of_work: Sequence[int], share: Share, of_idle: int, *, is_spread: bool) -> CostRow:
    """One claim as a row; of_work: its input and output cost, of_idle: what fell to it of idle's, in nano-units."""
    prefill, decode = claim.money["input"], claim.money["output"]
    input_cost = None if prefill.unpriced_ns else of_work[0]
    output_cost = None if decode.unpriced_ns else of_work[1]
    idle_cost = None if share.unpriced_ns else of_idle
    asked, given = claim.sums["input"], claim.sums["output"]
    energy = plus(asked.uj, given.uj)
    wasted = output_cost
    if output_cost:
        wasted = split(output_cost, (claim.wasted, decode.exact - claim.wasted))[0]
    return CostRow(
        claim.key,
        input_tokens=asked.tokens,
        emitted_tokens=given.tokens,
        cost_nano=_known_sum((input_cost, output_cost, *([idle_cost] if is_spread else ()))),
        energy_uj=plus(energy, share.uj) if is_spread else energy,
        energy_source=_sources(claim.sources),
        wasted_cost_nano=wasted,
        wasted_uj=plus(asked.wasted_uj, given.wasted_uj),
        requests=given.requests,
        measured_tokens=given.measured_tokens,
        input_cost_nano=input_cost,
        output_cost_nano=output_cost,
        idle_cost_nano=idle_cost,
        idle_uj=share.uj,
        has_idle=is_spread,
        machine_ns=asked.ns + given.ns,
        steps=given.steps,
        planned_k_steps=given.planned_k_steps,
        draft_tokens=given.draft_tokens,
        accepted_tokens=given.accepted_tokens,
        wasted_ns=given.wasted_ns,
        spec_steps=given.spec_steps,
    )


def _with_own_idle(row: CostRow, claim: Claim, own: Sequence[Idle]) -> CostRow:
    """With the idle time that has this value of the dimension; nothing outside of the filter."""
    sources = {source for pool in own for source in pool.sources}
    return replace(row, idle_ns=sum(pool.ns for pool in own), energy_source=_sources({*claim.sources, *sources}))


def _idle_row(pools: Sequence[Idle], cost: int) -> CostRow:
    priced = None if any(pool.money.unpriced_ns for pool in pools) else cost
    energy = _measured_sum(pool.uj for pool in pools)
    return CostRow(
        "idle",
        cost_nano=priced,
        energy_uj=energy,
        energy_source=_sources({source for pool in pools for source in pool.sources}),
        idle_cost_nano=priced,
        idle_uj=energy,
        has_idle=True,
        idle_ns=sum(pool.ns for pool in pools),
    )


SUMMED = ("input_tokens", "emitted_tokens", "requests", "measured_tokens", "machine_ns", "steps", "planned_k_steps",
          "draft_tokens", "accepted_tokens", "wasted_ns")  # fmt: skip
PRICED = ("cost_nano", "wasted_cost_nano", "input_cost_nano", "output_cost_nano", "idle_cost_nano")
MEASURED = ("energy_uj", "wasted_uj", "idle_uj")


def merged(key: str, rows: Sequence[CostRow]) -> CostRow:
    """The sum of rows of one report; with an unpriced part the cost is unpriced."""
    sums: dict[str, Any] = {name: sum(getattr(row, name) for row in rows) for name in SUMMED}
    sums |= {name: _known_sum(getattr(row, name) for row in rows) for name in PRICED}
    sums |= {name: _measured_sum(getattr(row, name) for row in rows) for name in MEASURED}
    sums["spec_steps"] = _known_sum(row.spec_steps for row in rows)
    has_idle = any(row.has_idle for row in rows)
    return CostRow(key, energy_source=_sources(_told(row) for row in rows), has_idle=has_idle, **sums)


def _known_sum(amounts: Iterable[int | None]) -> int | None:
    """A sum with an unknown part is unknown: a partial bill would look like a low one."""
    total = 0
    for amount in amounts:
        if amount is None:
            return None
        total += amount
    return total


def _measured_sum(amounts: Iterable[int | None]) -> int | None:
    """Sum of what was measured; None when nothing was."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None


def _told(row: CostRow) -> str:
    """The row's sources; "" where it has no window."""
    return row.energy_source if row.machine_ns or row.idle_ns or row.energy_uj is not None else ""


def _sources(names: Iterable[str]) -> str:
    return "+".join(sorted({part for name in names for part in name.split("+") if part})) or "none"

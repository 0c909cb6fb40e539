"""Who bears what of a bill before it is rounded: the rows' claims, and idle time spread over them. Pure integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from controlplane.finops.attribution import split
from controlplane.store.cost_rows import IdleRule
from controlplane.store.rollup import Amounts


@dataclass(slots=True)
class Money:
    """exact: the sum of nanoseconds x nano-units an hour of what has a price. unpriced_ns: time that has none."""

    exact: int = 0
    unpriced_ns: int = 0

    def add(self, ns: int, per_hour_nano: int | None) -> None:
        if per_hour_nano is None:
            self.unpriced_ns += ns
        else:
            self.exact += ns * per_hour_nano


@dataclass(slots=True)
class Idle:
    """Idle time of one sku, and of one value of the dimension where idle time has one."""

    sku: str
    key: str
    money: Money = field(default_factory=Money)
    ns: int = 0
    uj: int | None = None
    sources: set[str] = field(default_factory=set)

    def add(self, amounts: Amounts, per_hour_nano: int | None, energy_source: str) -> None:
        self.money.add(amounts.ns, per_hour_nano)
        self.ns += amounts.ns
        self.uj = plus(self.uj, amounts.uj)
        self.sources.add(energy_source)


@dataclass(slots=True)
class Claim:
    """One row to be: the work of one value of the dimension, inside (is_taken) or outside of the filter.

    ns_of, uj_of: busy time and active energy by sku, the weights by which a sku's idle is spread.
    """

    key: str
    is_taken: bool
    money: dict[str, Money] = field(default_factory=lambda: {"input": Money(), "output": Money()})
    wasted: int = 0
    sums: dict[str, Amounts] = field(default_factory=lambda: {"input": Amounts(), "output": Amounts()})
    ns_of: dict[str, int] = field(default_factory=dict)
    uj_of: dict[str, int] = field(default_factory=dict)
    sources: set[str] = field(default_factory=set)

    def add(self, sku: str, direction: str, amounts: Amounts, per_hour_nano: int | None, energy_source: str) -> None:
        self.money[direction].add(amounts.ns, per_hour_nano)
        self.wasted += amounts.wasted_ns * (per_hour_nano or 0)
        self.sums[direction] = self.sums[direction].plus(amounts)
        self.ns_of[sku] = self.ns_of.get(sku, 0) + amounts.ns
        self.uj_of[sku] = self.uj_of.get(sku, 0) + (amounts.uj or 0)
        self.sources.add(energy_source)


class Share(NamedTuple):
    """A claim's part of idle: money before rounding (as in Money), and microjoules."""

    exact: int = 0
    unpriced_ns: int = 0
    uj: int | None = None

    def plus(self, other: Share) -> Share:
        return Share(self.exact + other.exact, self.unpriced_ns + other.unpriced_ns, plus(self.uj, other.uj))


def plus(one: int | None, other: int | None) -> int | None:
    """Sum of what is known; None when neither is."""
    return other if one is None else one if other is None else one + other


def shares_of_idle(
    claims: Sequence[Claim], pools: Sequence[Idle], rule: IdleRule, *, stays_at_home: bool
) -> list[Share]:
    """Each claim's part of the pools, in the order of the claims; together exactly the pools, if there is any claim.

    weighted (and none): a sku's idle by busy time on that sku, by all busy time where nobody was busy on it, in even
    parts where nobody was busy at all; energy by active energy. even: each value of the dimension the same.
    stays_at_home: weighted idle that has a value of the dimension is borne by that value's claim inside the filter.
    """
    shares = [Share() for _ in claims]
    if not claims:
        return shares
    if rule == "even":
        everything = Share(
            sum(pool.money.exact for pool in pools), sum(pool.money.unpriced_ns for pool in pools),
            None if all(pool.uj is None for pool in pools) else sum(pool.uj or 0 for pool in pools),
        )  # fmt: skip
        return _evenly(claims, everything)
    at_home = {claim.key: i for i, claim in enumerate(claims) if claim.is_taken}
    for pool in pools:
        whole = Share(pool.money.exact, pool.money.unpriced_ns, pool.uj)
        if stays_at_home:
            i = at_home[pool.key]
            shares[i] = shares[i].plus(whole)
            continue
        busy = [claim.ns_of.get(pool.sku, 0) for claim in claims]
        weights = busy if any(busy) else [sum(claim.ns_of.values()) for claim in claims]
        active = [claim.uj_of.get(pool.sku, 0) for claim in claims]
        parts = _spread(whole, weights, active if any(active) else weights)
        shares = [share.plus(part) for share, part in zip(shares, parts, strict=True)]
    return shares


def _spread(whole: Share, weights: Sequence[int], energy_weights: Sequence[int]) -> list[Share]:
    exact, unpriced = split(whole.exact, weights), split(whole.unpriced_ns, weights)
    energy = [None] * len(weights) if whole.uj is None else split(whole.uj, energy_weights)
    return [Share(*parts) for parts in zip(exact, unpriced, energy, strict=True)]


def _evenly(claims: Sequence[Claim], whole: Share) -> list[Share]:
    """Even parts by key; a key that is both inside and outside of the filter divides its own by busy time."""
    of_key: dict[str, list[int]] = {}
    for i, claim in enumerate(claims):
        of_key.setdefault(claim.key, []).append(i)
    shares = [Share() for _ in claims]
    for places, part in zip(of_key.values(), _spread(whole, [1] * len(of_key), [1] * len(of_key)), strict=True):
        weights = [sum(claims[i].ns_of.values()) for i in places]
        for i, share in zip(places, _spread(part, weights, weights), strict=True):
            shares[i] = share
    return shares

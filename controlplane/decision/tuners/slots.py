"""Which draft positions of a mixed batch pay for the time they add, all cohorts together: a price, and a depth.

At a load of n sequences and a greatest depth d, the positions (cohort, j < d) are taken in the order of what they
bring, and the batch's tokens over its step time is looked up after each:

    V*, d* = argmax over V and d of (n + sum_{i<=V} S_i) / T(n, V, d)

over all of both, since T is a staircase (adaptive.md 7, the ragged mode). The depth is apart from the price because a
drafter's pass costs nearly the same for one sequence as for all: whether it is run is decided for the batch. The price
lies between the last position taken and the first one left, so a sequence that drafts while its positions bring at
least the price, and no deeper than d*, reproduces V* whatever the mix of the moment. For energy and for cost, T is what
a step's seconds and positions are charged.

Where two choices are worth the same, estimates that move a little would have the batch go to and fro between them: what
was priced in last time stays so until something brings a little more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controlplane.decision.batch_choice import BAND, NEVER_SILENT
from controlplane.decision.charges import TIME, Charges, Tariff
from controlplane.decision.estimate import Outlook
from controlplane.decision.latency import AT_BUCKETS, LOADS, StepTimes, forward_seconds, uniform_seconds
from controlplane.decision.observation import RUNGS, Flags, Floats, Ints
from controlplane.decision.policy_table import PolicyTable
from controlplane.telemetry import LOAD_BUCKETS, MAX_K

AT_LOADS: Ints = np.searchsorted(LOAD_BUCKETS, LOADS)
"""[len(LOADS)]: the load bucket of each."""

NOTHING_PAYS = 1.0
"""No position brings a whole token for certain."""

BINS = 64
"""With more positions than this times MAX_K, those of a depth that bring about the same are taken together."""


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """price, depth: [len(LOADS)], tokens a position must bring, and the deepest draft worth a pass of the drafter.

    least, deepest: [load buckets], the lowest price and the greatest depth that hold anywhere within a bucket. At a
    bucket's bound, and whether or not anything pays there: position_cost, tokens lost to a position more a sequence;
    pass_cost, tokens a sequence lost to one more pass of the drafter; start_cost, to drafting anything at all. chance:
    `worth`; drafted: as in Outlook; charges: what steps were charged.
    """

    price: Floats
    depth: Ints
    least: Floats
    deepest: Ints
    position_cost: Floats
    pass_cost: Floats
    start_cost: Floats
    chance: Floats
    drafted: Floats
    charges: Charges


@dataclass(frozen=True, slots=True, eq=False)
class _Slots:
    """Draft positions by falling `chance`; depth [slots], 0-based; positions, tokens [loads, slots], a sequence's.

    silence: [loads, slots], what taking the slot adds to the logarithm of P(no sequence of the step has a draft).
    """

    chance: Floats
    depth: Ints
    positions: Floats
    tokens: Floats
    silence: Floats


def worth(outlook: Outlook) -> Floats:
    """[cohorts, MAX_K]: P(token j is emitted | it was drafted), made to fall along j: held against the price."""
    chance = outlook.survival / np.maximum(outlook.drafted, 1e-12)
    falling: Floats = np.minimum.accumulate(np.minimum(chance, 1.0), axis=1)
    return falling


def price(
    table: PolicyTable,
    outlook: Outlook,
    share: Floats,
    k: Ints,
    times: StepTimes,
    tariff: Tariff = TIME,
    before: Prices | None = None,
    uniform_s: Floats | None = None,
) -> Prices:
    """The prices at every load.

    share, k: [cohorts, load buckets], as in Situation; k matters of cohorts that are not ragged. before: those of the
    last tick, of the same cohorts, which stay where no other choice that drafts is better by more than BAND. uniform_s:
    Situation.seconds, where worked out already.
    """
    charges = Charges.of(times, tariff)
    slots = _slots(table, outlook, share)
    share, k = share[:, AT_LOADS], k[:, AT_LOADS]
    base_tokens, base_deep, base_draft, base_silence = _background(table, outlook, share, k, times)
    base_draft = tariff.per_second * base_draft
    spoken = -np.expm1(base_silence)
    base = forward_seconds(charges.plain, charges.going, base_deep[:, None], spoken[:, None])[:, 0] + base_draft
    best = base_tokens / base
    at, depth = np.full(len(LOADS), NOTHING_PAYS), np.zeros(len(LOADS), np.int64)
    rows = np.arange(len(LOADS))
    bounds = np.concatenate([[NOTHING_PAYS], slots.chance, [0.0]])
    worthwhile = worth(outlook)
    stays_at, stays_deep = (at, depth) if before is None else (_standing(table, before, worthwhile), before.depth)
    stands = np.searchsorted(-slots.chance, -stays_at, side="right")  # slots that bring the price, all depths together
    standing = np.where(stays_deep == 0, best, -np.inf)
    for d in np.flatnonzero(table.is_rung[table.is_ragged].any(axis=0)):
        if d == 0:
            continue
        within = slots.depth < d
        tokens = _running(base_tokens, slots.tokens * within)
        positions = _running(base_deep, slots.positions * within)
        passes = base_draft + charges.opening * d + charges.starting
        drafting = _running(passes, charges.following[:, None] * slots.positions * within)
        spoken = -np.expm1(_running(base_silence, slots.silence * within))
        goodput = tokens / (forward_seconds(charges.plain, charges.going, positions, spoken) + drafting)
        standing = np.where(stays_deep == d, goodput[rows, stands], standing)
        taken = np.where(within, goodput[:, 1:], -np.inf).argmax(axis=1) + 1
        # The next position of this depth or less marks the other side of the price.
        left = _next_within(within)[taken]
        is_better = goodput[rows, taken] > best
        best = np.where(is_better, goodput[rows, taken], best)
        at = np.where(is_better, np.where(left > len(slots.chance), 0.0, (bounds[taken] + bounds[left]) / 2.0), at)
        depth = np.where(is_better, d, depth)
    if before is not None:
        # Not to draft at all is taken at its word: only plain steps tell what they take.
        stays = (best <= (1.0 + BAND) * standing) & (depth > 0)
        best, at, depth = (
            np.where(stays, old, new) for old, new in ((standing, best), (stays_at, at), (stays_deep, depth))
        )
    upto = outlook.positions[:, : table.rungs]
    alone_s = (uniform_seconds(times, upto) if uniform_s is None else uniform_s)[:, 0, : table.rungs]
    at[0], depth[0] = _for_one(table, outlook, worthwhile, alone_s, tariff)
    # Tokens that the batch would emit in a second, or for what is charged for one: what any second more would cost.
    most, going = best[AT_BUCKETS], charges.going[AT_BUCKETS]
    return Prices(
        at,
        depth,
        *_within_buckets(at, depth),
        position_cost=most * ((going[:, -1] - going[:, 1]) / (MAX_K - 1) + charges.following[AT_BUCKETS]),
        pass_cost=most * charges.opening[AT_BUCKETS],
        start_cost=most * (going[:, 0] - charges.plain[AT_BUCKETS] + charges.starting[AT_BUCKETS]),
        chance=worthwhile,
        drafted=outlook.drafted,
        charges=charges,
    )


def under_price(table: PolicyTable, prices: Prices | None, k: Ints) -> Ints:
    """[cohorts, load buckets]: the depth that is drafted to under the rungs `k` at each bucket's bound."""
    if prices is None:
        return k
    pays = (prices.chance[:, None, :] >= prices.price[AT_BUCKETS][:, None]).sum(axis=2)
    priced = np.minimum(np.minimum(pays, prices.depth[AT_BUCKETS]), k)
    return np.where(table.is_ragged[:, None], priced, k)


def _standing(table: PolicyTable, before: Prices, chance: Floats) -> Floats:
    """[len(LOADS)]: the price at which the positions priced in by `before` would be so now, else that price itself.

    Midway again between the last position taken and the first one left, so that no estimate is near to crossing it.
    """
    ragged = table.is_ragged
    if ragged.sum() > BINS:  # so many positions lie everywhere along the price
        return before.price
    deep = np.arange(MAX_K) < _top(table)[ragged][:, None]
    within = deep & (np.arange(MAX_K) < before.depth[:, None, None])
    is_taken = within & (before.chance[ragged] >= before.price[:, None, None])
    last = np.where(is_taken, chance[ragged], np.inf).min(axis=(1, 2), initial=NOTHING_PAYS)
    first = np.where(within & ~is_taken, chance[ragged], -np.inf).max(axis=(1, 2), initial=0.0)
    return np.where(first < last, (first + last) / 2.0, before.price)


def _top(table: PolicyTable) -> Ints:
    """[cohorts]: the deepest rung."""
    top: Ints = RUNGS - 1 - np.argmax(table.is_rung[:, ::-1], axis=1)
    return top


def _for_one(
    table: PolicyTable, outlook: Outlook, worthwhile: Floats, alone_s: Floats, tariff: Tariff
) -> tuple[float, int]:
    """The price and the depth beside one sequence, which shares its step with nobody: what its own rung says, holds.

    The lowest and the deepest that any priced cohort needs for the rung that is best for it alone. alone_s: [cohorts,
    rungs] seconds of a step of one sequence.
    """
    charge = tariff.per_second * alone_s + tariff.per_position * outlook.positions[:, : table.rungs]
    value = np.where(table.is_rung[:, : table.rungs], outlook.emitted[:, : table.rungs] / charge, -np.inf)
    k = value.argmax(axis=1)
    drafting = table.is_ragged & (k > 0)
    if not drafting.any():
        return NOTHING_PAYS, 0
    return float(worthwhile[drafting, k[drafting] - 1].min()), int(k[drafting].max())


def _next_within(within: Flags) -> Ints:
    """[slots + 1]: after so many slots, the 1-based index of the next that counts; len + 1 where none is left."""
    count = len(within)
    index = np.where(within, np.arange(1, count + 1), count + 1)
    following = np.minimum.accumulate(index[::-1])[::-1]
    return np.concatenate([following, [count + 1]])


def _slots(table: PolicyTable, outlook: Outlook, share: Floats) -> _Slots:
    ragged = table.is_ragged
    top = _top(table)[ragged]
    owner, depth = np.nonzero(np.arange(MAX_K) < top[:, None])
    chance = worth(outlook)[ragged][owner, depth]
    weight = share[ragged].T
    positions = weight[:, owner] * outlook.drafted[ragged][owner, depth]
    tokens = weight[:, owner] * outlook.survival[ragged][owner, depth]
    # Whether a sequence is silent shows at its first position.
    first = np.flatnonzero(depth == 0)
    silent = np.log1p(-np.minimum(outlook.drafted[ragged][:, 0], NEVER_SILENT))
    by_owner = LOADS[:, None] * weight[AT_LOADS][:, owner[first]] * silent[owner[first]]
    if len(owner) > BINS * MAX_K:
        group = depth * BINS + np.minimum((chance * BINS).astype(np.int64), BINS - 1)
        many = BINS * MAX_K
        positions = np.stack([np.bincount(group, row, many) for row in positions])
        tokens = np.stack([np.bincount(group, row, many) for row in tokens])
        silence: Floats = np.stack([np.bincount(group[first], row, many) for row in by_owner]).astype(np.float64)
        size = np.bincount(group, minlength=many)
        used = size > 0
        chance = (np.bincount(group, chance, many) / np.maximum(size, 1))[used]
        depth, positions, tokens = np.arange(many)[used] // BINS, positions[:, used], tokens[:, used]
        silence = silence[:, used]
    else:
        silence = np.zeros((len(LOADS), len(owner)))
        silence[:, first] = by_owner
    positions, tokens = positions[AT_LOADS], tokens[AT_LOADS]
    order = np.argsort(-chance, kind="stable")
    return _Slots(chance[order], depth[order], positions[:, order], tokens[:, order], silence[:, order])


def _background(
    table: PolicyTable, outlook: Outlook, share: Floats, k: Ints, times: StepTimes
) -> tuple[Floats, Floats, Floats, Floats]:
    """[loads] each: tokens, draft positions and drafting seconds a sequence brings before any priced position.

    The fourth is the logarithm of P(no sequence of the step has a draft).
    """
    cohorts = np.arange(len(k))[:, None]
    others = np.where(table.is_ragged[:, None], 0, np.maximum(k, 0))
    tokens = (share * outlook.emitted[cohorts, others]).sum(axis=0)
    deep = (share * (outlook.positions[cohorts, others] - 1.0)).sum(axis=0)
    draft = (share * times.drafting[np.arange(len(LOADS))[None, :], others]).sum(axis=0)
    silent = np.log1p(-np.minimum(outlook.drafted[:, :1], NEVER_SILENT))
    silence = (share * LOADS * np.where(others > 0, silent, 0.0)).sum(axis=0)
    return tokens, deep, draft, silence


def _running(base: Floats, added: Floats) -> Floats:
    """[loads, slots + 1]: `base` and the sums after each slot."""
    sums: Floats = base[:, None] + np.concatenate([np.zeros((len(base), 1)), added.cumsum(axis=1)], axis=1)
    return sums


def _within_buckets(at: Floats, depth: Ints) -> tuple[Floats, Ints]:
    """[load buckets] each: the lowest price and the greatest depth from the lower end of a bucket to its bound."""
    least, deepest = [], []
    low = 1.0
    for end in AT_BUCKETS:
        inside = (low <= LOADS) & (LOADS[end] >= LOADS)
        edge = np.interp(low, LOADS, at)
        nearest = depth[int(np.abs(LOADS - low).argmin())]
        least.append(min(float(edge), float(at[inside].min())))
        deepest.append(max(int(nearest), int(depth[inside].max())))
        low = LOADS[end] + 1.0
    return np.array(least), np.array(deepest)

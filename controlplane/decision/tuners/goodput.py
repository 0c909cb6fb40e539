"""The rung that brings most: expected tokens of a step over what the step costs, for every rung and load.

    throughput, latency   tokens per second           E[N](K) / T(n, K)
    cost                  tokens per unit of money    E[N](K) / (price x T(n, K) + price of energy x J)
    energy                tokens per joule            E[N](K) / J(n, K)

Every rung is looked at: padding makes T a staircase, so the best one need not be the first peak. `slots: ragged` prices
a position by all cohorts of the load together (tuners/slots.py) instead of as if the whole batch used this K.
`objective: latency` first wants the SLO met: among the rungs that meet it, the one with most tokens per second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from controlplane.decision.charges import TIME, Tariff
from controlplane.decision.estimate import Outlook
from controlplane.decision.latency import AT_BUCKETS, LOADS, uniform_seconds
from controlplane.decision.observation import Flags, Floats, Ints
from controlplane.decision.tuners.base import Situation, Wish, at_k
from controlplane.decision.tuners.slots import Prices

_BOUNDS = LOADS[AT_BUCKETS]

MAY_PAY = 0.5
"""Share of the price in the batch that is expected at which a rung is weighed: another one that comes in its place may
ask for less, where a cohort is there alone or finds rows that are computed anyway. Tuned: at 1 a rung was too low for a
batch now and then, at the cost of up to 4 % in a cell, and lower ones brought no more."""

Fallback = Literal["no_price", "no_energy", "mixed"]
"""Why an objective is not pursued, and throughput is instead."""


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """value: [cohorts, loads, table.rungs] f64, more is better, comparable along K; tpot_s the same, predicted mean."""

    value: Floats
    tpot_s: Floats


def wish(situation: Situation, prices: Prices | None) -> Wish:
    """The best rung of every cell. Needs situation.times."""
    scores = score(situation, prices)
    table, k = situation.table, situation.k
    is_rung = table.is_rung[:, None, : table.rungs]
    allowed = np.where(is_rung, scores.value, -np.inf)
    meets = scores.tpot_s * situation.tail[:, None, None] <= table.tpot_p95_s[:, None, None]
    wants_slo = np.array([objective == "latency" for objective in table.objective])[:, None, None]
    is_met = (meets & is_rung).any(axis=2, keepdims=True)
    within = allowed
    if wants_slo.any():
        quickest = np.where(is_rung, -scores.tpot_s, -np.inf)
        within = np.where(wants_slo & is_met & ~meets, -np.inf, np.where(wants_slo & ~is_met, quickest, allowed))
    best = within.argmax(axis=2)
    at_best, at_present = at_k(scores.value, best), at_k(scores.value, np.maximum(k, 0))
    meets_now = at_k(meets, np.maximum(k, 0))
    cohorts = np.arange(len(best))[:, None]
    # Net tokens may be none at all; what is gained is then set beside the tokens emitted now.
    is_net = _is_priced(situation, prices)[:, None] & (np.arange(k.shape[1]) > 0)
    unit = np.where(is_net, situation.outlook.emitted[cohorts, np.maximum(k, 0)], at_present)
    gain = (at_best - at_present) / np.maximum(unit, 1e-12)
    if prices is not None and is_net.any():
        # Under a ceiling only what pays is drafted, so a lower one gains nothing: weigh what drafting all would cost.
        full = _in_full(situation, prices)
        saved = (at_k(full, best) - at_k(full, np.maximum(k, 0))) / np.maximum(unit, 1e-12)
        gain = np.where(is_net & (best < k), saved, gain)
    gain = np.where((wants_slo & is_met)[:, :, 0] & ~meets_now, np.inf, gain)
    deciding = situation.shapes.spine[np.maximum(best, k)] - 1
    examined = situation.hazards.examined[cohorts, np.maximum(deciding, 0)]
    is_up = best > k
    drafted = np.where(situation.is_unpaid, 0, k)
    above = np.where(situation.is_unpaid, k, table.above[cohorts, np.maximum(k, 0)])
    hoped = _hoped(situation, scores, prices, drafted, above)
    return Wish(
        k=best,
        gain=gain,
        is_unexplored=is_up & (examined < 1.0),
        is_blocked=(best == k) & (above > 0) & (hoped > table.tolerance[:, None]),
        position=deciding,
        accepted=situation.hazards.mean[cohorts, np.maximum(deciding, 0)],
        examined=examined,
    )


def score(situation: Situation, prices: Prices | None) -> Scores:
    """What every K is worth to every cohort at every load; throughput where the objective cannot be pursued."""
    outlook, times = situation.outlook, situation.times
    if times is None:
        raise ValueError("goodput needs step times: no worker has been profiled yet")
    rungs, seconds = situation.table.rungs, situation.seconds
    upto = outlook.positions[:, :rungs]
    seconds = uniform_seconds(times, upto) if seconds is None else seconds[:, :, :rungs]
    emitted = outlook.emitted[:, None, :rungs]
    value = emitted / seconds
    joules = situation.power.joules(seconds, upto[:, None, :] * _BOUNDS[:, None])
    for i, objective in enumerate(situation.table.objective):
        if objective == "cost" and situation.rates.per_second:
            money = situation.rates.per_second * seconds[i]
            if joules is not None:
                money = money + situation.rates.per_joule * joules[i]
            value[i] = emitted[i] * _BOUNDS[:, None] / money
        elif objective == "energy" and joules is not None:
            value[i] = emitted[i] * _BOUNDS[:, None] / joules[i]
    ragged = _is_priced(situation, prices)
    if prices is not None and ragged.any():
        value[ragged, 1:] = net_tokens(outlook, prices, rungs)[ragged, 1:]
    return Scores(value, seconds / emitted)


def _hoped(situation: Situation, scores: Scores, prices: Prices | None, k: Ints, above: Ints) -> Floats:
    """[cohorts, load buckets]: the gain of the rung above, were every token beyond the present rung kept."""
    outlook, cohorts, k = situation.outlook, np.arange(len(k))[:, None], np.maximum(k, 0)
    depth = situation.shapes.depth
    rung, more = np.maximum(above, 0), np.maximum(depth[above] - depth[k], 0) * (above > k)
    emitted = outlook.emitted[cohorts, k]
    reached = np.where(k > 0, outlook.of_chains.survival[cohorts, np.maximum(depth[k] - 1, 0)], 1.0)
    hoped = emitted + reached * more
    seconds_now = at_k(scores.tpot_s, k) * emitted
    seconds_then = at_k(scores.tpot_s, rung) * outlook.emitted[cohorts, rung]
    gain: Floats = hoped / emitted * seconds_now / np.maximum(seconds_then, 1e-12) - 1.0
    if prices is None:
        return gain
    passes = np.clip(rung - np.maximum(prices.deepest, k), 0, None)
    # What the batch pays is held against the cohort's own sequences, which alone would gain.
    for_batch = passes * prices.pass_cost + np.where(prices.deepest == 0, prices.start_cost, 0.0)
    net = more * (reached - prices.position_cost) - for_batch / np.maximum(situation.share, 1e-3)
    is_net = _is_priced(situation, prices)[:, None] & (np.arange(k.shape[1]) > 0)
    return np.where(is_net, net / emitted, gain)


def net_tokens(outlook: Outlook, prices: Prices, rungs: int) -> Floats:
    """[cohorts, load buckets, rungs]: expected tokens of a sequence and step less the price of its positions.

    The rung is a ceiling, under which a worker finds what pays in the batch that it has just then. So the price is the
    least that such a batch may ask, MAY_PAY of the lowest within the bucket, and the depth the greatest of the bucket
    and of those beside it. Positions that do not pay are not drafted and cost nothing.
    """
    top = rungs - 1
    net = outlook.survival[:, None, :top] - MAY_PAY * prices.least[:, None] * outlook.drafted[:, None, :top]
    around = np.pad(prices.deepest, 1)
    deepest = np.where(prices.deepest > 0, np.maximum(np.maximum(around[:-2], around[2:]), prices.deepest), 0)
    return _summed(np.where(np.arange(top) >= deepest[:, None], 0.0, np.maximum(net, 0.0)))


def _in_full(situation: Situation, prices: Prices) -> Floats:
    """The same, were every position of the rung drafted whether it pays or not."""
    outlook, top = situation.outlook, situation.table.rungs - 1
    net = outlook.survival[:, None, :top] - prices.least[:, None] * outlook.drafted[:, None, :top]
    is_too_deep = np.arange(top) >= prices.deepest[:, None]
    return _summed(np.where(is_too_deep, np.minimum(net, 0.0) - _own_pass(situation, prices)[:, :, None], net))


def _own_pass(situation: Situation, prices: Prices) -> Floats:
    """[cohorts, load buckets]: tokens that a pass of the drafter costs, were it run for one cohort alone."""
    own: Floats = prices.pass_cost / np.maximum(situation.share, 1e-3)
    return own


def _summed(net: Floats) -> Floats:
    zero = np.zeros((*net.shape[:2], 1))
    return 1.0 + np.concatenate([zero, net.cumsum(axis=2)], axis=2)


def _is_priced(situation: Situation, prices: Prices | None) -> Flags:
    """[cohorts]: whether a cohort's positions are priced, net tokens then being what a rung is worth."""
    return situation.table.is_ragged & (prices is not None)


def fallback(situation: Situation, cohort: int) -> Fallback | None:
    """Why a cohort's objective is not pursued."""
    objective = situation.table.objective[cohort]
    if objective == "cost" and not situation.rates.per_second:  # what costs nothing has no price to weigh either
        return "no_price"
    if objective == "energy" and situation.power.joules(np.ones((1, 1, 1)), np.ones((1, 1, 1))) is None:
        return "no_energy"
    if objective in ("cost", "energy") and situation.table.is_ragged[cohort] and len(_priced_for(situation)) > 1:
        return "mixed"
    return None


def tariff(situation: Situation) -> Tariff:
    """What a step is charged, by which positions are priced: that of the ragged cohorts' objective.

    They share a batch and its one price: where their objectives differ, or cannot be pursued, it is time.
    """
    objectives, rates, power = _priced_for(situation), situation.rates, situation.power.rates()
    if objectives == {"energy"} and power is not None:
        return Tariff(*power)
    if objectives == {"cost"} and rates.per_second:
        watts, joules = (0.0, 0.0) if power is None else power
        return Tariff(rates.per_second + rates.per_joule * watts, rates.per_joule * joules)
    return TIME


def _priced_for(situation: Situation) -> set[str]:
    """What the ragged cohorts want; latency is pursued by throughput within the SLO."""
    table = situation.table
    wanted = {o for o, is_ragged in zip(table.objective, table.is_ragged.tolist(), strict=True) if is_ragged}
    return {"throughput" if o == "latency" else o for o in wanted}

"""Prices and depths of draft positions, held against looking at every possible choice."""

from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from controlplane.decision.estimate import Outlook
from controlplane.decision.latency import AT_BUCKETS, LOADS, StepTimes, going
from controlplane.decision.observation import BUCKETS
from controlplane.decision.policy_table import PolicyTable
from controlplane.decision.tuners import slots
from controlplane.decision.tuners.slots import NOTHING_PAYS, Prices, Tariff, price
from controlplane.policy import CohortPolicy, Policy
from controlplane.telemetry import MAX_K

Floats = npt.NDArray[np.float64]
KS = np.arange(MAX_K + 1, dtype=np.float64)


def times_of(verify: Floats, draft: Floats) -> StepTimes:
    """Exact step times: verify [loads, MAX_K + 1] or [MAX_K + 1] of every load, draft the same."""
    shape = (len(LOADS), MAX_K + 1)
    return StepTimes(np.broadcast_to(verify, shape), np.broadcast_to(draft, shape), np.ones(shape), np.zeros(shape))


def outlook_of(hazards: Floats, offered: float = 1.0) -> Outlook:
    """[cohorts, MAX_K] conditional acceptance; the drafter speaks with probability `offered`."""
    survival = offered * hazards.cumprod(axis=1)
    drafted = np.full_like(survival, offered)
    zero = np.zeros((len(survival), 1))
    emitted = 1.0 + np.concatenate([zero, survival.cumsum(axis=1)], axis=1)
    positions = 1.0 + np.concatenate([zero, drafted.cumsum(axis=1)], axis=1)
    return Outlook(survival, drafted, emitted, positions, np.zeros_like(emitted))


def table_of(cohorts: list[CohortPolicy]) -> PolicyTable:
    return PolicyTable.of(Policy(1, tuple(cohorts), None, "abc", ""))


def evenly(cohorts: int) -> Floats:
    return np.full((cohorts, BUCKETS), 1.0 / cohorts)


def seconds_of(times: StepTimes, load: int, depths: tuple[int, ...], share: Floats, outlook: Outlook) -> float:
    """Of a step in which cohort c drafts depths[c] tokens a sequence, from the cost tables alone."""
    bucket = int(np.searchsorted(LOADS[AT_BUCKETS], LOADS[load]))
    mix = share[:, bucket]
    deep = sum(mix[c] * (outlook.positions[c, d] - 1.0) for c, d in enumerate(depths))
    silent = np.prod([(1.0 - outlook.drafted[c, 0]) ** (LOADS[load] * mix[c]) for c, d in enumerate(depths) if d])
    plain, line = float(times.verifying[load, 0]), going(times.verifying)[load]
    if not any(depths):
        return plain
    verify = float(silent * plain + (1.0 - silent) * np.interp(deep / (1.0 - silent), KS, line))
    a_pass = (times.drafting[:, -1] - times.starting) / MAX_K
    opening = min(a_pass[0], a_pass[load])
    return verify + times.starting[load] + opening * max(depths) + (a_pass[load] - opening) * deep


def goodput_of(times: StepTimes, load: int, depths: tuple[int, ...], share: Floats, outlook: Outlook) -> float:
    bucket = int(np.searchsorted(LOADS[AT_BUCKETS], LOADS[load]))
    tokens = sum(share[c, bucket] * outlook.emitted[c, d] for c, d in enumerate(depths))
    return float(tokens / seconds_of(times, load, depths, share, outlook))


def obeyed(prices: Prices, load: int, outlook: Outlook, top: int) -> tuple[int, ...]:
    """The depth that every cohort drafts to under the price, as plan.affordable reads it."""
    chance = slots.worth(outlook)
    return tuple(
        next((j for j in range(top) if chance[c, j] < prices.price[load] or j >= prices.depth[load]), top)
        for c in range(len(chance))
    )


def steps_and_slopes(rng: np.random.Generator) -> StepTimes:
    """A staircase in the positions, dearer at higher loads, and a drafter whose passes cost."""
    width = int(rng.integers(1, 6))
    stairs = np.ceil(np.outer(LOADS, KS + 1) / (8 * width)) * rng.uniform(0.001, 0.004)
    verify = rng.uniform(0.005, 0.02) + stairs + rng.uniform(0, 2e-4) * np.outer(LOADS, KS + 1)
    passes = rng.uniform(0.0005, 0.004) * (1 + rng.uniform(0, 0.02) * LOADS)[:, None] * KS
    return times_of(verify, passes)


@pytest.mark.parametrize("seed", range(12))
def test_the_price_chooses_what_looking_at_every_choice_would(cohort_policy: Any, seed: int) -> None:
    """Every ladder rung is a depth; no choice of a depth for each cohort brings more tokens a second."""
    rng = np.random.default_rng(seed)
    top = 4
    policies = [
        cohort_policy(f"c{i}", tuner="goodput", slots="ragged", ladder=tuple(range(top + 1)), start=0, fallback=0)
        for i in range(3)
    ]
    share = evenly(3) if seed % 2 else np.repeat(rng.dirichlet(np.ones(3))[:, None], BUCKETS, axis=1)
    hazards = np.sort(rng.uniform(0.05, 0.98, (3, MAX_K)), axis=1)[:, ::-1]
    outlook = outlook_of(hazards, offered=1.0 if seed % 3 else 0.6)
    times = steps_and_slopes(rng)
    prices = price(table_of(policies), outlook, share, np.zeros((3, BUCKETS), np.int64), times)
    for load in (1, 3, 8, 13, 15):
        best = max(goodput_of(times, load, depths, share, outlook) for depths in product(range(top + 1), repeat=3))
        ours = goodput_of(times, load, obeyed(prices, load, outlook, top), share, outlook)
        assert ours == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_charged_by_the_second_and_the_position_it_still_chooses_what_looking_at_every_choice_would(
    cohort_policy: Any, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    policies, share = ragged(cohort_policy, 2, ladder=(0, 1, 2, 3, 4)), evenly(2)
    outlook, times = outlook_of(np.sort(rng.uniform(0.2, 0.98, (2, MAX_K)), axis=1)[:, ::-1]), steps_and_slopes(rng)
    charged = Tariff(rng.uniform(10, 100), rng.uniform(0.001, 0.05))
    prices = price(table_of(policies), outlook, share, np.zeros((2, BUCKETS), np.int64), times, charged)
    for load in (1, 5, 13):

        def per_charge(depths: tuple[int, ...], load: int = load) -> float:
            seconds = seconds_of(times, load, depths, share, outlook)
            positions = LOADS[load] * sum(share[c, 0] * outlook.positions[c, d] for c, d in enumerate(depths))
            tokens = sum(share[c, 0] * outlook.emitted[c, d] for c, d in enumerate(depths))
            return float(tokens / (charged.per_second * seconds + charged.per_position * positions))

        best = max(per_charge(depths) for depths in product(range(5), repeat=2))
        assert per_charge(obeyed(prices, load, outlook, 4)) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_beside_one_sequence_no_cohort_is_cut_short_of_what_is_best_for_it_alone(cohort_policy: Any, seed: int) -> None:
    """It shares its step with nobody: what the mix of cohorts would do there is nothing to it."""
    rng = np.random.default_rng(seed)
    outlook = outlook_of(np.full((2, MAX_K), [[0.95], [rng.uniform(0.3, 0.6)]]))
    times = steps_and_slopes(rng)
    prices = price(table_of(ragged(cohort_policy, 2)), outlook, evenly(2), np.zeros((2, BUCKETS), np.int64), times)
    alone = np.array([[1.0], [1.0]])
    for cohort in (0, 1):
        own = Outlook(
            *(getattr(outlook, f)[[cohort]] for f in ("survival", "drafted", "emitted", "positions", "relative"))
        )
        best = max((0, 1, 2, 4, 8), key=lambda d: goodput_of(times, 0, (d,), np.repeat(alone[:1], BUCKETS, 1), own))
        assert obeyed(prices, 0, outlook, best)[cohort] == best


def ragged(cohort_policy: Any, count: int, **changes: Any) -> list[CohortPolicy]:
    settings = {"tuner": "goodput", "slots": "ragged", "ladder": (0, 1, 2, 4, 8), "start": 2, "fallback": 0, **changes}
    return [cohort_policy(f"c{i}", **settings) for i in range(count)]


LINEAR = times_of(0.02 + 0.0004 * np.outer(LOADS, KS + 1), 0.001 * KS)


def priced(policies: list[CohortPolicy], outlook: Outlook, times: StepTimes = LINEAR, k: int = 0) -> Prices:
    count = len(policies)
    return price(table_of(policies), outlook, evenly(count), np.full((count, BUCKETS), k), times)


def test_very_many_cohorts_taken_together_by_bins_are_priced_nearly_as_one_by_one(
    cohort_policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies = ragged(cohort_policy, 200)
    outlook = outlook_of(np.random.default_rng(0).uniform(0.3, 0.95, (200, 1)) * np.ones(MAX_K))
    binned = priced(policies, outlook)
    monkeypatch.setattr(slots, "BINS", 10**6)
    exact = priced(policies, outlook)
    assert binned.price == pytest.approx(exact.price, abs=2 / 64)
    assert np.abs(np.log2(np.maximum(binned.depth, 1) / np.maximum(exact.depth, 1))).max() <= 1
    chance = slots.worth(outlook)
    for load in (1, 6, 12):
        tokens = [
            goodput_of(LINEAR, load, obeyed(found, load, outlook, 8), evenly(200), outlook) for found in (binned, exact)
        ]
        assert tokens[0] == pytest.approx(tokens[1], rel=0.003)
    assert chance.shape == (200, MAX_K)


def test_nothing_is_worth_its_price_where_drafts_are_never_accepted(cohort_policy: Any) -> None:
    prices = priced(ragged(cohort_policy, 2), outlook_of(np.full((2, MAX_K), 0.01)))
    assert (prices.price == NOTHING_PAYS).all()
    assert (prices.depth == 0).all()


def test_all_positions_pay_where_they_cost_nothing(cohort_policy: Any) -> None:
    free = times_of(np.full(MAX_K + 1, 0.02), np.zeros(MAX_K + 1))
    prices = priced(ragged(cohort_policy, 2), outlook_of(np.full((2, MAX_K), 0.3)), free)
    assert (prices.price[1:] == 0.0).all()
    assert (prices.depth == 8).all()


def test_a_position_costs_more_beside_more_sequences(cohort_policy: Any) -> None:
    prices = priced(ragged(cohort_policy, 1), outlook_of(np.full((1, MAX_K), 0.8)))
    assert (np.diff(prices.depth) <= 0).all()
    assert prices.price[0] < prices.price[-1]


@pytest.mark.parametrize("factor", [2.0, 5.0, 20.0])
def test_a_dearer_drafter_never_drafts_deeper(cohort_policy: Any, factor: float) -> None:
    outlook = outlook_of(np.array([np.full(MAX_K, 0.9), np.full(MAX_K, 0.6)]))
    cheap = priced(ragged(cohort_policy, 2), outlook)
    dear = priced(ragged(cohort_policy, 2), outlook, times_of(LINEAR.verify, factor * LINEAR.draft))
    assert (dear.depth <= cheap.depth).all()


def test_a_bucket_is_priced_at_the_cheapest_load_within_it(cohort_policy: Any) -> None:
    prices = priced(ragged(cohort_policy, 1), outlook_of(np.full((1, MAX_K), 0.8)))
    for b, end in enumerate(AT_BUCKETS):
        assert prices.least[b] <= prices.price[end]
        assert prices.deepest[b] >= prices.depth[end]


def test_cohorts_that_are_not_ragged_are_taken_as_they_draft(cohort_policy: Any) -> None:
    """What they draft already fills the step: on a staircase, room that is left costs nothing."""
    stairs = times_of(0.01 + 0.01 * np.ceil((KS + 1) / 4), np.zeros(MAX_K + 1))
    policies = [*ragged(cohort_policy, 1), cohort_policy("steady", tuner="fixed", start=4, fallback=0)]
    outlook = outlook_of(np.array([np.full(MAX_K, 0.7), np.full(MAX_K, 0.9)]))
    alone = price(table_of(policies), outlook, evenly(2), np.zeros((2, BUCKETS), np.int64), stairs)
    beside = price(table_of(policies), outlook, evenly(2), np.full((2, BUCKETS), 4), stairs)
    assert obeyed(beside, 1, outlook, 8)[0] < obeyed(alone, 1, outlook, 8)[0]


def test_what_a_position_brings_never_rises_with_depth() -> None:
    rising = outlook_of(np.array([[0.5, 0.5, *(1.0,) * 14]]), offered=0.5)
    assert (np.diff(slots.worth(rising)) <= 0).all()
    assert slots.worth(rising)[0, 0] == pytest.approx(0.5)


def priced_again(policies: list[CohortPolicy], outlook: Outlook, times: StepTimes, before: Prices | None) -> Prices:
    cohorts = len(policies)
    mix, k = evenly(cohorts), np.zeros((cohorts, BUCKETS), np.int64)
    return price(table_of(policies), outlook, mix, k, times, before=before)


TIED_LOAD, TIED_S = 5, 0.02
"""Where two depths are worth the same, and seconds of a plain step."""


def tied(other_s: float) -> StepTimes:
    """Free drafts; depths 2 and 4 are worth the same after `other_s` more seconds at 4."""
    verify = np.full(MAX_K + 1, 10.0)
    verify[:3] = TIED_S
    chance = 0.8
    upto = 1.0 + np.cumsum(chance ** np.arange(1, MAX_K + 1))
    verify[3:5] = TIED_S * upto[3] / upto[1] + other_s
    return times_of(verify, np.zeros(MAX_K + 1))


@pytest.mark.parametrize("first", [-1e-3, 1e-3])
def test_what_was_priced_in_stays_where_another_choice_is_worth_the_same(cohort_policy: Any, first: float) -> None:
    policies, outlook = ragged(cohort_policy, 1), outlook_of(np.full((1, MAX_K), 0.8))
    before = priced_again(policies, outlook, tied(first), None)
    depth = obeyed(before, TIED_LOAD, outlook, 8)
    for noise in (-1e-6, 1e-6):
        after = priced_again(policies, outlook, tied(noise), before)
        assert obeyed(after, TIED_LOAD, outlook, 8) == depth


def test_what_was_priced_in_gives_way_to_what_is_better(cohort_policy: Any) -> None:
    policies, outlook = ragged(cohort_policy, 1), outlook_of(np.full((1, MAX_K), 0.8))
    before = priced_again(policies, outlook, tied(1e-3), None)
    after = priced_again(policies, outlook, tied(-1e-3), before)
    assert (obeyed(before, TIED_LOAD, outlook, 8), obeyed(after, TIED_LOAD, outlook, 8)) == ((2,), (4,))


def test_an_estimate_that_moves_a_little_does_not_cross_the_price_that_stays(cohort_policy: Any) -> None:
    policies, hazards = ragged(cohort_policy, 1), np.full((1, MAX_K), 0.8)
    prices = priced_again(policies, outlook_of(hazards), tied(1e-3), None)
    for _ in range(20):  # down to where the old price would have cut the second position off
        hazards = hazards * 0.995
        prices = priced_again(policies, outlook_of(hazards), tied(1e-3), prices)
        assert obeyed(prices, TIED_LOAD, outlook_of(hazards), 8) == (2,)

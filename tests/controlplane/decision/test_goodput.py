"""The rung that brings most, by objective, held against the formulas themselves."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.decision.estimate import Estimate, Hazards, Outlook
from controlplane.decision.latency import AT_BUCKETS, LOADS, StepTimes, going, uniform_seconds
from controlplane.decision.observation import BUCKETS
from controlplane.decision.policy_table import PolicyTable
from controlplane.decision.power import Power
from controlplane.decision.tuners import goodput
from controlplane.decision.tuners.base import Rates, Situation
from controlplane.decision.tuners.slots import TIME, price
from controlplane.policy import CohortPolicy, Policy
from controlplane.telemetry import LOAD_BUCKETS, MAX_K

Floats = npt.NDArray[np.float64]
KS = np.arange(MAX_K + 1, dtype=np.float64)
ALL = tuple(range(9))
BOUNDS = np.array(LOAD_BUCKETS, np.float64)


def times_of(verify: Floats, draft: Floats) -> StepTimes:
    shape = (len(LOADS), MAX_K + 1)
    return StepTimes(np.broadcast_to(verify, shape), np.broadcast_to(draft, shape), np.ones(shape), np.zeros(shape))


LINEAR = times_of(0.02 + 0.0004 * np.outer(LOADS, KS + 1), 0.001 * KS)
STAIRS = times_of(0.01 + 0.008 * np.ceil(np.outer(LOADS, KS + 1) / 4), 0.0005 * KS)


def situation_of(
    cohort: CohortPolicy,
    hazards: Sequence[float],
    *,
    k: int = 0,
    times: StepTimes | None = LINEAR,
    rates: Rates = Rates(),  # noqa: B008 - a value
    power: Power | None = None,
    tail: float = 1.0,
    offered: float = 1.0,
    examined: float = 250.0,
) -> Situation:
    """One cohort whose text is known exactly; the rest of the positions as the last given one."""
    deep = np.array([[*hazards, *(hazards[-1],) * (MAX_K - len(hazards))]])
    survival, drafted = offered * deep.cumprod(axis=1), np.full((1, MAX_K), offered)
    zero = np.zeros((1, 1))
    positions = 1.0 + np.concatenate([zero, drafted.cumsum(axis=1)], axis=1)
    return Situation(
        table=PolicyTable.of(Policy(1, (cohort,), None, "abc", "")),
        estimate=Estimate.of_nothing(1),
        hazards=Hazards(deep, np.zeros_like(deep), np.full_like(deep, examined)),
        outlook=Outlook(
            survival,
            drafted,
            1.0 + np.concatenate([zero, survival.cumsum(axis=1)], axis=1),
            positions,
            np.zeros((1, MAX_K + 1)),
        ),
        k=np.full((1, BUCKETS), k),
        is_unpaid=np.zeros((1, BUCKETS), np.bool_),
        share=np.ones((1, BUCKETS)),
        tail=np.array([tail]),
        times=times,
        seconds=None if times is None else uniform_seconds(times, positions),
        power=Power.unknown() if power is None else power,
        rates=rates,
    )


@pytest.fixture
def cohort(cohort_policy: Any) -> Any:
    """A goodput cohort with every rung up to 8."""

    def make(**changes: Any) -> CohortPolicy:
        base = {"tuner": "goodput", "ladder": ALL, "start": 0, "fallback": 0, "objective": "throughput"}
        made: CohortPolicy = cohort_policy(**{**base, **changes})
        return made

    return make


def wished(situation: Situation) -> list[int]:
    prices = None
    if situation.table.is_ragged.any():
        assert situation.times is not None
        prices = price(situation.table, situation.outlook, situation.share, situation.k, situation.times)
    ks: list[int] = goodput.wish(situation, prices).k[0].tolist()
    return ks


def seconds_of(situation: Situation) -> Floats:
    """[load buckets, MAX_K + 1], by another way than the tuner goes."""
    times, deep = situation.times, situation.outlook.positions[0] - 1.0
    assert times is not None
    silent = (1.0 - deep[1]) ** LOADS[AT_BUCKETS]
    lines = [going(times.verifying)[i] for i in AT_BUCKETS]
    with_drafts = np.array([np.interp(deep / (1.0 - s), KS, line) for s, line in zip(silent, lines, strict=True)])
    verify = silent[:, None] * times.verifying[AT_BUCKETS, :1] + (1.0 - silent[:, None]) * with_drafts
    verify[:, 0] = times.verifying[AT_BUCKETS, 0]
    seconds: Floats = verify + times.drafting[AT_BUCKETS]
    return seconds


def best_of(value: Floats, ladder: Sequence[int] = ALL) -> list[int]:
    return [ladder[int(np.argmax(row[list(ladder)]))] for row in value]


@pytest.mark.parametrize("seed", range(8))
def test_it_takes_the_best_rung_of_the_whole_ladder_on_a_staircase(cohort: Any, seed: int) -> None:
    """Where tokens per second have several peaks: a climb that ends at the first would miss the best."""
    rng = np.random.default_rng(seed)
    stairs = times_of(0.005 + 0.01 * np.ceil(np.outer(LOADS, KS + 1) / rng.integers(3, 20)), 0.0005 * KS)
    situation = situation_of(cohort(), np.sort(rng.uniform(0.3, 0.99, 8))[::-1].tolist(), times=stairs)
    assert wished(situation) == best_of(situation.outlook.emitted[0] / seconds_of(situation))


def test_a_better_rung_lies_beyond_a_worse_one(cohort: Any) -> None:
    situation = situation_of(cohort(), [0.97], times=STAIRS)
    value = (situation.outlook.emitted[0] / seconds_of(situation))[0]
    assert value[4] < value[3] < value[7]
    assert wished(situation)[0] == 7


@pytest.mark.parametrize("ladder", [(0, 1, 2, 4, 8), (0, 3), (2, 5), (0,)])
def test_it_wishes_only_for_rungs(cohort: Any, ladder: tuple[int, ...]) -> None:
    situation = situation_of(
        cohort(ladder=ladder, start=ladder[0], fallback=ladder[0]), [0.9], times=STAIRS, k=ladder[0]
    )
    assert wished(situation) == best_of(situation.outlook.emitted[0] / seconds_of(situation), ladder)


def test_the_gain_is_that_of_the_best_over_the_present_rung(cohort: Any) -> None:
    situation = situation_of(cohort(), [0.8], k=1)
    value = situation.outlook.emitted[0] / seconds_of(situation)
    gain = goodput.wish(situation, None).gain[0]
    assert gain == pytest.approx(value[:, :9].max(axis=1) / value[:, 1] - 1.0)


def test_a_drafter_that_is_often_silent_is_not_charged_for_positions_it_leaves_empty(cohort: Any) -> None:
    dear = times_of(0.01 + 0.002 * np.outer(LOADS, KS + 1), np.zeros(MAX_K + 1))
    eager, silent = situation_of(cohort(), [0.9], times=dear), situation_of(cohort(), [0.9], times=dear, offered=0.2)
    scores = [goodput.score(s, None).tpot_s[0, 3, 8] for s in (eager, silent)]
    assert scores[1] * silent.outlook.emitted[0, 8] < scores[0] * eager.outlook.emitted[0, 8]


# Objectives


def learnt_power(idle_w: float, busy_w: float, position_j: float) -> Power:
    rng = np.random.default_rng(0)
    busy, positions = rng.uniform(0, 1, 200), rng.uniform(0, 500, 200)
    joules = idle_w * (1 - busy) + busy_w * busy + position_j * positions
    return Power.unknown().learn(np.stack([np.ones(200), busy, positions, joules], axis=1))


POWER = learnt_power(50.0, 100.0, 0.5)


def joules_of(situation: Situation) -> Floats:
    return 100.0 * seconds_of(situation) + 0.5 * situation.outlook.positions[0] * BOUNDS[:, None]


def test_energy_weighs_joules(cohort: Any) -> None:
    situation = situation_of(cohort(objective="energy"), [0.8, 0.7, 0.6, 0.5, 0.4], power=POWER)
    emitted = situation.outlook.emitted[0] * BOUNDS[:, None]
    assert wished(situation) == best_of(emitted / joules_of(situation))


def test_where_positions_cost_energy_it_drafts_less_than_for_throughput(cohort: Any) -> None:
    hazards = [0.8, 0.7, 0.6, 0.5, 0.4]
    frugal = wished(situation_of(cohort(objective="energy"), hazards, power=POWER))
    fast = wished(situation_of(cohort(), hazards, power=POWER))
    assert all(a <= b for a, b in zip(frugal, fast, strict=True))
    assert frugal[0] < fast[0]


@pytest.mark.parametrize("per_joule", [0.0, 1e-5, 1e-3])
def test_cost_weighs_machine_time_and_energy_at_their_prices(cohort: Any, per_joule: float) -> None:
    rates = Rates(per_second=0.001, per_joule=per_joule)
    situation = situation_of(cohort(objective="cost"), [0.8, 0.7, 0.6, 0.5, 0.4], power=POWER, rates=rates)
    money = 0.001 * seconds_of(situation) + per_joule * joules_of(situation)
    assert wished(situation) == best_of(situation.outlook.emitted[0] * BOUNDS[:, None] / money)


def test_cost_without_an_energy_meter_weighs_machine_time_alone(cohort: Any) -> None:
    costly = situation_of(cohort(objective="cost"), [0.8, 0.6], rates=Rates(0.001, 0.5))
    assert wished(costly) == wished(situation_of(cohort(), [0.8, 0.6]))


@pytest.mark.parametrize(("objective", "named"), [("cost", "no_price"), ("energy", "no_energy")])
def test_an_objective_that_cannot_be_pursued_falls_back_to_throughput_and_says_so(
    cohort: Any, objective: str, named: str
) -> None:
    situation = situation_of(cohort(objective=objective), [0.8, 0.7, 0.6])
    assert goodput.fallback(situation, 0) == named
    assert wished(situation) == wished(situation_of(cohort(), [0.8, 0.7, 0.6]))


@pytest.mark.parametrize("objective", ["throughput", "latency", "cost", "energy"])
def test_an_objective_that_is_pursued_names_no_fallback(cohort: Any, objective: str) -> None:
    situation = situation_of(
        cohort(objective=objective, tpot_p95_s=0.04), [0.8], power=POWER, rates=Rates(per_second=0.001)
    )
    assert goodput.fallback(situation, 0) is None


# Latency under an SLO


def tpot_of(situation: Situation) -> Floats:
    return seconds_of(situation) / situation.outlook.emitted[0]


def test_the_latency_objective_takes_no_rung_over_the_slo_where_one_meets_it(cohort: Any) -> None:
    situation = situation_of(cohort(objective="latency", tpot_p95_s=0.02), [0.8], times=STAIRS)
    tpot = tpot_of(situation)
    chosen = wished(situation)
    for b in range(BUCKETS):
        if (tpot[b, :9] <= 0.02).any():
            assert tpot[b, chosen[b]] <= 0.02


def test_where_no_rung_meets_the_slo_it_takes_the_quickest(cohort: Any) -> None:
    situation = situation_of(cohort(objective="latency", tpot_p95_s=0.0001), [0.8], times=STAIRS)
    assert wished(situation) == best_of(-tpot_of(situation))


def test_meeting_the_slo_again_is_worth_any_gain(cohort: Any) -> None:
    situation = situation_of(cohort(objective="latency", tpot_p95_s=0.012), [0.8])
    now, then = tpot_of(situation)[0, 0], tpot_of(situation)[0, :9].min()
    assert then <= 0.012 < now
    assert goodput.wish(situation, None).gain[0, 0] == np.inf


def test_the_slo_is_held_against_the_tail_and_not_the_mean(cohort: Any) -> None:
    policy = cohort(objective="latency", tpot_p95_s=0.022)
    mean_only, with_tail = situation_of(policy, [0.8]), situation_of(policy, [0.8], tail=1.5)
    assert tpot_of(mean_only)[0, 0] <= 0.022 < 1.5 * tpot_of(mean_only)[0, 0]
    gains = [goodput.wish(s, None).gain[0, 0] for s in (mean_only, with_tail)]
    assert np.isfinite(gains[0])
    assert gains[1] == np.inf


def test_an_slo_does_not_bind_the_throughput_objective(cohort: Any) -> None:
    tight = situation_of(cohort(tpot_p95_s=0.0001), [0.8], times=STAIRS)
    assert wished(tight) == wished(situation_of(cohort(), [0.8], times=STAIRS))


# Ragged


def test_a_single_ragged_cohort_drafts_what_the_uniform_one_would_on_smooth_times(cohort: Any) -> None:
    """Then its positions are the whole batch, and the price is what they cost."""
    ragged = situation_of(cohort(slots="ragged"), [0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
    prices = price(ragged.table, ragged.outlook, ragged.share, ragged.k, ragged.times or LINEAR)
    uniform = wished(situation_of(cohort(), [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]))
    chance = ragged.outlook.survival[0]
    obeyed = [min(int((chance[:8] >= prices.price[i]).sum()), int(prices.depth[i])) for i in AT_BUCKETS]
    assert obeyed == uniform


def test_the_rung_of_a_ragged_cohort_is_a_ceiling_over_what_pays(cohort: Any) -> None:
    situation = situation_of(cohort(slots="ragged"), [0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
    prices = price(situation.table, situation.outlook, situation.share, situation.k, LINEAR)
    paying = [
        min(int((situation.outlook.survival[0, :8] >= prices.price[i]).sum()), int(prices.depth[i])) for i in AT_BUCKETS
    ]
    assert all(ceiling >= pays for ceiling, pays in zip(wished(situation), paying, strict=True))


def ragged_wish(cohort: Any, objective: str, hazards: Sequence[float], **changes: Any) -> list[int]:
    """The rungs of a ragged cohort alone, priced for its objective."""
    situation = situation_of(cohort(slots="ragged", objective=objective), hazards, power=POWER, **changes)
    charged = goodput.tariff(situation)
    prices = price(situation.table, situation.outlook, situation.share, situation.k, LINEAR, charged)
    return [int(k) for k in goodput.wish(situation, prices).k[0]]


def test_ragged_positions_are_priced_in_joules_where_energy_is_the_objective(cohort: Any) -> None:
    hazards = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]
    frugal, fast = (ragged_wish(cohort, objective, hazards) for objective in ("energy", "throughput"))
    uniform = wished(situation_of(cohort(objective="energy"), hazards, power=POWER))
    assert frugal != fast
    assert all(a >= b for a, b in zip(frugal, uniform, strict=True))  # a ceiling, over what pays at any load within
    assert all(a <= b for a, b in zip(frugal, fast, strict=True))
    assert (frugal[0], frugal[-1]) == (uniform[0], uniform[-1])


def test_ragged_positions_are_priced_in_money_where_cost_is_the_objective(cohort: Any) -> None:
    hazards = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]
    for_time = ragged_wish(cohort, "cost", hazards, rates=Rates(per_second=1.0))
    for_joules = ragged_wish(cohort, "cost", hazards, rates=Rates(per_second=1e-9, per_joule=1.0))
    assert for_time == ragged_wish(cohort, "throughput", hazards)
    assert for_joules == ragged_wish(cohort, "energy", hazards)


def test_ragged_cohorts_of_different_objectives_are_priced_by_time_and_say_so(cohort: Any) -> None:
    alone = situation_of(cohort(slots="ragged", objective="energy"), [0.9], power=POWER)
    table = PolicyTable.of(Policy(1, (alone.table.cohorts[0], cohort(slots="ragged")), None, "abc", ""))
    mixed = replace(alone, table=table)
    assert goodput.tariff(mixed) == TIME
    assert goodput.fallback(mixed, 0) == "mixed"
    assert goodput.fallback(mixed, 1) is None


def test_net_tokens_leave_out_what_does_not_pay(cohort: Any) -> None:
    situation = situation_of(cohort(slots="ragged"), [0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
    prices = price(situation.table, situation.outlook, situation.share, situation.k, LINEAR)
    net = goodput.net_tokens(situation.outlook, prices, situation.table.rungs)
    assert (np.diff(net, axis=2) >= 0).all()
    assert (net >= 1.0).all()


# Exploring and giving up


def test_a_rung_nobody_measured_is_explored(cohort: Any) -> None:
    unseen = situation_of(cohort(), [0.9], examined=0.0)
    assert goodput.wish(unseen, None).is_unexplored[0, 0]


def test_a_rung_given_up_that_would_pay_if_accepted_is_left_to_a_probe(cohort: Any) -> None:
    assert goodput.wish(situation_of(cohort(), [0.05]), None).is_blocked[0, 0]


def test_a_rung_that_could_never_pay_is_not_probed(cohort: Any) -> None:
    dear = times_of(0.02 * (KS + 1.0) ** 2, 0.02 * KS)
    assert not goodput.wish(situation_of(cohort(), [0.05], times=dear), None).is_blocked.any()


def test_the_top_rung_is_not_blocked(cohort: Any) -> None:
    assert not goodput.wish(situation_of(cohort(ladder=(0, 1)), [0.95], k=1), None).is_blocked[0, 0]


def test_it_needs_step_times(cohort: Any) -> None:
    with pytest.raises(ValueError, match="step times"):
        goodput.wish(situation_of(cohort(), [0.9], times=None), None)


# Monotone

hazard_lists = st.lists(st.floats(0.01, 0.99), min_size=1, max_size=8)


@settings(max_examples=40, deadline=None)
@given(hazard_lists, st.floats(1.0, 30.0), st.sampled_from(["draft", "positions"]))
def test_dearer_drafts_or_positions_never_raise_k(
    cohort_policy: Any, hazards: list[float], factor: float, what: str
) -> None:
    policy = cohort_policy(tuner="goodput", ladder=ALL, start=0, fallback=0)
    more = (factor - 1.0) * 0.0004 * np.outer(LOADS, KS + 1)
    dear = (
        replace(LINEAR, draft=factor * LINEAR.draft)
        if what == "draft"
        else replace(LINEAR, verify=LINEAR.verify + more)
    )
    cheap_k, dear_k = (wished(situation_of(policy, hazards, times=times)) for times in (LINEAR, dear))
    assert all(d <= c for d, c in zip(dear_k, cheap_k, strict=True))


@settings(max_examples=40, deadline=None)
@given(hazard_lists)
def test_more_sequences_beside_never_raise_k_where_positions_cost_the_same(
    cohort_policy: Any, hazards: list[float]
) -> None:
    ks = wished(situation_of(cohort_policy(tuner="goodput", ladder=ALL, start=0, fallback=0), hazards))
    assert ks == sorted(ks, reverse=True)

"""The saving of pairs of windows: estimand, interval, what offered load explains, and what is never extrapolated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import log

import numpy as np
import pytest
from scipy import stats

from controlplane.experiment import Run, Spec
from controlplane.finops.savings import Pair, Sums, saving
from controlplane.finops.savings_checks import drift_checks, guardrails, length_distance, quantile
from controlplane.finops.savings_projection import LoadHour, projection
from controlplane.finops.savings_report import Arm, Report, build
from controlplane.telemetry import LatencyHistogram

Make = Callable[..., list[Pair]]


def test_a_pair_is_the_log_of_the_ratio_of_seconds_by_token() -> None:
    pair = Pair(0, 0.0, True, Sums(busy_ns=80, tokens=10), Sums(busy_ns=100, tokens=10))
    assert pair.log_ratio("capacity") == pytest.approx(log(0.8))


def test_the_estimate_and_the_fixed_interval_are_those_of_a_t_test(make_pairs: Make) -> None:
    pairs = make_pairs(25)
    d = [p.log_ratio("capacity") for p in pairs]
    found = saving(pairs, adjust=False)
    test = stats.ttest_1samp(d, 0.0).confidence_interval(0.95)
    assert found.share == pytest.approx(1 - np.exp(np.mean(d)))
    assert (found.fixed_low, found.fixed_high) == pytest.approx((1 - np.exp(test.high), 1 - np.exp(test.low)))


def test_the_interval_that_may_be_watched_is_wider_than_the_planned_one(make_pairs: Make) -> None:
    found = saving(make_pairs())
    assert found.low < found.fixed_low < found.share < found.fixed_high < found.high


def test_nothing_is_claimed_before_ten_pairs(make_pairs: Make) -> None:
    nine, ten = (saving(make_pairs(n, spread=0.001)) for n in (9, 10))
    assert nine.low is None
    assert not nine.is_clear
    assert ten.is_clear


def test_a_saving_whose_interval_holds_zero_is_not_clear(make_pairs: Make) -> None:
    found = saving(make_pairs(12, saving=0.02, spread=0.2))
    assert found.low < 0 < found.high
    assert not found.is_clear
    assert found.pairs_needed > 0


def test_the_days_still_needed_are_those_of_the_pairs(make_pairs: Make) -> None:
    found = saving(make_pairs(12, saving=0.05, spread=0.2), pair_every_s=86_400)
    assert found.seconds_needed == found.pairs_needed * 86_400


def test_capacity_is_saved_on_an_idle_fleet_and_cash_is_not(make_pairs: Make) -> None:
    pairs = make_pairs(saving=0.3)
    assert saving(pairs, "capacity").share == pytest.approx(0.3, abs=0.03)
    assert saving(pairs, "cash").share == pytest.approx(0.0, abs=1e-9)


def test_energy_that_nobody_measured_is_no_saving_of_nothing(make_pairs: Make) -> None:
    pairs = [replace(p, treatment=replace(p.treatment, energy_uj=None)) for p in make_pairs()]
    assert saving(pairs, "energy").share is None
    assert saving(pairs, "energy").pairs == 0


def test_a_price_missing_in_one_arm_is_not_compared_with_money_in_the_other(make_pairs: Make) -> None:
    pairs = [replace(p, treatment=replace(p.treatment, billed_nano=None)) for p in make_pairs()]
    assert saving(pairs, "cash").share == pytest.approx(0.0, abs=1e-9)


def test_offered_load_takes_noise_away_and_leaves_the_saving(make_pairs: Make) -> None:
    rng, pairs = np.random.default_rng(2), []
    for p in make_pairs(spread=0.01):
        load = rng.normal(0, 0.3)  # a busier window is cheaper by token
        busier = replace(
            p.treatment,
            arrivals=round(p.treatment.arrivals * np.exp(load)),
            prompt_tokens=round(p.treatment.prompt_tokens * np.exp(load)),
            busy_ns=round(p.treatment.busy_ns * np.exp(-0.5 * load)),
        )
        pairs.append(replace(p, treatment=busier))
    plain, found = saving(pairs, adjust=False), saving(pairs)
    assert found.removed > 0.9
    assert found.high - found.low < (plain.high - plain.low) / 3
    assert found.share == pytest.approx(0.2, abs=0.01)


def test_arrivals_that_speculation_moved_are_not_adjusted_for(make_pairs: Make) -> None:
    """Clients that wait for an answer ask more often where answers come faster: that explains the effect away."""
    rng, pairs = np.random.default_rng(2), []
    for p in make_pairs(spread=0.01):
        arrivals = round(p.control.arrivals * 1.2 * np.exp(rng.normal(0, 0.03)))
        prompts = round(arrivals * 100 * np.exp(rng.normal(0, 0.01)))
        pairs.append(replace(p, treatment=replace(p.treatment, arrivals=arrivals, prompt_tokens=prompts)))
    found = saving(pairs)
    assert found.left_out == ("arrivals",)
    assert found.share == pytest.approx(0.2, abs=0.01)
    load = {check.name: check for check in drift_checks(pairs)}["offered load"]
    assert not load.is_good
    assert "clients wait for answers" in load.sentence


def test_tokens_produced_do_not_move_the_adjustment(make_pairs: Make) -> None:
    """They are what the treatment changes; adjusting for them would explain the effect away."""
    pairs = make_pairs()
    more = [replace(p, treatment=replace(p.treatment, completion_tokens=99_999)) for p in pairs]
    assert saving(more) == saving(pairs)


def test_an_experiment_without_a_usable_pair_says_so() -> None:
    found = saving([Pair(0, 0.0, True, Sums(), Sums())])
    assert (found.pairs, found.share, found.is_clear) == (0, None, False)


def test_outputs_that_got_shorter_break_their_guardrail(make_pairs: Make) -> None:
    by_name = {g.name: g for g in guardrails(make_pairs(completion_tokens=0.8))}
    assert by_name["output length"].verdict == "broken"
    assert by_name["output length"].change == pytest.approx(-0.2)


def test_answers_that_got_slower_break_theirs(make_pairs: Make) -> None:
    by_name = {g.name: g for g in guardrails(make_pairs(tpot=1.5))}
    assert by_name["tpot p50"].verdict == "broken"
    assert by_name["ttft p50"].verdict == "kept"


def test_requests_that_fail_break_theirs(make_pairs: Make) -> None:
    failing = [replace(p, treatment=replace(p.treatment, failed=4)) for p in make_pairs()]
    by_name = {g.name: g for g in guardrails(failing)}
    assert by_name["errors"].verdict == "broken"
    assert by_name["errors"].change == pytest.approx(0.02)


def test_few_pairs_neither_break_nor_keep_a_guardrail(make_pairs: Make) -> None:
    assert {g.verdict for g in guardrails(make_pairs(3))} == {"unclear"}


def test_the_distance_of_length_mixes_is_the_share_that_moved(make_pairs: Make) -> None:
    moved = [replace(p, treatment=replace(p.treatment, lengths=(50, 0, 0, 0, 150, *(0,) * 7))) for p in make_pairs()]
    assert length_distance(moved) == pytest.approx(0.25)
    assert length_distance([]) is None


def test_a_quantile_is_linear_within_its_bucket() -> None:
    histogram = LatencyHistogram()
    for _ in range(100):
        histogram = histogram.observe(0.015)  # between 0.01 and 0.02
    assert quantile(histogram, 0.5) == pytest.approx(0.015)
    assert quantile(LatencyHistogram(), 0.5) is None


def test_sound_pairs_pass_every_check(make_pairs: Make) -> None:
    assert [check.is_good for check in drift_checks(wobbling(make_pairs(seed=4)))] == [True] * 5


def wobbling(pairs: list[Pair], shift: float = 0.0) -> list[Pair]:
    """The first halves of the treated windows are as dear as the second ones but for noise, and `shift`."""
    rng = np.random.default_rng(3)
    return [
        replace(
            p,
            treatment=replace(
                p.treatment, early_busy_ns=round(p.treatment.early_busy_ns * (1 + shift + rng.normal(0, 0.02)))
            ),
        )
        for p in pairs
    ]


def test_a_carry_over_into_the_measured_part_shows_in_its_halves(make_pairs: Make) -> None:
    pairs = wobbling(make_pairs(seed=4), 0.1)
    by_name = {check.name: check for check in drift_checks(pairs)}
    assert not by_name["carry-over"].is_good
    assert "lengthen burn_in" in by_name["carry-over"].sentence


def test_a_difference_between_the_orders_is_found(make_pairs: Make) -> None:
    pairs = [
        replace(
            p, treatment=replace(p.treatment, busy_ns=round(p.treatment.busy_ns * (1.2 if p.treatment_first else 1)))
        )
        for p in make_pairs(seed=4)
    ]
    assert not {check.name: check for check in drift_checks(pairs)}["order"].is_good


def test_a_saving_that_melts_away_is_a_trend(make_pairs: Make) -> None:
    pairs = [
        replace(p, treatment=replace(p.treatment, busy_ns=round(p.treatment.busy_ns * 1.01**p.index)))
        for p in make_pairs(seed=4)
    ]
    trend = {check.name: check for check in drift_checks(pairs)}["trend"]
    assert not trend.is_good
    assert trend.value == pytest.approx(log(1.01), abs=0.003)


def test_pairs_that_resemble_their_neighbours_are_said_to_make_the_interval_too_narrow(make_pairs: Make) -> None:
    """With a correlation of 0.5 and nothing saved, 24 of 100 runs that are watched claim something."""
    rng, pairs, d = np.random.default_rng(5), [], 0.0
    for p in make_pairs(60, spread=0.0):
        d = 0.5 * d + rng.normal(0, 0.05)
        pairs.append(replace(p, treatment=replace(p.treatment, busy_ns=round(p.treatment.busy_ns * np.exp(d)))))
    found = {check.name: check for check in drift_checks(pairs)}["neighbours"]
    assert not found.is_good
    assert found.value == pytest.approx(0.5, abs=0.15)
    assert "times as wide" in found.sentence


def at_load(pairs: list[Pair], arrivals: int) -> list[Pair]:
    return [
        replace(
            p,
            treatment=replace(p.treatment, arrivals=arrivals),
            control=replace(p.control, arrivals=arrivals),
        )
        for p in pairs
    ]


def test_a_month_is_weighted_by_its_own_loads(make_pairs: Make) -> None:
    """Measured half and half, but the month was busy for three hours in four, where little is saved."""
    calm, busy = at_load(make_pairs(20, saving=0.5, spread=0.001), 300), at_load(make_pairs(20, 0.1, 0.001), 4800)
    hour = 3600 * 10**9
    hours = [LoadHour(0.6, hour, 2_000_000_000), *[LoadHour(8.5, hour, 2_000_000_000)] * 3]
    found = projection([*calm, *busy], hours)
    without = 1 / 0.5 + 3 / 0.9
    assert found.share == pytest.approx(1 - 4 / without, abs=0.002)
    assert found.low < found.share < found.high
    assert found.nano == pytest.approx((without - 4) * 2e9, rel=0.01)
    # At one price money is that share of the machine time, and so is its interval.
    assert found.nano_high - found.nano == pytest.approx((found.high - found.share) * without**2 / 4 * 2e9, rel=0.01)
    assert found.nano - found.nano_low == pytest.approx(found.nano_high - found.nano, abs=2)
    assert "projection" in found.label


def test_a_load_that_was_not_measured_is_not_extrapolated_to(make_pairs: Make) -> None:
    hour = 3600 * 10**9
    found = projection(at_load(make_pairs(), 300), [LoadHour(0.6, hour, None), LoadHour(40.0, hour, None)])
    assert found.share is None
    assert found.covered == 0.5
    assert "32 to 64 requests a worker-second" in (found.refused or "")


def test_an_unpriced_hour_leaves_the_share_and_no_money(make_pairs: Make) -> None:
    found = projection(at_load(make_pairs(), 300), [LoadHour(0.6, 10**12, None)])
    assert found.share is not None
    assert found.nano is None


def reported(pairs: list[Pair], sources: tuple[str, str] = ("counter", "counter")) -> Report:
    """The report of these pairs; sources: of the energy with speculation, and without."""
    run = Run("exp", Spec("window", 0.5, 600.0, 60.0), 7, 0.0, "ann", "to see")
    arms = []
    for pair in pairs:
        for window in run.windows(pair.index):
            is_treated = window.arm == "treatment"
            sums = pair.treatment if is_treated else pair.control
            arms.append(Arm(replace(window, state="done"), sums, (sources[0 if is_treated else 1],)))
    return build(run, arms, [])


def test_windows_in_which_every_request_failed_are_no_pair_and_break_the_guardrail_all_the_same(
    make_pairs: Make,
) -> None:
    """Else what fails altogether would leave the pairs in which nothing happened, and a saving."""
    pairs = make_pairs(30)
    dead = Sums(seconds_ns=600 * 10**9, arrivals=200, failed=200)
    broken = [replace(p, treatment=dead) if p.index % 3 == 0 else p for p in pairs]
    found = reported(broken)
    assert (found.savings["capacity"].pairs, len(found.refused)) == (20, 10)
    assert [rail.name for rail in found.broken] == ["errors"]
    assert not found.is_saving


def test_energy_that_was_measured_is_not_compared_with_an_estimate(make_pairs: Make) -> None:
    pairs = make_pairs(12)
    assert reported(pairs).savings["energy"].pairs == 12
    assert reported(pairs, ("model", "model")).savings["energy"].pairs == 12
    assert reported(pairs, ("counter", "model")).savings["energy"].share is None

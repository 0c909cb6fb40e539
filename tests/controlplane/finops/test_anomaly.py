"""Which hours are unusual, that the parts of a change add up to it, and the cause that is named."""

from __future__ import annotations

from math import exp, log
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.finops.anomaly import DEFAULT, HourUse, Rule, factors_of, find, hours_needed, usual_factors, widening

HOUR = 490_000
NS = 3600 * 10**9

PLAIN = HourUse(
    "chat", HOUR, input_ns=NS // 10, output_ns=NS // 2, idle_ns=NS // 5, cost_nano=2 * 10**9, uj=3 * 10**11,
    tokens=60_000, measured_tokens=60_000, steps=30_000, draft_tokens=60_000, accepted_tokens=30_000,
)  # fmt: skip


def history(hours: int, of: HourUse = PLAIN) -> list[HourUse]:
    """The same hour again and again, up to the one before HOUR, as noisy as real ones."""
    return [
        of._replace(hour=HOUR - n, cost_nano=round(of.cost_nano * (1 + 0.01 * (n % 5))), idle_ns=of.idle_ns + n % 3)
        for n in range(1, hours + 1)
        if of.cost_nano is not None
    ]


def examine(use: HourUse, before: list[HourUse], rule: Rule = DEFAULT):
    return find([*before, use], HOUR, HOUR + 1, rule)


def only(use: HourUse, before: list[HourUse], rule: Rule = DEFAULT):
    """The one anomaly of that hour's cost."""
    (found,) = [each for each in examine(use, before, rule).anomalies if each.metric == "cost"]
    return found


def test_an_hour_like_the_others_is_not_unusual() -> None:
    assert examine(PLAIN, history(48)).anomalies == ()


def test_an_hour_at_twice_the_cost_is_unusual() -> None:
    found = only(PLAIN._replace(cost_nano=4 * 10**9), history(48))
    assert found.value / found.usual == pytest.approx(2.0, rel=0.03)


def test_a_cheap_hour_is_unusual_too() -> None:
    assert only(PLAIN._replace(cost_nano=10**9), history(48)).z < -3.5


def test_cost_is_in_currency_per_million_tokens() -> None:
    found = only(PLAIN._replace(cost_nano=6 * 10**9), history(48))
    assert found.value == pytest.approx(100.0)  # 6 for 60,000 tokens


def test_energy_is_in_joules_per_token() -> None:
    use = PLAIN._replace(uj=6 * 10**11)
    (found,) = examine(use, history(48)).anomalies
    assert (found.metric, found.value) == ("energy", pytest.approx(10.0))


def test_a_flat_history_does_not_explode_over_a_rounding_error() -> None:
    flat = [PLAIN._replace(hour=HOUR - n) for n in range(1, 49)]
    assert examine(PLAIN._replace(cost_nano=2 * 10**9 + 1_000_000), flat).anomalies == ()


@pytest.mark.parametrize(("hours", "baseline"), [(range(1, 15), "recent"), (range(1, 6 * 168), "week")])
def test_noise_is_seldom_unusual_even_with_few_hours_to_know_it_by(hours: range, baseline: str) -> None:
    """Normal noise of 10 %: at 3.5 standard deviations one hour in 2,000; a scale of few hours errs, and is widened."""
    noise, unusual, tried = Random(5), 0, 600
    for _ in range(tried):
        before = [PLAIN._replace(hour=HOUR - n, cost_nano=round(2e9 * exp(noise.gauss(0, 0.1)))) for n in hours
                  if n < 15 or n % 168 in (0, 1, 167)]  # fmt: skip
        found = examine(PLAIN._replace(cost_nano=round(2e9 * exp(noise.gauss(0, 0.1)))), before).anomalies
        unusual += bool(found)
        assert {each.baseline for each in found} <= {baseline}
    assert unusual <= 3


def test_many_hours_are_hardly_widened() -> None:
    assert 1.0 < widening(168, 3.5) < 1.1 < widening(42, 3.5) < 1.3 < widening(12, 3.5) < 2.5


def test_a_flat_history_still_tells_a_jump() -> None:
    flat = [PLAIN._replace(hour=HOUR - n) for n in range(1, 49)]
    assert only(PLAIN._replace(cost_nano=3 * 10**9), flat).z == pytest.approx(log(1.5) / 0.05)


def test_one_hour_of_another_kind_in_the_history_changes_little() -> None:
    before = history(48)
    before[3] = before[3]._replace(cost_nano=10**12)
    assert only(PLAIN._replace(cost_nano=4 * 10**9), before).usual == pytest.approx(34.0, rel=0.02)


def test_a_thin_hour_raises_nothing() -> None:
    found = examine(PLAIN._replace(cost_nano=10**12, tokens=999), history(48))
    assert (found.anomalies, found.thin) == ((), 1)


def test_thin_hours_are_no_history() -> None:
    thin = [use._replace(tokens=999) for use in history(48)]
    assert examine(PLAIN, thin).young == 1


def test_a_young_cohort_raises_nothing() -> None:
    found = examine(PLAIN._replace(cost_nano=10**12), history(11))
    assert (found.anomalies, found.young) == ((), 1)


def test_an_unpriced_hour_is_not_a_cheap_one() -> None:
    assert examine(PLAIN._replace(cost_nano=None), history(48)).anomalies == ()


def test_an_unmeasured_hour_is_not_a_frugal_one() -> None:
    assert examine(PLAIN._replace(uj=None, measured_tokens=0), history(48)).anomalies == ()


def test_a_night_is_held_against_nights() -> None:
    """At night the same machine serves a tenth of the tokens: no anomaly, as all the nights before were so."""
    night = PLAIN._replace(tokens=6_000, steps=3_000, measured_tokens=6_000)
    days = [
        (night if (HOUR - n) % 24 == HOUR % 24 else PLAIN)._replace(hour=HOUR - n)
        for n in range(1, 14 * 24)
        if (HOUR - n) % 24 in (HOUR % 24, (HOUR + 8) % 24, (HOUR + 12) % 24, (HOUR + 16) % 24)
    ]
    assert examine(night, days).anomalies == ()
    assert only(night._replace(cost_nano=5 * 10**9), days).baseline == "day"


def test_with_weeks_of_history_a_weekend_is_held_against_weekends() -> None:
    weeks = [PLAIN._replace(hour=HOUR - n, cost_nano=2 * 10**9) for n in range(1, 5 * 168)]
    assert only(PLAIN._replace(cost_nano=4 * 10**9), weeks).baseline == "week"


def test_hours_of_other_cohorts_are_not_looked_back_on() -> None:
    others = [use._replace(cohort="code") for use in history(48)]
    assert examine(PLAIN._replace(cost_nano=10**12), others).young == 1


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"cost_nano": 4 * 10**9}, "price"),
        ({"tokens": 30_000, "accepted_tokens": 0}, "acceptance"),
        ({"idle_ns": 3 * NS, "cost_nano": 9 * 10**9}, "idle"),
        ({"output_ns": 2 * NS, "cost_nano": round(4.6 * 10**9 / 1.6 * 2)}, "load"),
        ({"input_ns": 2 * NS, "cost_nano": round(2.7 / 0.8 * 2 * 10**9)}, "prefill"),
    ],
)
def test_the_cause_is_what_moved(changes, cause) -> None:
    assert only(PLAIN._replace(**changes), history(48)).cause == cause


def test_of_energy_the_power_is_a_cause() -> None:
    (found,) = examine(PLAIN._replace(uj=9 * 10**11), history(48)).anomalies
    assert found.cause == "power"


amounts = st.integers(1, 10**6)
uses = st.builds(
    lambda i, o, d, c, t, s: HourUse("chat", HOUR, i, o, d, c, c, t, t, s, s, s),
    amounts, amounts, st.integers(0, 10**6), amounts, st.integers(1, 10**5), st.integers(1, 10**5),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(uses)
def test_the_factors_are_the_cost_of_a_token(use: HourUse) -> None:
    factors = factors_of(use, "cost")
    assert factors is not None
    assert sum(factors.values()) == pytest.approx(log(use.cost_nano / use.tokens), abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(uses, st.lists(uses, min_size=3, max_size=9))
def test_the_parts_add_up_to_the_change_and_the_cause_has_its_sign(use: HourUse, before: list[HourUse]) -> None:
    rule = Rule(min_tokens=1, min_recent=3, threshold=0.01)
    earlier = [each._replace(hour=HOUR - 1 - n) for n, each in enumerate(before)]
    for found in find([*earlier, use], HOUR, HOUR + 1, rule).anomalies:
        assert sum(found.parts.values()) == pytest.approx(found.change, abs=1e-9)
        # The largest of five parts is at least a fifth of their sum.
        assert found.parts[found.cause] / found.change >= 0.2 - 1e-6


def test_a_factor_that_never_changed_keeps_its_median() -> None:
    earlier = [{"price": 1.0, "idle": a, "load": b} for a, b in ((0.0, 0.0), (1.0, 3.0), (3.0, 1.0), (5.0, 0.5))]
    assert usual_factors(earlier, 4.0)["price"] == 1.0


def test_a_rule_that_cannot_be_names_its_field() -> None:
    with pytest.raises(ValueError, match="floor: must be over 0"):
        Rule(floor=0.0)


def test_the_least_change_that_is_unusual_is_the_threshold_of_floors() -> None:
    flat = [PLAIN._replace(hour=HOUR - n) for n in range(1, 49)]
    just_over = round(2 * 10**9 * exp(3.5 * 0.05 + 1e-6))
    assert only(PLAIN._replace(cost_nano=just_over), flat).z == pytest.approx(3.5, abs=1e-3)


@pytest.mark.parametrize("spans", [1, 3, 30])
def test_the_hours_that_are_needed_say_all_that_is_said_of_a_year(spans: int) -> None:
    year = [PLAIN._replace(hour=HOUR - n, cost_nano=2 * 10**9 + n * 10**6) for n in range(9000)]
    needed = hours_needed(HOUR - spans + 1, HOUR + 1)
    rule = Rule(threshold=0.001)
    some = find([use for use in year if use.hour in needed], HOUR - spans + 1, HOUR + 1, rule)
    assert some == find(year, HOUR - spans + 1, HOUR + 1, rule)
    assert len(some.anomalies) > 0

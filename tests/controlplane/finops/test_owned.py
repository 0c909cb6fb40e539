"""An owned hour is capital and electricity, exact in decimals, and shown in its parts."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal, localcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.finops.pricing import NANO, OwnedTerms, PriceError, parse_prices

TERMS = {"capex": "25550", "amortise_months": "35", "power_w": "700", "pue": "1.2", "electricity_per_kwh": "0.10"}


def sheet_text(**fields: str) -> str:
    head = "version: 1\nprices:\n  - sku: gpu\n    basis: owned\n    currency: EUR\n    source: a contract\n"
    dates = "    as_of: 2026-05-20\n    effective_from: 2026-01-01\n"
    return head + dates + "".join(f"    {name}: {value}\n" for name, value in fields.items())


def problems_of(text: str) -> tuple[str, ...]:
    with pytest.raises(PriceError) as caught:
        parse_prices(text)
    return caught.value.problems


def test_an_owned_hour_is_capital_over_its_life_and_the_power_of_its_site() -> None:
    price = parse_prices(sheet_text(**TERMS)).prices[0]
    assert price.per_hour == Decimal("1.084")  # 25550 / (35 x 730) + 0.7 x 1.2 x 0.10
    assert price.owned is not None
    assert price.owned.parts_nano == (1_000_000_000, 84_000_000)


def test_a_machine_in_use_half_of_its_life_costs_twice_the_capital_and_the_same_power() -> None:
    price = parse_prices(sheet_text(**TERMS, utilisation="0.5")).prices[0]
    assert price.owned is not None
    assert price.owned.parts_nano == (2_000_000_000, 84_000_000)


def test_an_owned_hour_may_be_given_plainly() -> None:
    price = parse_prices(sheet_text(per_hour="1.084")).prices[0]
    assert (price.per_hour, price.owned) == (Decimal("1.084"), None)


def test_an_owned_hour_that_names_no_electricity_is_refused_with_what_is_missing() -> None:
    found = problems_of(sheet_text(capex="1", amortise_months="12"))
    assert [p.split(": ")[1] for p in found] == ["prices[0].power_w", "prices[0].pue", "prices[0].electricity_per_kwh"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"per_hour": "1"}, "per_hour: stands beside capex; give the price, or what it is built from, not both"),
        ({"utilisation": "80"}, "utilisation: 80 is not between 0.01 and 1"),
        ({"pue": "0.9"}, "pue: 0.9 is not between 1 and 10"),
        ({"amortise_months": "0"}, "amortise_months: 0 is not between 1 and 1200"),
        ({"capex": "100000000000"}, "capex: comes to 3913894.41 an hour; 1000000 is the most"),
        ({"electricity_kwh": "1"}, 'electricity_kwh: unknown field; did you mean "electricity_per_kwh"?'),
    ],
)
def test_terms_that_make_no_price_are_refused(change: dict[str, str], says: str) -> None:
    assert any(says in problem for problem in problems_of(sheet_text(**{**TERMS, **change})))


def decimals(least: str, most: str) -> st.SearchStrategy[Decimal]:
    return st.decimals(Decimal(least), Decimal(most), places=4, allow_nan=False, allow_infinity=False)


@settings(deadline=None, max_examples=100)
@given(decimals("0", "9e8"), decimals("1", "120"), decimals("0.01", "1"), decimals("0", "2000"), decimals("1", "3"),
       decimals("0", "50"))  # fmt: skip
def test_an_owned_hour_is_exact_to_the_nano_unit(
    capex: Decimal, months: Decimal, utilisation: Decimal, power: Decimal, pue: Decimal, tariff: Decimal
) -> None:
    terms = OwnedTerms(capex, months, power, pue, tariff, utilisation)
    with localcontext(prec=120):
        hour = capex / (months * 730 * utilisation) + power / 1000 * pue * tariff
        nano = int((hour * NANO).to_integral_value(ROUND_HALF_EVEN))
    assert terms.per_hour_nano == nano
    assert sum(terms.parts_nano) == nano
    assert min(terms.parts_nano) >= 0

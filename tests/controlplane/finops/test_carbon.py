"""Grams of CO2 are exact, dated, and None where anything is not known."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Decimal, localcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.finops.carbon import (
    Intensity,
    carbon_between,
    carbon_grams,
    carbon_intensity,
    facility_uj,
    intensities,
    zone_problem,
)
from controlplane.settings import SettingsError, load_settings

KWH = 3_600_000_000_000
AT = datetime(2026, 11, 29, tzinfo=UTC).timestamp()


def test_a_kilowatt_hour_is_the_zones_figure() -> None:
    assert [carbon_grams(KWH, zone, AT) for zone in ("FRA", "POL", "world")] == [
        Decimal(56),
        Decimal(662),
        Decimal(475),
    ]


def test_the_pue_multiplies_the_grams_and_stays_apart_from_the_energy() -> None:
    assert carbon_grams(KWH, "DEU", AT, pue=Decimal("1.56")) == Decimal("594.36")
    assert facility_uj(KWH, Decimal("1.56")) == 5_616_000_000_000


def test_a_single_microjoule_is_rounded_to_a_billionth_of_a_gram_and_no_further() -> None:
    assert carbon_grams(10_000_000, "IND", AT) == Decimal("0.001980556")  # 10 J x 713 / 3.6e6


@pytest.mark.parametrize(("uj", "zone"), [(None, "DEU"), (KWH, None), (KWH, "none"), (KWH, "DE"), (KWH, "ger")])
def test_what_is_not_known_is_none_and_never_zero(uj: int | None, zone: str | None) -> None:
    assert carbon_grams(uj, zone, AT) is None


def test_energy_of_before_the_first_year_of_the_table_has_no_grams() -> None:
    assert carbon_grams(KWH, "DEU", datetime(2022, 12, 31, tzinfo=UTC).timestamp()) is None


def test_the_newest_year_that_is_not_after_the_hour_is_taken() -> None:
    table = [Intensity("DEU", year, Decimal(year), "test") for year in (2023, 2025, 2027)]
    found = carbon_intensity("DEU", AT, table)
    assert found is not None
    assert found.year == 2025


def test_every_line_of_the_shipped_table_has_a_year_and_a_source() -> None:
    assert {row.zone for row in intensities()} >= {"FRA", "SWE", "GBR", "USA", "DEU", "CHN", "POL", "IND", "world"}
    assert all(row.source and 2000 < row.year < 2100 and row.grams_per_kwh > 0 for row in intensities())


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 10**18), st.sampled_from(["FRA", "DEU", "IND"]), st.decimals("1", "3", places=3))
def test_grams_are_exact_to_a_billionth(uj: int, zone: str, pue: Decimal) -> None:
    intensity = carbon_intensity(zone, AT)
    assert intensity is not None
    with localcontext(prec=100):
        exact = Decimal(uj) / KWH * intensity.grams_per_kwh * pue
        assert carbon_grams(uj, zone, AT, pue=pue) == exact.quantize(Decimal("1e-9"), ROUND_HALF_EVEN)


def test_a_stretch_with_one_figure_is_counted_with_it() -> None:
    carbon = carbon_between("DEU", AT - 86400.0, AT, Decimal("1.56"))
    assert carbon is not None
    assert carbon.grams(KWH) == Decimal("594.36")
    assert carbon_between("none", 0.0, AT) is None


def test_a_stretch_that_begins_before_the_table_has_no_one_figure() -> None:
    with pytest.raises(ValueError, match="DEU has different figures at the start and the end"):
        carbon_between("DEU", 0.0, AT)


def test_a_zone_that_is_not_known_names_a_close_one_as_settings_are_read() -> None:
    assert zone_problem("DEU") is None
    with pytest.raises(SettingsError, match="--carbon-zone: no carbon intensity is known for it; did you mean DEU"):
        load_settings(carbon_zone="deu")


def test_a_pue_under_one_is_refused() -> None:
    with pytest.raises(SettingsError, match="--pue: input should be greater than or equal to 1"):
        load_settings(pue="0.9")

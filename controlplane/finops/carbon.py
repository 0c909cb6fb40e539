"""Carbon of the energy that was measured: a dated table of grid intensities, and the arithmetic.

Facility energy = IT energy x PUE (power usage effectiveness: what the whole site draws over what the machines draw),
and grams = kilowatt-hours of the facility x grams a kilowatt-hour. Energy that was not measured, and a zone that is not
configured, give None: never 0, never the figure of another zone.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path

import yaml

TABLE = Path(__file__).with_name("carbon.yaml")
UJ_PER_KWH = 3_600_000_000_000
NANO = 10**9
ONE = Decimal(1)
NO_ZONE = "none"
"""The setting of who does not ask for carbon. No table has a zone of this name, so every figure is then None."""


@dataclass(frozen=True, slots=True)
class Intensity:
    """Grams of CO2 equivalent a kilowatt-hour of a zone's grid, as a mean of that year."""

    zone: str
    year: int
    grams_per_kwh: Decimal
    source: str


@cache
def intensities() -> tuple[Intensity, ...]:
    """The shipped table, by zone and year."""
    entries = yaml.load(TABLE.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)["intensities"]
    rows = (Intensity(e["zone"], int(e["year"]), Decimal(e["grams_per_kwh"]), e["source"]) for e in entries)
    return tuple(sorted(rows, key=lambda row: (row.zone, row.year)))


def zones() -> tuple[str, ...]:
    """Every zone that the shipped table has."""
    return tuple(dict.fromkeys(row.zone for row in intensities()))


def zone_problem(zone: str) -> str | None:
    """What is wrong with a configured zone; None when it is on the table, or NO_ZONE (no carbon)."""
    if zone == NO_ZONE or zone in zones():
        return None
    close = difflib.get_close_matches(zone.upper(), zones(), n=1)
    hint = f"did you mean {close[0]}?" if close else f"known ones: {', '.join(zones())}, {NO_ZONE}"
    return f"no carbon intensity is known for it; {hint}"


def carbon_intensity(zone: str | None, at: float, table: Iterable[Intensity] | None = None) -> Intensity | None:
    """The newest figure of that zone whose year is not after that of `at` (unix seconds); None when there is none."""
    year = datetime.fromtimestamp(at, UTC).year
    return _shipped(zone, year) if table is None else _newest(table, zone, year)


@cache
def _shipped(zone: str | None, year: int) -> Intensity | None:
    return _newest(intensities(), zone, year)


def _newest(table: Iterable[Intensity], zone: str | None, year: int) -> Intensity | None:
    rows = [row for row in table if row.zone == zone and row.year <= year]
    return max(rows, key=lambda row: row.year, default=None)


def facility_uj(uj: int | None, pue: Decimal = ONE) -> int | None:
    """What the site drew for that IT energy: microjoules x PUE, rounded half to even. None = not measured."""
    return None if uj is None else round(uj * Fraction(pue))


@cache
def _nano_per_uj(grams_per_kwh: Decimal, pue: Decimal) -> tuple[int, int]:
    """Billionths of a gram a microjoule, as numerator and denominator."""
    return (Fraction(grams_per_kwh) * Fraction(pue) * NANO / UJ_PER_KWH).as_integer_ratio()


@dataclass(frozen=True, slots=True)
class Carbon:
    """One intensity and a PUE, for all energy of a stretch of time."""

    intensity: Intensity
    pue: Decimal

    def grams(self, uj: int | None) -> Decimal | None:
        """Grams of CO2 equivalent of that much IT energy (microjoules); None = not measured.

        Rounded once, half to even, to the billionth of a gram.
        """
        if uj is None:
            return None
        whole, per = _nano_per_uj(self.intensity.grams_per_kwh, self.pue)
        nano, rest = divmod(uj * whole, per)
        nano += 2 * rest > per or (2 * rest == per and nano % 2)
        return Decimal(nano).scaleb(-9)


def carbon_grams(uj: int | None, zone: str | None, at: float, *, pue: Decimal = ONE) -> Decimal | None:
    """Grams of CO2 equivalent of that much IT energy (microjoules), used at `at` (unix seconds) in that zone.

    None where the energy was not measured, the zone is None or NO_ZONE, or the table has no figure for it at that time.
    """
    intensity = carbon_intensity(zone, at)
    return None if intensity is None else Carbon(intensity, pue).grams(uj)


def carbon_between(zone: str | None, start: float, end: float, pue: Decimal = ONE) -> Carbon | None:
    """What all energy of a stretch (unix seconds, end exclusive) is counted with; None where the zone has no figure.

    Raises ValueError where it spans two figures: its sums have no one intensity.
    """
    first, last = carbon_intensity(zone, start), carbon_intensity(zone, max(start, end - 1e-3))
    if first != last:
        raise ValueError(f"carbon: {zone} has different figures at the start and the end; ask for each year alone")
    return None if first is None else Carbon(first, pue)

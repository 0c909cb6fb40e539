"""What an hour of a machine that one owns costs: its capital spread over its life, and the electricity it draws."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

HOURS_PER_MONTH = 730
"""Of a mean month: 8760 / 12."""

NANO_PER_UNIT = 10**9


@dataclass(frozen=True, slots=True)
class OwnedTerms:
    """An hour costs capex / (amortise_months x 730 x utilisation) + power_w / 1000 x pue x electricity_per_kwh.

    capex: price of the machine of one worker, in the sheet's currency, as electricity_per_kwh. utilisation: the share
    of its life in which a worker runs on it. Hours in which a worker runs and has nothing to do are billed as idle, so
    they belong to that share: leaving them out would charge for them twice. power_w: mean draw in watts while a worker
    runs. pue: energy of the site over that of the machine.
    """

    capex: Decimal
    amortise_months: Decimal
    power_w: Decimal
    pue: Decimal
    electricity_per_kwh: Decimal
    utilisation: Decimal = Decimal(1)

    @property
    def capital(self) -> Fraction:
        """Of one hour, exactly."""
        hours = Fraction(self.amortise_months) * HOURS_PER_MONTH * Fraction(self.utilisation)
        return Fraction(self.capex) / hours

    @property
    def electricity(self) -> Fraction:
        """Of one hour, exactly."""
        return Fraction(self.power_w) / 1000 * Fraction(self.pue) * Fraction(self.electricity_per_kwh)

    @property
    def per_hour_nano(self) -> int:
        """Nano-units an hour, rounded once, half to even."""
        return round((self.capital + self.electricity) * NANO_PER_UNIT)

    @property
    def parts_nano(self) -> tuple[int, int]:
        """(capital, electricity) of per_hour_nano; they add up to it."""
        capital = round(self.capital * NANO_PER_UNIT)
        return capital, self.per_hour_nano - capital

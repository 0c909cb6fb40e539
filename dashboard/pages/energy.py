"""Energy and carbon: power, joules per token beside the batch, cohorts, idle and waste, and what measured them."""

from collections.abc import Iterator

from dashboard import energy_cards as cards
from dashboard.energy_reading import EnergyReading, read_energy
from dashboard.layout import show_live
from dashboard.ledger import Ledger


def energy(ledger: Ledger, found: EnergyReading) -> Iterator[None]:
    cards.show_key_figures(found)
    yield
    cards.show_command(ledger)
    cards.show_power(ledger, found)
    cards.show_batching(ledger, found)
    cards.show_cohorts(found)
    cards.show_carbon(ledger, found)


show_live("Energy and carbon", read_energy, energy)

"""Policy and audit: what is in force, what was, what another one would do, and everything that was decided."""

from collections.abc import Iterator

from dashboard import policy_cards as cards
from dashboard.layout import show_live
from dashboard.ledger import Ledger
from dashboard.policy_reading import PolicyReading, read_policy

SHOW = {
    "In force": cards.show_in_force,
    "Revisions": cards.show_revisions,
    "Try one": cards.show_trial,
    "Decisions": cards.show_decisions,
    "Events": cards.show_events,
}


def policy(ledger: Ledger, found: PolicyReading) -> Iterator[None]:
    yield from ()  # nothing stands below the figures
    SHOW[found.asked.part](ledger, found)


show_live("Policy and audit", read_policy, policy, cards.ask, without_traffic=True)

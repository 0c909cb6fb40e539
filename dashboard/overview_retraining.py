"""Whose drafter wants retraining, for the Overview's advice: the findings of the Speculation page, as sentences."""

from __future__ import annotations

from dashboard.break_even_rows import even_rows, wants_retraining
from dashboard.ledger import Ledger
from dashboard.speculation_evidence import price_per_hour, read_evidence
from dashboard.speculation_load import read_past


def retraining(ledger: Ledger) -> list[str]:
    """A sentence a cohort, busiest first; nothing where the windows on record are no evidence."""
    evidence = read_evidence(ledger)
    if evidence is None:
        return []
    price, _ = price_per_hour(ledger, evidence.devices)
    rows = even_rows(evidence, price) or []
    return [f"{each.cohort} {each.sentence}." for each in wants_retraining(evidence, rows, read_past(ledger, evidence))]

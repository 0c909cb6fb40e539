"""Whose drafter wants retraining, for the Overview's advice: the findings of the Speculation page, as sentences."""

from __future__ import annotations

from controlplane.store.queries import TimeRange, decision_log
from dashboard.break_even_rows import even_rows, pasts, wants_retraining
from dashboard.ledger import Ledger
from dashboard.speculation_evidence import price_per_hour, read_evidence
from dashboard.speculation_load import PAST_DECISIONS, PAST_S


def retraining(ledger: Ledger) -> list[str]:
    """A sentence a cohort, busiest first; nothing where the windows on record are no evidence."""
    evidence = read_evidence(ledger)
    if evidence is None:
        return []
    first = evidence.first_at
    past = ledger.cached(
        ("past", first),
        lambda: pasts(decision_log(ledger.engine, TimeRange(first - PAST_S, first), limit=PAST_DECISIONS)),
    )
    price, _ = price_per_hour(ledger, evidence.devices)
    rows = even_rows(evidence, price) or []
    return [f"{each.cohort} {each.sentence}." for each in wants_retraining(evidence, rows, past)]

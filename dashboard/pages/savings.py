"""Savings: the experiment, its pairs, its interval and its guardrails, and what to run next."""

from collections.abc import Iterator

import streamlit as st

from dashboard import savings_cards as cards
from dashboard.layout import show_live
from dashboard.ledger import Ledger
from dashboard.savings_reading import SavingsReading, read_savings


def savings(ledger: Ledger, found: SavingsReading) -> Iterator[None]:
    if found.told is None:
        cards.show_next(found)
        return
    report = found.told.report
    cards.show_state(ledger, report)
    cards.show_savings(report)
    yield
    cards.show_plots(ledger, found, found.told)
    left, right = st.columns(2)
    with left:
        cards.show_guardrails(report)
    with right:
        cards.show_adjustment(found, report)
    cards.show_checks(ledger, report)
    cards.show_next(found)
    cards.show_runs(ledger, found.runs)


show_live("Savings", read_savings, savings, cards.ask, without_traffic=True)

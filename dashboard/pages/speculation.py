"""Speculation: K and acceptance over time, how deep drafts survive, where they pay, and what they waste."""

from collections.abc import Iterator

import streamlit as st

from dashboard import break_even_cards, speculation_cards
from dashboard.layout import show_live, show_report_notes
from dashboard.ledger import Ledger
from dashboard.speculation_load import Speculation, load_speculation


def speculation(ledger: Ledger, found: Speculation) -> Iterator[None]:
    show_report_notes(found.report)
    speculation_cards.show_plan_figures(found.plan, ledger.now, ledger)
    yield
    speculation_cards.show_k(ledger, found)
    left, right = st.columns(2)
    with left:
        speculation_cards.show_acceptance(ledger, found)
    with right:
        speculation_cards.show_survival(ledger, found)
    speculation_cards.show_notes(found)
    cohorts = speculation_cards.ask_cohorts(ledger, found)
    speculation_cards.show_maps(found, cohorts)
    break_even_cards.show_break_even(ledger, found, cohorts)
    break_even_cards.show_retraining(found, ledger.cohort)
    break_even_cards.show_waste(ledger, found, cohorts)
    speculation_cards.show_counts(ledger, found, cohorts)


show_live("Speculation", load_speculation, speculation)

"""Speculation: K and acceptance length over time, what each cohort drafted and kept, the plan in force."""

import streamlit as st

from dashboard import cards
from dashboard.layout import show_live, show_report_notes
from dashboard.ledger import Ledger
from dashboard.snapshot import View, load_view


def speculation(_: Ledger, view: View) -> None:
    show_report_notes(view.snapshot.report)
    cards.show_plan_figures(view)
    cards.show_k(view)
    left, right = st.columns(2)
    with left:
        cards.show_acceptance(view)
    with right:
        cards.show_speed(view)
    cards.show_counts(view)
    cards.show_plan(view)


show_live("Speculation", load_view, speculation)

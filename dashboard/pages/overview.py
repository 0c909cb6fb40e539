"""Overview: the key figures, the bill by cohort with idle apart, K and speed over time."""

import streamlit as st

from dashboard import cards
from dashboard.layout import show_live, show_report_notes
from dashboard.ledger import Ledger
from dashboard.snapshot import View, load_view


def overview(_: Ledger, view: View) -> None:
    show_report_notes(view.snapshot.report)
    cards.show_alerts(view)
    cards.show_plan_line(view)
    cards.show_key_figures(view)
    left, right = st.columns([3, 2])
    with left:
        cards.show_k(view)
    with right:
        cards.show_unit_cost(view)
    cards.show_bill(view)
    cards.show_speed(view)


show_live("Overview", load_view, overview)

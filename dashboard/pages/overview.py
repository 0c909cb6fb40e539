"""Overview: what a million tokens costs, what speculation saved, why K is what it is, what to change."""

from collections.abc import Iterator

import streamlit as st

from dashboard import overview_cards as cards
from dashboard import overview_panels as panels
from dashboard.layout import show_live, show_report_notes
from dashboard.ledger import Ledger
from dashboard.overview_load import Overview, load_overview


def overview(ledger: Ledger, found: Overview) -> Iterator[None]:
    show_report_notes(found.report)
    cards.show_alerts(found.alerts, ledger)
    cards.show_plan_line(found.plan, ledger.now)
    cards.show_key_figures(ledger, found)
    cards.show_advice(found)
    yield
    left, right = st.columns([3, 2])
    with left:
        panels.show_bill(ledger, found)
    with right:
        panels.show_unit_cost(found)
    panels.show_why(ledger, found)
    left, right = st.columns(2)
    with left:
        panels.show_k(ledger, found)
    with right:
        panels.show_speed(ledger, found)


show_live("Overview", load_overview, overview)

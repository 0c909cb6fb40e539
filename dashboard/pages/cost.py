"""Cost: the bill by one dimension under every price basis, who pays for what, budgets and exports."""

from collections.abc import Iterator

import streamlit as st

from dashboard import cost_cards as cards
from dashboard.cost_load import Bill, load_cost
from dashboard.layout import show_live, show_report_notes
from dashboard.ledger import Ledger


def cost(ledger: Ledger, bill: Bill) -> Iterator[None]:
    show_report_notes(bill.report)
    cards.show_totals(bill)
    yield
    cards.show_bill(ledger, bill)
    left, right = st.columns([3, 2])
    with left:
        cards.show_where_it_goes(ledger, bill)
    with right:
        cards.show_bases(bill)
    cards.show_quadrant(bill)
    cards.show_budgets(ledger, bill)
    cards.show_exports(ledger, bill)


show_live("Cost", load_cost, cost, ask=cards.ask_dimension)

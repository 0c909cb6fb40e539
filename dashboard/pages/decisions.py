"""Decisions: what the controller decided for whom, and why."""

from dashboard import cards
from dashboard.layout import show_live, show_report_notes
from dashboard.ledger import Ledger
from dashboard.snapshot import View, load_view


def decisions(_: Ledger, view: View) -> None:
    show_report_notes(view.snapshot.report)
    cards.show_plan_line(view)
    cards.show_decisions(view)


show_live("Decisions", load_view, decisions)

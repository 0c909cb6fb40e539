"""Decisions: what the controller decided for whom, and why."""

from dashboard import cards
from dashboard.layout import View, show_live


def decisions(view: View) -> None:
    cards.show_plan_line(view)
    cards.show_decisions(view)


show_live("Decisions", decisions)

"""The pages, in the order of the navigation."""

from __future__ import annotations

from typing import NamedTuple


class PageEntry(NamedTuple):
    """name: of the file and in the URL. icon: a Material symbol. says: the tooltip."""

    name: str
    title: str
    icon: str
    says: str


PAGES = (
    PageEntry("overview", "Overview", "speed", "What a million tokens costs, how fast they come, what K did for it."),
    PageEntry("speculation", "Speculation", "timeline", "K and acceptance over time, and why K is what it is."),
    PageEntry("cost", "Cost", "payments", "The bill by cohort, tenant, model or hour, against budgets; exports."),
    PageEntry("energy", "Energy", "bolt", "Energy and carbon: power, joules per token, what measured them."),
    PageEntry("savings", "Savings", "savings", "What speculation saved, with its interval."),
    PageEntry("what_if", "What-if", "tune", "Other prices, loads or K: what they would cost."),
    PageEntry("policy", "Policy", "policy", "The policy in force, its revisions, and every decision with its reason."),
)

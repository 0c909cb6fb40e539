"""The filters above every page. They live in the URL: a link restores the view, and another page keeps them.

They are drawn by app.py, not by the pages: what app.py draws stays when the page changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Literal
from zoneinfo import available_timezones

import streamlit as st

from controlplane.finops.pricing import BASES
from controlplane.store.cost_rows import IdleRule
from dashboard.asked import CUSTOM, DEFAULT_RANGE, RANGES, Filters
from dashboard.ledger import Choices

BIND: Literal["query-params"] = "query-params"
IDLE_RULES: tuple[IdleRule, ...] = ("none", "weighted", "even")


def ask_filters(choices: Choices | None) -> Filters:
    """Draws the filters and returns what they say. choices: None where the database cannot be read just now."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        span = _ask_range()
        since = until = ""
        if span == CUSTOM:
            since = _ask_moment("From", "from", "the start of all there is")
            until = _ask_moment("To", "to", "now")
        cohort = _ask_one("Cohort", "cohort", "All cohorts", choices.cohorts if choices else None)
        model = _ask_one("Model", "model", "All models", choices.models if choices else None)
        with st.popover("View", icon=":material/tune:"):
            zone = _ask_one("Time zone", "tz", "The browser's", zones())
            # Without format_func: it is what is shown that goes into the URL, and there the command's words are wanted.
            basis = st.selectbox(
                "Prices",
                BASES,
                index=None,
                placeholder="The sheet's default",
                key="basis",
                bind=BIND,
                help="Which prices of the sheet the machine time is charged at.",
            )
            idle = st.selectbox(
                "Idle time",
                IDLE_RULES,
                key="idle",
                bind=BIND,
                help="Machine time without work: a row of its own (none), or spread over rows by their machine time "
                "(weighted) or in even parts.",
            )
    return Filters(span, since, until, model, cohort, zone, basis, idle)


def _ask_range() -> str:
    names = [*RANGES, CUSTOM]
    chosen = st.segmented_control(
        "Time range", names, default=DEFAULT_RANGE, required=True, key="range", bind=BIND, label_visibility="collapsed"
    )
    return chosen if chosen in names else DEFAULT_RANGE


def _ask_moment(label: str, key: str, otherwise: str) -> str:
    text = st.text_input(
        label,
        key=key,
        bind=BIND,
        placeholder=otherwise,
        help="2026-11-29T15:00 (UTC unless it says otherwise), or a duration before now such as 90m or 7d.",
        width=210,
    )
    return text or ""


def _ask_one(label: str, key: str, everything: str, names: Sequence[str] | None) -> str | None:
    """One of the names, None for all. names None: not known now, so the URL's own is kept."""
    if names is None:
        asked = st.query_params.get(key)
        names = [asked] if asked else []
    return st.selectbox(
        label,
        names,
        index=None,
        placeholder=everything,
        key=key,
        bind=BIND,
        label_visibility="visible" if key == "tz" else "collapsed",
        width="stretch" if key == "tz" else 210,
    )


@cache
def zones() -> tuple[str, ...]:
    """IANA names of time zones that people live in, UTC first."""
    named = (name for name in available_timezones() if "/" in name and not name.startswith(("Etc/", "SystemV/")))
    return ("UTC", *sorted(named))

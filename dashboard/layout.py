"""What the pages share: the refreshing frame, and the sentences that replace missing figures.

Text that came from a client or a policy (a cohort's name above all) goes through `st.text`, `st.dataframe`, a chart's
data or `plain`; it never becomes part of Markdown or HTML as it is.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import streamlit as st

from controlplane.settings import Settings, SettingsError, load_settings
from controlplane.store.data_version import has_usage
from controlplane.store.engine import DatabaseError, StoreError
from dashboard import format as fmt
from dashboard.access import admit, is_admitted
from dashboard.asked import Filters
from dashboard.data import Trouble, unreadable
from dashboard.filters import ask_filters
from dashboard.ledger import LOAD, Choices, Ledger, open_reading, read_choices

log = logging.getLogger(__name__)

SKELETON_PX = 360
SOON_S = 0.05
"""After a browser has shown the figures, until it asks for the rest."""
_WORLD = "_world"
"""Where app.py leaves the filters for the page of the same run."""
_DRAWN_FOR = "_drawn_for"
"""The choices for which the filters were last drawn anew: once for each, whatever comes of it."""
_FIGURES = "_figures"
"""This session's first figures: on their way ("alone"), drawn and the rest to come ("first"), or seen ("shown")."""

_END = object()

T = TypeVar("T")


def open_door() -> Settings | None:
    """The settings, if this session may see anything; where not, the way in is drawn. app.py asks before all else."""
    settings = _settings()
    if isinstance(settings, Trouble):
        show_trouble(settings)
        return None
    return settings if admit(settings) else None


def draw_filters(settings: Settings) -> None:
    """The filters, drawn by app.py before the page runs."""
    choices = read_choices(settings.database_url)
    known = choices if isinstance(choices, Choices) else None
    st.session_state[_WORLD] = (ask_filters(known), known)


def show_live(
    title: str,
    load: Callable[..., T],
    draw: Callable[[Ledger, T], Iterator[None]],
    ask: Callable[[Ledger], Any] | None = None,
    *,
    without_traffic: bool = False,
) -> None:
    """A page: its title, and `draw(ledger, load(ledger))`, again every few seconds.

    draw: yields once, between the figures that are to be read first and the charts and tables below them. A browser
    that has just come gets the figures alone, and the rest as soon as they are on its screen: what charts and tables
    need keeps it busy for a second.

    load reads and returns plain values; whatever goes wrong in it becomes one sentence. ask: draws widgets that load
    needs, and returns what `load(ledger, asked)` is then given. without_traffic: the page has something to show where
    nothing ran in the range (else a sentence says so in its place).
    """
    settings = _settings()
    if isinstance(settings, Trouble):
        return show_trouble(settings)
    if not is_admitted(settings):  # a page's file may be asked for without app.py
        st.stop()
    st.title(title, anchor=False)
    filters, choices = st.session_state.get(_WORLD, (Filters(), None))
    if st.session_state.get(_FIGURES) != "shown":
        st.session_state[_FIGURES] = "alone"
    # Beside the frame, not in it: of a fragment that is drawn anew the messages that were not sent yet are thrown away,
    # but not those of a fragment in it, which would then have no place.
    soon = st.empty()
    frame = st.fragment(_frame, run_every=settings.dashboard_refresh_s)
    frame(title, load, draw, ask, without_traffic, filters, choices)
    if st.session_state[_FIGURES] == "first":
        with soon:
            st.fragment(_ask_for_rest, run_every=SOON_S)()
    st.session_state[_FIGURES] = "shown"


def _frame(
    title: str,
    load: Callable[..., T],
    draw: Callable[[Ledger, T], Iterator[None]],
    ask: Callable[[Ledger], Any] | None,
    without_traffic: bool,
    filters: Filters,
    choices: Choices | None,
) -> None:
    settings = _settings()
    if isinstance(settings, Trouble):
        return show_trouble(settings)
    ledger = open_reading(settings, filters, time.time(), st.context.timezone)
    if isinstance(ledger, Trouble):
        return show_trouble(ledger)
    if ledger.choices == choices:
        st.session_state.pop(_DRAWN_FOR, None)
    elif ledger.choices != st.session_state.get(_DRAWN_FOR):
        st.session_state[_DRAWN_FOR] = ledger.choices
        st.rerun()  # the database is back, or has a new cohort: the filters are drawn anew
    _say_range(ledger)
    if not without_traffic and (trouble := _no_traffic(ledger)) is not None:
        return show_trouble(trouble)
    asked = (ask(ledger),) if ask is not None else ()
    found = _loaded(title, ledger, load, asked)
    if isinstance(found, Trouble):
        return show_trouble(found)
    drawing = draw(ledger, found)
    if next(drawing, _END) is _END:
        return
    if draws_figures_alone():
        with st.container(key="rest-soon"):
            st.skeleton(height=SKELETON_PX)
        st.session_state[_FIGURES] = "first"
    else:
        with st.container(key="rest"):
            next(drawing, _END)


def _ask_for_rest() -> None:
    """A browser that was sent the figures asks for this anew by itself, and so gets the whole page."""
    if st.session_state[_FIGURES] == "shown":
        st.rerun()


def draws_figures_alone() -> bool:
    """Whether only the figures are drawn in this run, without anything that a browser must load first."""
    return bool(st.session_state.get(_FIGURES) == "alone")


def _loaded(title: str, ledger: Ledger, load: Callable[..., T], asked: tuple[Any, ...]) -> T | Trouble:
    """What the page shows; a skeleton stands in its place while it is read for the first time."""
    seen = f"_seen {title}"
    try:
        if seen in st.session_state:
            return load(ledger, *asked)
        with st.skeleton(height=SKELETON_PX):
            found = load(ledger, *asked)
        st.session_state[seen] = True
        return found
    except (DatabaseError, StoreError, sqlite3.Error, OSError) as error:
        return unreadable(ledger.settings.database_url, error)
    except Exception as error:  # a page never ends in a traceback; the log has it
        log.exception("page %s", title)
        return Trouble(
            f"This page could not be worked out: {type(error).__name__}: {' '.join(str(error).split())}.",
            "The log has the details; `kadence cost report` may still answer. This page tries again by itself.",
        )


def _no_traffic(ledger: Ledger) -> Trouble | None:
    if ledger.is_empty:
        return Trouble("No traffic yet.", LOAD, waiting=True)
    try:
        if has_usage(ledger.engine, ledger.range):
            return None
    except DatabaseError as error:
        return unreadable(ledger.settings.database_url, error)
    last = fmt.moment(ledger.bounds.end, ledger.zone)
    return Trouble(
        "No traffic in this time range.",
        f"The last window ended at {last}: choose a longer range, or send traffic with `kadence load`.",
        waiting=True,
    )


def _say_range(ledger: Ledger) -> None:
    start, end = (fmt.moment(at, ledger.zone) for at in (ledger.range.start, ledger.range.end))
    with st.container(key=f"shown-{ledger.filters.span}"):
        st.caption(f"{start} to {end} ({ledger.zone}), refreshed every {ledger.settings.dashboard_refresh_s:g} s")
    for note in ledger.notes:
        show_note(note)


def _settings() -> Settings | Trouble:
    try:
        return load_settings()
    except SettingsError as error:
        return Trouble(f"The settings are wrong: {str(error).splitlines()[0]}.", "Correct it and start again.")


def show_note(note: str) -> None:
    """A line that a reader must know beside the figures: a missing price, an hour that is in the report whole."""
    st.caption(f":material/warning: {plain(note)}")


def show_report_notes(report: Any) -> None:
    """What a CostReport has to say of itself: prices that are missing or old, hours that could not be cut."""
    for line in (*(f"Unpriced: {line}." for line in report.unpriced), *report.warnings):
        show_note(line)


def show_trouble(trouble: Trouble) -> None:
    show = st.info if trouble.waiting else st.error
    icon = ":material/hourglass_empty:" if trouble.waiting else ":material/database_off:"
    show(f"{plain(trouble.sentence)}\n\n{trouble.way_out}", icon=icon)


def plain(text: str) -> str:
    """`text` for a Markdown element, with every character that Markdown could act on escaped."""
    return "".join(f"\\{c}" if c in "\\`*_{}[]()<>#+-!|~$:&" else c for c in text)

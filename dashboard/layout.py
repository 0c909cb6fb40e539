"""What the pages share: the filters in the URL, the refreshing frame, the sentences that replace missing figures.

Text that came from a client or a policy (a cohort's name above all) goes through `st.text`, `st.dataframe` or a
chart's data, which show it as it is; it never becomes part of Markdown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import tzinfo

import streamlit as st

from controlplane.settings import SettingsError, load_settings
from dashboard import format as fmt
from dashboard.charts import busiest
from dashboard.data import Snapshot, Source, Trouble, read

REFRESH_S = 5
RANGES: dict[str, float | None] = {
    "15m": 900,
    "1h": 3600,
    "24h": 86_400,
    "7d": 604_800,
    "30d": 2_592_000,
    "all": None,
}
"""Seconds before now, by the name that the buttons and the URL have for it and `kadence cost report --since` takes."""

DEFAULT_RANGE = "1h"


@dataclass(frozen=True, slots=True)
class View:
    """One reading and how to look at it.

    since: the range as `kadence cost report --since` takes it. cohort: the one chosen, None = all. colours: cohorts
    that have a colour.
    """

    snapshot: Snapshot
    since: str
    cohort: str | None
    zone: tzinfo
    colours: Sequence[str]

    @property
    def shown(self) -> Sequence[str]:
        """Cohorts that charts draw."""
        return [self.cohort] if self.cohort is not None else self.colours


def show_live(title: str, body: Callable[[View], None]) -> None:
    """Draws `body`, and again every few seconds; in its place one sentence when there is nothing to draw."""
    st.title(title, anchor=False)
    _frame(body)


@st.fragment(run_every=REFRESH_S)
def _frame(body: Callable[[View], None]) -> None:
    source = _source()
    if isinstance(source, Trouble):
        return _show_trouble(source)
    filters = st.container(horizontal=True, vertical_alignment="center")
    with filters:
        span = _ask_range()
    reading = read(source, RANGES[span], time.time())
    if isinstance(reading, Trouble):
        return _show_trouble(reading)
    names = sorted({row.key for row in reading.report.rows} | set(reading.plan.k if reading.plan else ()))
    with filters:
        cohort = _ask_cohort(names)
    where = fmt.zone(st.context.timezone)
    colours = busiest(reading.series)
    if cohort is not None and cohort not in colours:
        colours = [cohort]
    st.caption(
        f"{fmt.moment(reading.range.start, where)} to {fmt.moment(reading.range.end, where)} ({where}), "
        f"refreshed every {REFRESH_S} s"
    )
    for note in reading.notes:
        st.caption(f":material/warning: {_plain(note)}")
    if not reading.report.rows:
        last = fmt.moment(reading.bounds.end, where)
        return _show_trouble(
            Trouble(
                "No traffic in this time range.",
                f"The last window ended at {last}: choose a longer range, or send traffic with `kadence load`.",
                waiting=True,
            )
        )
    since = span if RANGES[span] else fmt.iso(reading.range.start)
    body(View(reading, since, cohort, where, colours))


def _source() -> Source | Trouble:
    try:
        settings = load_settings()
    except SettingsError as error:
        return Trouble(f"The settings are wrong: {str(error).splitlines()[0]}.", "Correct it and start again.")
    return Source(settings.database_url, settings.prices)


def _ask_range() -> str:
    chosen = st.segmented_control(
        "Time range",
        list(RANGES),
        default=DEFAULT_RANGE,
        required=True,
        key="range",
        bind="query-params",
        label_visibility="collapsed",
    )
    return chosen if chosen in RANGES else DEFAULT_RANGE


def _ask_cohort(names: Sequence[str]) -> str | None:
    return st.selectbox(
        "Cohort",
        names,
        index=None,
        placeholder="All cohorts",
        key="cohort",
        bind="query-params",
        label_visibility="collapsed",
        width=260,
    )


def _show_trouble(trouble: Trouble) -> None:
    show = st.info if trouble.waiting else st.error
    icon = ":material/hourglass_empty:" if trouble.waiting else ":material/database_off:"
    show(f"{_plain(trouble.sentence)}\n\n{trouble.way_out}", icon=icon)


def _plain(text: str) -> str:
    """`text` for a Markdown element, with every character that Markdown could act on escaped."""
    return "".join(f"\\{c}" if c in "\\`*_{}[]()<>#+-!|~$:&" else c for c in text)

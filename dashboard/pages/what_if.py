"""What-if: another K, acceptance, load, utilisation or price, by what the controller believes."""

from collections.abc import Iterator
from dataclasses import dataclass

import streamlit as st

from dashboard import what_if_cards
from dashboard.layout import show_live
from dashboard.ledger import Ledger
from dashboard.speculation_evidence import Evidence, price_per_hour, read_evidence
from dashboard.what_if_figures import what_if


@dataclass(frozen=True, slots=True)
class Found:
    """evidence: None where no window is on record. price: of a machine hour; unpriced: why there is none."""

    evidence: Evidence | None
    price: float | None = None
    unpriced: str | None = None


def load(ledger: Ledger) -> Found:
    evidence = read_evidence(ledger)
    if evidence is None:
        return Found(None)
    ledger.report("cohort")
    return Found(evidence, *price_per_hour(ledger, evidence.devices))


def draw(ledger: Ledger, found: Found) -> Iterator[None]:
    evidence = found.evidence
    if evidence is None:
        st.info(
            "There is nothing to reckon with: no window with a step is on record in this range.\n\nChoose a range that"
            " has windows, or send traffic with `kadence load`.",
            icon=":material/hourglass_empty:",
        )
        return
    cohort = None if ledger.cohort is None else evidence.index(ledger.cohort)
    if ledger.cohort is not None and (cohort is None or not evidence.believed.steps[cohort].any()):
        st.info("This cohort has no step in these windows: choose another one, or all.", icon=":material/search_off:")
        return
    if evidence.believed.state.times is None:
        st.info(
            "Nothing can be said of other K or loads: no worker's step times are on record.\n\nA worker measures them"
            " at its start and tells them every minute; `kadence doctor` says whether one runs.",
            icon=":material/hourglass_empty:",
        )
        return
    asked = what_if_cards.ask(evidence, found.price, cohort, ledger.currency)
    result = what_if(evidence, found.price, asked, ledger.currency, cohort)
    if result is None:
        st.info("No step of these windows can be asked about.", icon=":material/hourglass_empty:")
        return
    if found.unpriced is not None:
        st.text(f"Unpriced: {found.unpriced}.")
    what_if_cards.show_figures(result)
    yield
    what_if_cards.show_table(result)
    what_if_cards.show_by_rung(evidence, found.price, asked, cohort)
    what_if_cards.show_data(ledger, evidence, asked, cohort)


show_live("What-if", load, draw)

"""The cards on whether speculation pays: break-even, what is left on the table, whose drafter to retrain, and waste."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from dashboard import format as fmt
from dashboard.break_even_chart import even_chart, most_left
from dashboard.break_even_rows import total_left, wants_retraining
from dashboard.ledger import Ledger
from dashboard.speculation_cards import CARD_WIDTH, NO_EVIDENCE
from dashboard.speculation_load import Speculation
from dashboard.speculation_tables import even_table, left_amount, waste_table


def show_break_even(ledger: Ledger, found: Speculation, cohorts: list[str]) -> None:
    """From which acceptance speculation pays, where it stands, and what another rung would save."""
    with st.container(border=True):
        st.header("Where speculation pays", anchor=False)
        if found.evidence is None:
            st.caption(NO_EVIDENCE)
            return
        if found.even is None:
            st.caption("Not known: no worker's step times are on record, so K has no price in time.")
            return
        every = total_left(found.even)
        pays = [row.pays for row in found.even if row.rung is not None]
        with st.grid(3, min_column_width=CARD_WIDTH):
            st.metric(
                "Left on the table",
                left_amount(every.money, every.tokens_per_s, ledger.currency),
                help="Against the rung with most tokens per second, at the same load, from the same beliefs. "
                f"{100 * every.share:.1f} % of the machine time of drafting and verification.",
                border=True,
                height="stretch",
            )
            st.metric(
                "Speculation pays",
                f"{pays.count(True)} of {len(pays)}",
                help="Cohorts and loads at which it does, with 95 % certainty.",
                border=True,
                height="stretch",
            )
            st.metric(
                "It does not",
                f"{pays.count(False)} of {len(pays)}",
                help="The rest is within the interval: more drafts will tell.",
                border=True,
                height="stretch",
            )
        if found.unpriced is not None:
            st.text(f"Unpriced: {found.unpriced}. What is left on the table is in tokens per second.")
        rows = [row for row in found.even if row.cohort in cohorts]
        drawn = most_left(rows)
        if drawn:
            st.caption(
                "Circle: where acceptance stands. Stroke: from where drafting pays, beside as many running sequences:"
                " tokens of a step over those without drafts against its time over theirs, by the controller's own step"
                " times. One figure for all positions, at the best rung over 0."
            )
            st.altair_chart(
                even_chart(drawn),
                alt=f"Acceptance and the acceptance needed for {len(drawn)} cohorts and loads",
            )
            if len(drawn) < len(rows):
                st.caption(f"The {len(drawn)} that took most machine time; the table has all {len(rows)}.")
        st.dataframe(
            even_table(rows, ledger.currency, is_priced=found.price is not None),
            hide_index=True,
            alt="Break-even by cohort and load",
        )
        st.caption(
            "Expected as if every sequence beside it drafted the same K, at the upper bound of the load: what the"
            " goodput tuner goes by. The best rung is that of most tokens per second, whatever the policy's objective."
        )


def show_retraining(found: Speculation, cohort: str | None) -> None:
    """Cohorts whose drafter wants retraining, each with the reason."""
    with st.container(border=True):
        st.header("Which drafter wants retraining", anchor=False)
        if found.evidence is None or found.even is None:
            st.caption("Not known without windows and step times.")
            return
        wanted = list(wants_retraining(found.evidence, found.even, found.past, cohort))
        if not wanted:
            st.caption("None: no cohort with enough drafts is below break-even or has fallen against its own past.")
            return
        st.dataframe(
            pd.DataFrame([(w.cohort, w.drafter, w.sentence) for w in wanted], columns=["Cohort", "Drafter", "Why"]),
            hide_index=True,
            column_config={"Why": st.column_config.TextColumn(width=560, help="Click a cell to read all of it.")},
            alt=f"{len(wanted)} cohorts whose drafter wants retraining, with the reason",
        )
        st.caption("`kadence train` trains one on recorded text; `kadence train evaluate` says what it accepts.")


def show_waste(ledger: Ledger, found: Speculation, cohorts: list[str]) -> None:
    """Rejected draft tokens and what went into them, as the ledger has it."""
    total = found.report.total
    with st.container(border=True):
        st.header("Wasted speculation", anchor=False)
        st.caption(
            "Draft tokens that were verified and not kept, and the part of machine time, cost and energy that was spent"
            f" on their positions: {fmt.count(total.draft_tokens - total.accepted_tokens)} tokens in the range."
        )
        st.dataframe(
            waste_table(found.report, cohorts, ledger.currency),
            hide_index=True,
            alt="Rejected draft tokens with their machine time, cost and energy by cohort, then the total",
        )
        st.caption("The same figures (wasted_cost, wasted_j):")
        st.code(f"{ledger.command('cohort')} --json", language="bash")

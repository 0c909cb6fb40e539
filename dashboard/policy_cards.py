"""The cards of the policy page. Names and texts of policies are shown by tables, st.text and st.code alone."""

from __future__ import annotations

import streamlit as st

from controlplane.decision.guard import Reason
from controlplane.policy import PolicyError, parse_policy
from controlplane.policy.parse import MAX_TEXT
from controlplane.policy_cli.planned import Planned
from dashboard import figures
from dashboard import policy_tables as tables
from dashboard import policy_trial as trials
from dashboard.data import Trouble, unreadable
from dashboard.layout import show_trouble
from dashboard.ledger import Ledger
from dashboard.overview_cards import show_plan_line
from dashboard.policy_reading import DECISION_LIMIT, PARTS, Asked, PolicyReading

TEXT, TRIAL = "policy_text", "_policy_trial"
"""Keys of the session: what is in the text area, and what came of the last click."""


def ask(ledger: Ledger) -> Asked:
    """Which part of the page, and for the decision log its filters. All of it is in the URL."""
    part = st.segmented_control(
        "Part",
        list(PARTS),
        default=PARTS[0],
        required=True,
        key="part",
        bind="query-params",
        label_visibility="collapsed",
    )
    if part != "Decisions":
        return Asked(part if part in PARTS else PARTS[0])
    with st.container(horizontal=True, vertical_alignment="bottom"):
        text = st.text_input("Text", key="text", bind="query-params", placeholder="in the sentence", width=220)
        reasons = st.multiselect(
            "Reason",
            [str(reason) for reason in Reason],
            key="reason",
            bind="query-params",
            placeholder="Any",
            width=320,
        )
        held = st.toggle("With decisions that kept K", key="holds", bind="query-params")
    return Asked("Decisions", held, tuple(reasons), (text or "").strip())


def show_in_force(ledger: Ledger, found: PolicyReading) -> None:
    show_plan_line(found.plan, ledger.now)
    if found.policy is None:
        st.text((found.problem or "").replace("`", ""))
        return
    row, plan = found.applied[0], found.plan
    with st.container(border=True):
        st.header("Effective policy", anchor=False)
        st.text(f"Revision {row.revision}, by {row.applied_by}: {row.why or '-'}")
        if plan is not None and plan.policy_revision not in ("", row.revision):
            st.text(
                f"The plan was made under revision {plan.policy_revision}: another one is being tried, or it is newer."
            )
        st.caption(
            "A request belongs to the first cohort that matches. K by load: one running sequence, 2, 4 ... over 128."
        )
        st.dataframe(
            tables.effective_table(found.policy, plan, ledger.cohort),
            hide_index=True,
            alt="Every cohort with tuner, ladder, floor, objective, SLO and budget",
        )
        for warning in found.policy.warnings:
            st.text(f"Warning: {warning}")
    budgets = tables.budget_table(found.policy)
    if len(budgets):
        with st.container(border=True):
            st.header("Budgets", anchor=False)
            st.dataframe(budgets, hide_index=True, alt="Budgets of the policy")
            st.page_link("pages/cost.py", label="What is spent of them", icon=":material/payments:")
    with st.expander("Every field, and where its value comes from"):
        st.dataframe(
            tables.field_table(found.policy, ledger.cohort), hide_index=True, alt="Every field of every cohort"
        )
    with st.expander("The text"):
        st.code(row.text, language="yaml", line_numbers=True)
    st.caption("The same in a terminal, of a running system:")
    st.code("kadence policy show --effective", language="bash")


def show_revisions(ledger: Ledger, found: PolicyReading) -> None:
    with st.container(border=True):
        st.header("Revisions", anchor=False)
        if not found.history:
            st.caption("No policy was put in force on this ledger yet: `kadence up` does it.")
            return
        st.dataframe(
            tables.history_table(found.history, ledger.zone), hide_index=True, alt="Policies with who, when and why"
        )
        st.code("kadence policy history", language="bash")
    _show_diff(found)


def _show_diff(found: PolicyReading) -> None:
    texts = found.texts
    names = list(texts)
    with st.container(border=True):
        st.header("What changed", anchor=False)
        if len(names) < 2:
            st.caption("One revision is on record: there is nothing to compare it with.")
            return
        with st.container(horizontal=True):
            old = st.selectbox("From", names, index=1, key="old", bind="query-params", width=220)
            new = st.selectbox("To", names, index=0, key="new", bind="query-params", width=220)
        try:
            before, after = (parse_policy(texts[name], source=f"revision {name}") for name in (old, new))
        except PolicyError as error:
            st.text(f"A revision is not a policy of this release: {str(error).splitlines()[0]}")
            return
        changes, lines = tables.revision_diff(before, after)
        st.text("\n".join(changes) or "No setting changes.")
        if lines:
            st.code("\n".join(lines), language="diff")
        st.code(f"kadence policy diff {old} {new}", language="bash")


def show_trial(ledger: Ledger, found: PolicyReading) -> None:
    """A text area and two buttons; what came of a click stays until the next."""
    with st.container(border=True):
        st.header("Check and plan a policy", anchor=False)
        st.caption("On a click only, by the functions of the commands. Nothing is applied from here.")
        if found.applied:
            st.button("Take the text in force", on_click=_take, args=(found.applied[0].text,), type="tertiary")
        text = st.text_area(
            "Policy (YAML)",
            key=TEXT,
            height=320,
            max_chars=MAX_TEXT,
            placeholder="version: 1\ncohorts:",
            persist_state="session",
        )
        with st.container(horizontal=True, vertical_alignment="bottom"):
            is_check = st.button("Check", icon=":material/rule:")
            is_plan = st.button("Plan", icon=":material/query_stats:", type="primary")
            span = st.selectbox("on the traffic of the last", trials.SPANS, index=1, key="plan_span", width=180)
        if is_check:
            st.session_state[TRIAL] = trials.check(text or "")
        if is_plan:
            with st.spinner("Going through the recorded traffic"):
                st.session_state[TRIAL] = _planned(ledger, text or "", span)
    trial = st.session_state.get(TRIAL)
    if isinstance(trial, Trouble):
        show_trouble(trial)
    elif trial is not None:
        _show_result(trial, text or "")


def _take(text: str) -> None:
    st.session_state[TEXT] = text


def _planned(ledger: Ledger, text: str, span: str) -> trials.Trial | Trouble:
    try:
        return trials.plan(ledger, text, span)
    except Exception as error:  # a page never ends in a traceback; the log has it
        return unreadable(ledger.settings.database_url, error)


def _show_result(trial: trials.Trial, text: str) -> None:
    with st.container(border=True):
        st.header("Result", anchor=False)
        if trial.text != text:
            st.caption(":material/warning: The text has changed since.")
        if trial.policy is None:
            count = len(trial.problems)
            st.badge(f"{count} problem{'s' * (count != 1)}", icon=":material/error:", color="red")
            st.dataframe(tables.problem_table(trial.problems), hide_index=True, alt="Problems with their lines")
            st.code(trial.text, language="yaml", line_numbers=True, height=240)
            return
        st.badge("good", icon=":material/check:", color="green")
        names = ", ".join(cohort.name for cohort in trial.policy.cohorts)
        st.text(f"Revision {trial.policy.revision}, {len(trial.policy.cohorts)} cohorts: {names}")
        if trial.failed:
            st.text(trial.failed)
        warnings = trial.policy.warnings if trial.planned is None else trial.planned.warnings
        for warning in warnings:
            st.text(f"Warning: {warning}")
        if trial.planned is not None:
            _show_planned(trial.planned)
        st.caption(f"Save the text as {trials.FILE}, then:")
        st.code(trials.commands(trial), language="bash")


def _show_planned(planned: Planned) -> None:
    total = planned.total
    says = (
        "nothing could be expected"
        if total is None
        else f"tokens/s {total.mid:+.1%} ({total.low:+.1%} to {total.high:+.1%})"
    )
    st.text(f"All cohorts: {says}, from {planned.ticks} recorded ticks")
    st.text("\n".join(planned.changes) or "No setting changes.")
    st.dataframe(tables.planned_table(planned), hide_index=True, alt="What is expected of each cohort")
    with st.expander("As the command prints it"):
        st.code("\n".join(planned.lines()), language=None)


def show_decisions(ledger: Ledger, found: PolicyReading) -> None:
    """The log, newest first."""
    rows = found.decisions
    with st.container(border=True):
        st.header("Decisions", anchor=False)
        if not rows:
            st.caption("No decision in this time range matches the filters.")
            return
        st.dataframe(
            figures.decision_table(rows, ledger.zone),
            hide_index=True,
            height="content" if len(rows) <= 20 else 740,
            column_config={
                "Time": st.column_config.TextColumn(width=150),
                "K": st.column_config.TextColumn(width=60),
                "Why": st.column_config.TextColumn(width=430, help="Click a cell to read all of it."),
            },
            alt=f"{len(rows)} decisions with their reasons, newest first",
        )
        more = f" These are the newest {DECISION_LIMIT}; a shorter range or a filter shows others." * (
            len(rows) == DECISION_LIMIT
        )
        st.caption(f"{len(rows)} decisions, newest first.{more}")
        st.caption("Whether they come out again from what is on record:")
        st.code(f"kadence policy replay --since {ledger.since}", language="bash")


def show_events(ledger: Ledger, found: PolicyReading) -> None:
    """The kill switch, policies tried on a part, and alerts with who cleared them."""
    with st.container(border=True):
        st.header("Kill switch", anchor=False)
        if found.switches:
            frame = tables.switch_table(found.switches, ledger.zone)
            st.dataframe(frame, hide_index=True, alt="When the kill switch was pulled and let go")
        else:
            st.caption("It was not touched in this time range.")
    with st.container(border=True):
        st.header("Policies tried on a part", anchor=False)
        if found.tried:
            st.dataframe(
                tables.rollout_table(found.tried, ledger.zone), hide_index=True, alt="Staged rollouts, newest first"
            )
        else:
            st.caption("None yet: `kadence policy apply FILE --stage 10%` tries one.")
    with st.container(border=True):
        st.header("Alerts", anchor=False)
        if found.alerts:
            st.dataframe(tables.alert_table(found.alerts, ledger.zone), hide_index=True, alt="Alerts, newest first")
            st.code("kadence alerts list --state all", language="bash")
        else:
            st.caption("No alert was ever raised.")

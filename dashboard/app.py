"""The dashboard: `kadence dashboard`, or `streamlit run dashboard/app.py`. It reads the database and nothing else."""

from pathlib import Path

import streamlit as st

from dashboard.layout import draw_filters

HERE = Path(__file__).parent
PAGES = (
    ("overview", "Overview", "speed", "What a million tokens costs, how fast they come, and what K did for it."),
    ("speculation", "Speculation", "timeline", "K and acceptance by cohort over time, and why K is what it is."),
    ("cost", "Cost", "payments", "The bill by cohort, tenant, model or hour, against budgets; exports."),
    ("energy", "Energy", "bolt", "Energy and carbon: power, joules per token, what measured them."),
    ("savings", "Savings", "savings", "What speculation saved, with its interval."),
    ("what_if", "What-if", "tune", "Other prices, loads or K: what they would cost."),
    ("policy", "Policy", "policy", "The policy in force, its revisions, and every decision with its reason."),
    ("decisions", "Decisions", "gavel", "Every change of K with its reason. Filter by cohort and reason."),
)

st.set_page_config(page_title="Kadence", page_icon=":material/speed:", layout="wide")
page = st.navigation(
    [
        st.Page(f"pages/{name}.py", title=title, icon=f":material/{icon}:", help=says, default=name == "overview")
        for name, title, icon, says in PAGES
        if (HERE / "pages" / f"{name}.py").is_file()
    ],
    position="top",
)
draw_filters()
page.run()

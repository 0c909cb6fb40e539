"""The dashboard: `kadence dashboard`, or `streamlit run dashboard/app.py`. It reads the database and nothing else."""

import streamlit as st

st.set_page_config(page_title="Kadence", page_icon=":material/speed:", layout="wide")
page = st.navigation(
    [
        st.Page(
            "pages/overview.py",
            title="Overview",
            icon=":material/speed:",
            default=True,
            help="What a million tokens costs, how fast they come, and what K did for it.",
        ),
        st.Page(
            "pages/speculation.py",
            title="Speculation",
            icon=":material/timeline:",
            help="K and acceptance by cohort over time, and the plan that workers obey now.",
        ),
        st.Page(
            "pages/decisions.py",
            title="Decisions",
            icon=":material/gavel:",
            help="Every change of K with its reason. Filter by cohort and reason.",
        ),
    ],
    position="top",
)
page.run()

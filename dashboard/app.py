"""The dashboard: `kadence dashboard`, or `streamlit run dashboard/app.py`. It reads the database and nothing else."""

import streamlit as st

from dashboard.layout import draw_filters, open_door
from dashboard.navigation import PAGES

st.set_page_config(page_title="Kadence", page_icon=":material/speed:", layout="wide")
settings = open_door()
if settings is None:
    st.stop()
page = st.navigation(
    [
        st.Page(
            f"pages/{each.name}.py",
            title=each.title,
            icon=f":material/{each.icon}:",
            help=each.says,
            default=each is PAGES[0],
        )
        for each in PAGES
    ],
    position="top",
)
draw_filters(settings)
page.run()

"""Streamlit's server for our pages, that ends when whoever started it does: `python -m dashboard.serve [flags]`.

Standard input is a pipe that the parent holds open and never writes to. However the parent ends, SIGKILL included, the
pipe closes, so no dashboard is left behind on its port. Without a parent: `streamlit run dashboard/app.py`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

APP = Path(__file__).with_name("app.py")


def end_with_parent() -> None:
    # Not through sys.stdin: a thread that waits in its buffer would be in the way of the interpreter's own end.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    threading.Thread(target=end_with_parent, daemon=True, name="parent-watch").start()
    from streamlit.runtime.pages_manager import PagesManager
    from streamlit.web import cli

    # A folder called "pages" is taken for the whole app until app.py ran once: who came first, by a link to a page,
    # would get its file alone, without filters and navigation.
    PagesManager.uses_pages_directory = False
    sys.argv = ["streamlit", "run", str(APP), *sys.argv[1:]]
    cli.main()


if __name__ == "__main__":
    main()

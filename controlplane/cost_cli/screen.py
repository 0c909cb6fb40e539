"""Where tables for a person go. Names are shown as they are: a `[` or a `:x:` in one is no markup and no emoji."""

from __future__ import annotations

from rich.console import Console

WIDTH = 200


def screen(width: int = WIDTH) -> Console:
    """Of the terminal; into a file or a pipe there is no width to fit, and every figure stays whole within `width`."""
    console = Console(markup=False, emoji=False)
    return console if console.is_terminal else Console(width=width, markup=False, emoji=False)

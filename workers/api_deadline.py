"""When an answer is of no use any more: the server's `request_timeout_s`, or less where the client says so."""

from __future__ import annotations

import re

from fastapi import Request

from workers.api_errors import invalid

HEADER = "x-kadence-timeout"
"""Seconds, decimals allowed. It can shorten the server's limit and not lengthen it."""

_SECONDS = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")


def deadline_of(request: Request, most_s: float) -> float:
    """Unix seconds. Raises ApiError (400) for a header that is no number above 0."""
    said = request.headers.get(HEADER)
    seconds = most_s
    if said is not None:
        if not _SECONDS.fullmatch(said) or not float(said):
            raise invalid(HEADER, f"The header {HEADER} must be seconds above 0, such as 30 or 2.5.")
        seconds = min(float(said), most_s)
    received_at: float = request.state.received_at
    return received_at + seconds

"""Which id a request goes by: its client's where that is harmless in a header and a log, else one of our own."""

from __future__ import annotations

import re
import uuid

HEADER = "x-request-id"
_SANE = re.compile(r"[A-Za-z0-9._:\-]{1,128}")


def request_id_of(given: str) -> str:
    """`given` where it is up to 128 letters, digits, `.`, `_`, `:` and `-`."""
    return given if _SANE.fullmatch(given) else f"req-{uuid.uuid4().hex}"

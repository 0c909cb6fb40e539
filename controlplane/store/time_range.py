"""Stretches of time as an operator writes them: `7d`, `90m`, `2026-11-29`, `2026-11-29T15:00`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

LATEST = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
"""No later moment can be asked for (unix seconds), and none before 1970: nothing was recorded then."""

UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Unix seconds, start inclusive, end exclusive."""

    start: float
    end: float


def parse_duration(text: str) -> float:
    """Seconds of `30s`, `90m`, `24h`, `7d` or `2w`. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a duration such as 90m, 24h or 7d")
    return float(match[1]) * UNIT_S[match[2]]


def parse_moment(text: str, now: float) -> float:
    """Unix seconds of a duration before `now`, or of a date or time (UTC unless it says otherwise).

    Raises ValueError, also for a moment before 1970 or after 9998.
    """
    try:
        at = now - parse_duration(text)
    except ValueError:
        at = _written(text)
    if not 0.0 <= at <= LATEST:
        raise ValueError(f"{text[:40]!r} is not between 1970-01-01 and 9999-01-01")
    return at


def _written(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{text!r} is neither a duration such as 7d nor a time such as 2026-11-29T15:00") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def iso(at: float) -> str:
    """Unix seconds as UTC text, to the second."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

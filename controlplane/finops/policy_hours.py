"""Which policy revisions were in force in an hour."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import lru_cache

HOUR_S = 3600.0


def revisions_in(applied: Iterable[tuple[float, str]]) -> Callable[[int], str | None]:
    """From (applied at, revision): hour since the unix epoch -> the revisions in force in it, in order, joined by "+".

    None for an hour before the first.
    """
    ordered = sorted(applied, key=lambda entry: entry[0])
    moments = [at for at, _ in ordered]

    @lru_cache
    def of(hour: int) -> str | None:
        start = max(bisect_right(moments, hour * HOUR_S) - 1, 0)
        end = bisect_right(moments, (hour + 1) * HOUR_S - 1e-6)
        return "+".join(dict.fromkeys(revision for _, revision in ordered[start:end])) or None

    return of

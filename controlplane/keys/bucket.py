"""A token bucket in integers: what is in it depends on time and on what was taken, never on how often one looked.

It holds a minute's worth at most, so that a client may be as fast as it likes until it has used one minute's limit. In
any stretch of t seconds no more is taken, less what was given back, than limit x (1 + t / 60).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

MINUTE_NS = 60 * 10**9


@dataclass(frozen=True, slots=True)
class Bucket:
    """per_minute: units that flow in within a minute, and the most it holds. level: units x MINUTE_NS in it at `at_ns`,
    so that a nanosecond's inflow is a whole number; below 0 where more was used than had been reserved.
    """

    per_minute: int
    level: int
    at_ns: int

    @property
    def full(self) -> int:
        return self.per_minute * MINUTE_NS

    @property
    def units(self) -> int:
        """Whole units that can be taken."""
        return max(self.level // MINUTE_NS, 0)

    @property
    def full_in_ns(self) -> int:
        """Until it is full, with nothing taken."""
        return -((self.level - self.full) // self.per_minute)

    def at(self, now_ns: int) -> Bucket:
        """The same at `now_ns`; a clock that went back adds nothing."""
        flowed = max(now_ns - self.at_ns, 0) * self.per_minute
        return replace(self, level=min(self.level + flowed, self.full), at_ns=max(now_ns, self.at_ns))

    def wait_ns(self, units: int) -> int | None:
        """From `at_ns` until that many can be taken; None where it never holds so many."""
        missing = units * MINUTE_NS - self.level
        if units > self.per_minute:
            return None
        return max(-(-missing // self.per_minute), 0)

    def less(self, units: int) -> Bucket:
        """With so many taken, or given back where that is negative; it never holds more than a minute's worth."""
        return replace(self, level=min(self.level - units * MINUTE_NS, self.full))


def full_bucket(per_minute: int, now_ns: int) -> Bucket:
    """As a key begins. Raises ValueError for a limit under 1."""
    if per_minute < 1:
        raise ValueError(f"a limit a minute must be 1 or more, not {per_minute}")
    return Bucket(per_minute, per_minute * MINUTE_NS, now_ns)

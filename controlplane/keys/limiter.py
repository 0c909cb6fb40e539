"""Whether a key may send one more request: its limits, and what it has under way. No clock, no lock: the caller says
the time and makes the calls in turn.

A request is admitted where every limit has room for it, and only then takes from any; a refused one takes nothing. Its
tokens are reserved for the worst case, prompt and all that it may be given, and what it did not use is given back when
it ends. Keys do not know each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from controlplane.keys.bucket import Bucket, full_bucket
from controlplane.keys.ring import KeyLimits

Limit = Literal["requests", "tokens", "concurrent"]


class Ticket(NamedTuple):
    """An admitted request, to be settled when it ends. tokens: what was reserved."""

    key: str
    tokens: int


@dataclass(frozen=True, slots=True)
class LimitRefusal:
    """Which limit has no room. retry_after_ns: when there may be; None: never, the request is more than a minute's."""

    limit: Limit
    allowed: int
    retry_after_ns: int | None


class Standing(NamedTuple):
    """One limit a minute as it is told to a client. reset_ns: until nothing of it is used."""

    limit: int
    remaining: int
    reset_ns: int


CONCURRENT_RETRY_NS = 10**9
"""Nobody knows when a request under way will end."""


@dataclass(slots=True)
class _Use:
    limits: KeyLimits
    requests: Bucket | None
    tokens: Bucket | None
    running: int = 0

    def at(self, now_ns: int) -> _Use:
        """The same at `now_ns`."""
        requests, tokens = (bucket and bucket.at(now_ns) for bucket in (self.requests, self.tokens))
        return replace(self, requests=requests, tokens=tokens)


class KeyLimiter:
    """What every limited key has used lately, and has under way."""

    def __init__(self) -> None:
        self._uses: dict[str, _Use] = {}

    def admit(self, key: str, limits: KeyLimits, tokens: int, now_ns: int) -> Ticket | LimitRefusal:
        """Take a request that may use `tokens`, or say which limit refuses it: of several the one to wait longest for.

        Other limits than last time begin with a full bucket.
        """
        use = self._use(key, limits, now_ns)
        refusals = []
        if limits.max_concurrent is not None and use.running >= limits.max_concurrent:
            refusals.append(LimitRefusal("concurrent", limits.max_concurrent, CONCURRENT_RETRY_NS))
        buckets: tuple[tuple[Limit, Bucket | None, int], ...] = (
            ("requests", use.requests, 1),
            ("tokens", use.tokens, tokens),
        )
        for limit, bucket, wanted in buckets:
            wait = 0 if bucket is None else bucket.wait_ns(wanted)
            if bucket is not None and wait != 0:
                refusals.append(LimitRefusal(limit, bucket.per_minute, wait))
        if refusals:
            return max(refusals, key=lambda r: (r.retry_after_ns is None, r.retry_after_ns or 0))
        use.requests = use.requests and use.requests.less(1)
        use.tokens = use.tokens and use.tokens.less(tokens)
        use.running += 1
        return Ticket(key, tokens)

    def settle(self, ticket: Ticket, used_tokens: int, now_ns: int) -> None:
        """The request has ended; what it did not use of its reservation is the key's again. Once a ticket."""
        use = self._uses[ticket.key]
        use.running -= 1
        if use.tokens is not None:
            use.tokens = use.tokens.at(now_ns).less(used_tokens - ticket.tokens)

    def running(self, key: str) -> int:
        """Requests under way."""
        use = self._uses.get(key)
        return 0 if use is None else use.running

    def standings(self, key: str, limits: KeyLimits, now_ns: int) -> dict[Limit, Standing]:
        """What is left of the limits a minute that the key has. Only looks: an answer to a request that began under
        other limits must not put those in force again, with full buckets.
        """
        use = self._uses.get(key)
        use = _fresh(limits, now_ns) if use is None or use.limits != limits else use.at(now_ns)
        buckets: dict[Limit, Bucket | None] = {"requests": use.requests, "tokens": use.tokens}
        return {
            limit: Standing(bucket.per_minute, bucket.units, bucket.full_in_ns)
            for limit, bucket in buckets.items()
            if bucket is not None
        }

    def _use(self, key: str, limits: KeyLimits, now_ns: int) -> _Use:
        use = self._uses.get(key)
        if use is None or use.limits != limits:
            use = replace(_fresh(limits, now_ns), running=self.running(key))
        use = self._uses[key] = use.at(now_ns)
        return use


def _fresh(limits: KeyLimits, now_ns: int) -> _Use:
    """As a key begins."""
    requests, tokens = (
        None if limit is None else full_bucket(limit, now_ns)
        for limit in (limits.requests_per_minute, limits.tokens_per_minute)
    )
    return _Use(limits, requests, tokens)

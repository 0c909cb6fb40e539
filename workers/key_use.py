"""What API keys use of one endpoint: their limits, the headers that tell of them, and the counts for Prometheus."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from controlplane.keys.limiter import KeyLimiter, LimitRefusal, Ticket
from controlplane.keys.ring import KeyLimits
from workers.api_errors import ApiError

NO_LIMITS = KeyLimits()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request. name: of the key, as the policy's `match.api_key` has it; None without one. tenant: whose
    budget and bill it is. cohort: where a key's requests go whatever they say; None leaves it to the policy.
    is_on_record: whether `name` is a key's of the database, and not just what a client on this machine calls itself.
    """

    name: str | None = None
    tenant: str | None = None
    cohort: str | None = None
    limits: KeyLimits = NO_LIMITS
    is_on_record: bool = False


class KeyUse:
    """One per endpoint replica. part_of: so many replicas share each limit; each has its part."""

    def __init__(self, part_of: int = 1, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._part_of, self._now_ns = part_of, now_ns
        self._limiter = KeyLimiter()
        self._admitted: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._refused: Counter[tuple[str, str]] = Counter()
        self._rejected: Counter[str] = Counter()

    def reserve(self, caller: Caller, tokens: int) -> Reservation:
        """Take a request in that uses at most `tokens`, prompt and answer together; it must be settled. Raises
        ApiError (429) where a limit of its key has no room.
        """
        if not caller.is_on_record or caller.name is None:
            return Reservation(self)
        limits = caller.limits.part(self._part_of)
        said = self._limiter.admit(caller.name, limits, tokens, self._now_ns())
        if isinstance(said, LimitRefusal):
            self._refused[caller.name, said.limit] += 1
            raise _over_limit(said, tokens)
        self._admitted[caller.name] += 1
        return Reservation(self, said)

    def settle(self, ticket: Ticket, used: int) -> None:
        self._tokens[ticket.key] += used
        self._limiter.settle(ticket, used, self._now_ns())

    def reject(self, reason: str) -> None:
        """Count a request without a key that it needs, or with one that opens nothing."""
        self._rejected[reason] += 1

    def headers(self, caller: Caller) -> dict[str, str]:
        """OpenAI's x-ratelimit headers, for the limits a minute that the caller's key has."""
        if caller.name is None or caller.limits == NO_LIMITS:
            return {}
        found = {}
        limits = caller.limits.part(self._part_of)
        for what, (limit, remaining, reset_ns) in self._limiter.standings(caller.name, limits, self._now_ns()).items():
            found[f"x-ratelimit-limit-{what}"] = str(limit)
            found[f"x-ratelimit-remaining-{what}"] = str(remaining)
            found[f"x-ratelimit-reset-{what}"] = duration(reset_ns)
        return found

    def families(self) -> Iterator[Metric]:
        """For Prometheus; a label is a key's name as the database has it, never what a client sent."""
        admitted = CounterMetricFamily("kadence_key_requests", "Requests taken in, by API key.", labels=["key"])
        tokens = CounterMetricFamily("kadence_key_tokens", "Prompt and answer tokens used, by API key.", labels=["key"])
        running = GaugeMetricFamily("kadence_key_running_requests", "Requests under way, by API key.", labels=["key"])
        for key in sorted(self._admitted):
            admitted.add_metric([key], self._admitted[key])
            tokens.add_metric([key], self._tokens[key])
            running.add_metric([key], self._limiter.running(key))
        refused = CounterMetricFamily(
            "kadence_key_requests_refused", "Requests over a limit of their API key.", labels=["key", "limit"]
        )
        for labels, count in sorted(self._refused.items()):
            refused.add_metric(labels, count)
        rejected = CounterMetricFamily(
            "kadence_key_rejections", "Requests whose API key opens nothing, by reason.", labels=["reason"]
        )
        for reason, count in sorted(self._rejected.items()):
            rejected.add_metric([reason], count)
        yield from (admitted, tokens, running, refused, rejected)


@dataclass(slots=True)
class Reservation:
    """What one request has reserved of its key's limits; nothing, without such a key."""

    _use: KeyUse
    _ticket: Ticket | None = None
    _is_settled: bool = field(default=False, init=False)

    def settle(self, used: int) -> None:
        """The request has ended with so many tokens used, however it did; a second time says nothing."""
        if self._ticket is not None and not self._is_settled:
            self._is_settled = True
            self._use.settle(self._ticket, used)


def duration(ns: int) -> str:
    """Nanoseconds as OpenAI writes a reset: `0s`, `120ms`, `8.64s`, `6m0s`; rounded up, so that waiting for it does."""
    ms = -(-ns // 10**6)
    if 0 < ms < 1000:
        return f"{ms}ms"
    seconds, rest = divmod(ms, 1000)
    if seconds < 60:
        return f"{seconds}.{rest:03}".rstrip("0").rstrip(".") + "s"
    minutes, seconds = divmod(-(-ms // 1000), 60)
    return f"{minutes}m{seconds}s"


def _over_limit(refusal: LimitRefusal, tokens: int) -> ApiError:
    code = "rate_limit_exceeded"
    if refusal.retry_after_ns is None:
        message = (
            f"This request may use {tokens} tokens, prompt and answer, and its key has {refusal.allowed} a minute; "
            "lower max_tokens or shorten the prompt."
        )
        return ApiError(429, message, type="rate_limit_error", code=code, headers={"x-should-retry": "false"})
    seconds = refusal.retry_after_ns / 1e9
    headers = {"retry-after": str(math.ceil(seconds)), "retry-after-ms": str(math.ceil(seconds * 1000))}
    what = {
        "requests": f"{refusal.allowed} requests a minute",
        "tokens": f"{refusal.allowed} tokens a minute",
        "concurrent": f"{refusal.allowed} requests at once",
    }[refusal.limit]
    message = f"The limit of this key, {what}, is reached; try again in {duration(refusal.retry_after_ns)}."
    return ApiError(429, message, type="rate_limit_error", code=code, headers=headers)

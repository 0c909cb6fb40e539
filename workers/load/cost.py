"""What a run cost: the endpoint's own counters before and after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx
from prometheus_client.parser import text_string_to_metric_families

BUSY, IDLE, TOKENS = "kadence_cost_usd_total", "kadence_idle_cost_usd_total", "kadence_emitted_tokens_total"
WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Bill:
    """Counters of an endpoint at one moment: dollars by basis, and tokens. A basis without a price is absent."""

    tokens: float = 0.0
    busy_usd: Mapping[str, float] = field(default_factory=dict)
    idle_usd: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunCost:
    """Of all that the endpoint did in the run, on one basis.

    tokens: that it emitted, to anybody. usd: of busy machine time; idle_usd: of idle machine time beside it. Per
    million tokens: without idle, and (loaded) with it.
    """

    basis: str
    tokens: int
    usd: float
    idle_usd: float
    usd_per_million_tokens: float
    loaded_usd_per_million_tokens: float


def parse_bill(text: str) -> Bill:
    """Counters of an exposition, summed over models and cohorts."""
    tokens, busy, idle = 0.0, dict[str, float](), dict[str, float]()
    for metric in text_string_to_metric_families(text):
        for sample in metric.samples:
            basis = sample.labels.get("basis", "")
            if sample.name == TOKENS:
                tokens += sample.value
            elif sample.name in (BUSY, IDLE):
                sums = busy if sample.name == BUSY else idle
                sums[basis] = sums.get(basis, 0.0) + sample.value
    return Bill(tokens, busy, idle)


async def read_bill(url: str, api_key: str | None) -> Bill | None:
    """The counters now; None where the endpoint does not show them."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        async with httpx.AsyncClient(timeout=WITHIN_S) as client:
            answer = await client.get(f"{url.rstrip('/')}/metrics", headers=headers)
        return parse_bill(answer.text) if answer.status_code == httpx.codes.OK else None
    except (httpx.HTTPError, ValueError):
        return None


def cost_between(before: Bill | None, after: Bill | None) -> tuple[RunCost, ...]:
    """What came between the two, by basis; nothing where a counter is not known at both, or was set back."""
    if before is None or after is None:
        return ()
    tokens, costs = after.tokens - before.tokens, []
    for basis in sorted(after.busy_usd.keys() & after.idle_usd.keys()):
        usd = after.busy_usd[basis] - before.busy_usd.get(basis, 0.0)
        idle_usd = after.idle_usd[basis] - before.idle_usd.get(basis, 0.0)
        # An endpoint that showed tokens and no price before cannot say what the run's part is.
        was_unpriced = before.tokens > 0 and basis not in before.busy_usd
        if tokens <= 0 or min(usd, idle_usd) < 0 or was_unpriced:
            continue
        per_million = 1e6 / tokens
        costs.append(RunCost(basis, round(tokens), usd, idle_usd, usd * per_million, (usd + idle_usd) * per_million))
    return tuple(costs)

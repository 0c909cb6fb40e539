"""Many concurrent streams on the default limits: whether every request ends well, and what is left behind.

    python -m benchmarks.endpoint_load --streams 256 --seconds 300

Starts a `kadence serve` of its own. Each of the streams sends a request, reads it to its end, and sends the next one; a
429 is waited out as its `retry-after` says (at most RETRY_MOST_S, so that the queue stays full). Memory and file
handles are read before and after, both times at rest and after a first round of traffic, sequences and KV tokens after.
Exit code 1 where a request ended badly, or anything was left over.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from benchmarks.decode import machine
from benchmarks.decode_figures import append_lines
from benchmarks.endpoint_server import Held, running
from controlplane.settings import load_settings, physical_cores

RESULTS = Path(__file__).with_name("endpoint_load.csv")
RETRY_MOST_S = 5.0
REST_WITHIN_S = 60.0
MOST_GROWTH_BYTES = 128 * 2**20
"""Of the memory of the endpoint, the proxy and the worker together: allocators keep what they once had."""
MOST_NEW_HANDLES = 16


@dataclass(slots=True)
class Seen:
    """What clients saw. outcomes: "ok", "429", or what was wrong. ttft_s: of the requests that were admitted."""

    outcomes: Counter[str] = field(default_factory=Counter)
    ttft_s: list[float] = field(default_factory=list)
    tokens: int = 0

    @property
    def bad(self) -> dict[str, int]:
        return {what: n for what, n in self.outcomes.items() if what not in ("ok", "429")}


async def one_stream(client: httpx.AsyncClient, seen: Seen, stream: int, until: float) -> None:
    """Send requests one after the other until that time (monotonic seconds)."""
    numbers = random.Random(stream)
    while time.monotonic() < until:
        body = {
            "model": "smollm2-135m-instruct",
            "prompt": [numbers.randrange(1000, 40_000) for _ in range(numbers.choice((8, 24, 60, 150)))],
            "max_tokens": numbers.choice((4, 8, 16)),
            "temperature": 0.7,
            "stream": True,
            "ignore_eos": True,
        }
        outcome, wait_s = await send(client, seen, body)
        seen.outcomes[outcome] += 1
        if wait_s:
            await asyncio.sleep(min(wait_s, RETRY_MOST_S, max(until - time.monotonic(), 0)))


async def send(client: httpx.AsyncClient, seen: Seen, body: dict[str, Any]) -> tuple[str, float]:
    """How one request ended, and how long to wait before the next."""
    started = time.monotonic()
    last = b""
    try:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                error = json.loads(await response.aread()).get("error", {})
                if response.status_code == 429 and error.get("message") and "retry-after" in response.headers:
                    return "429", float(response.headers["retry-after"])
                return f"status {response.status_code}: {error.get('code')}", 1.0
            first_at = None
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    first_at = first_at or time.monotonic()
                    if '"error"' in line[:12] or line.startswith('data: {"error"'):
                        return f"error event: {json.loads(line[6:])['error']['code']}", 0.0
                    last = line.encode()
            if last != b"data: [DONE]" or first_at is None:
                return "cut off", 0.0
            seen.ttft_s.append(first_at - started)
            seen.tokens += body["max_tokens"]
            return "ok", 0.0
    except (httpx.HTTPError, ValueError) as error:
        return type(error).__name__, 1.0


async def traffic(url: str, streams: int, seconds: float) -> Seen:
    seen, until = Seen(), time.monotonic() + seconds
    limits = httpx.Limits(max_connections=streams)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        await asyncio.gather(*(one_stream(client, seen, stream, until) for stream in range(streams)))
    return seen


def at_rest(url: str) -> dict[str, float]:
    """Sequences and KV tokens that are left, once there are none or the wait is over."""
    names = ("kadence_running_sequences", "kadence_waiting_sequences", "kadence_kv_used_tokens")
    ends = time.monotonic() + REST_WITHIN_S
    while True:
        left = dict.fromkeys(names, 0.0)
        for line in httpx.get(f"{url}/metrics", timeout=30).text.splitlines():
            name = line.partition("{")[0].partition(" ")[0]
            if name in left:
                left[name] += float(line.rpartition(" ")[2])
        if not any(left.values()) or time.monotonic() > ends:
            return left
        time.sleep(1)


def percentile(values: list[float], share: float) -> float:
    """Nearest rank; nan for none."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else float("nan")


def problems(seen: Seen, left: dict[str, float], before: Held, after: Held, deadline_s: float) -> list[str]:
    """What must not be, one line each."""
    found = [f"{n} request(s) ended with: {what}" for what, n in seen.bad.items()]
    found += [f"{name} is {value:g} at rest" for name, value in left.items() if value]
    if not seen.outcomes["ok"]:
        found.append("no request was served")
    if (grown := after.rss_bytes - before.rss_bytes) > MOST_GROWTH_BYTES:
        found.append(f"memory grew by {grown / 2**20:.0f} MiB")
    if (more := after.file_handles - before.file_handles) > MOST_NEW_HANDLES:
        found.append(f"{more} more file handles are open")
    if (p99 := percentile(seen.ttft_s, 0.99)) > deadline_s:
        found.append(f"p99 of the time to first token is {p99:.1f} s, over the deadline of {deadline_s:g} s")
    return found


def measure(streams: int, seconds: float, **settings: Any) -> tuple[dict[str, Any], list[str]]:
    """Figures of one run against a server of its own, and what was wrong."""
    used = load_settings(**settings)
    with running(**settings) as server:
        asyncio.run(traffic(server.url, streams, max(seconds / 10, 5.0)))  # connections, caches, allocators
        at_rest(server.url)
        before = server.held()
        started = time.monotonic()
        seen = asyncio.run(traffic(server.url, streams, seconds))
        took = time.monotonic() - started
        left = at_rest(server.url)
        after = server.held()
    row = {
        "streams": streams,
        "seconds": round(took, 1),
        "ok": seen.outcomes["ok"],
        "refused_429": seen.outcomes["429"],
        "bad": sum(seen.bad.values()),
        "tokens_per_s": seen.tokens / took,
        "ttft_p50_s": percentile(seen.ttft_s, 0.5),
        "ttft_p99_s": percentile(seen.ttft_s, 0.99),
        "memory_growth_mib": (after.rss_bytes - before.rss_bytes) / 2**20,
        "memory_mib": after.rss_bytes / 2**20,
        "new_file_handles": after.file_handles - before.file_handles,
    }
    return row, problems(seen, left, before, after, used.queue_wait_s)


def main(
    streams: Annotated[int, typer.Option(min=1)] = 256,
    seconds: Annotated[float, typer.Option(min=5)] = 300.0,
    csv: Annotated[Path, typer.Option(help="A row is appended here.")] = RESULTS,
) -> None:
    """Every request ends well or with a clean 429, and nothing is left behind."""
    row, wrong = measure(streams, seconds)
    conditions = {"date": datetime.now(UTC).date().isoformat(), **machine(physical_cores())}
    append_lines(csv, [conditions | row])
    typer.echo(json.dumps(row, indent=1))
    for line in wrong:
        typer.echo(line, err=True)
    raise typer.Exit(1 if wrong else 0)


if __name__ == "__main__":
    typer.run(main)

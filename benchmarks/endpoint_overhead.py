"""What HTTP and Ray add to the engine: the same requests over the endpoint and in process, in paired turns.

    OMP_WAIT_POLICY=ACTIVE GOMP_SPINCOUNT=500 python -m benchmarks.endpoint_overhead --rounds 9

Starts a `kadence serve` of its own and an engine in this process, both at K = 0, and has them decode the same greedy
requests one after the other, in alternating order; texts must be equal. Threads of the worker sleep between parallel
regions (workers/deployment.py): without the variable those of this process spin, which is no matter of HTTP's. The
endpoint's turn pays for its client, too, which shares this machine: one that reads bytes and parses them when the clock
has stopped (benchmarks/stream_client.py). Figures are of pairs: what the endpoint adds to the
time to first token, and takes from tokens per second of the whole turn. Turns of seconds scatter by ten percent on a
shared machine, so there is also the median time between two tokens of a stream, over all turns of an arm.
"""

from __future__ import annotations

import asyncio
import json
import queue
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
import uvloop

from benchmarks.decode import machine
from benchmarks.decode_figures import Spread, append_lines
from benchmarks.endpoint_server import POLICY, running
from benchmarks.stream_client import stream
from controlplane.policy import parse_policy
from controlplane.settings import Settings, load_settings
from workers.build import build_engine
from workers.engine_loop import EngineLoop
from workers.sequence import Chunk, EngineRequest, SamplingParams

RESULTS = Path(__file__).with_name("endpoint_overhead.csv")
PROMPT_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Turn:
    """One arm's decoding of all streams. ttft_s: of each; between_s: from one token of a stream to its next; seconds:
    until the last one ended; texts: by stream.
    """

    ttft_s: tuple[float, ...]
    between_s: tuple[float, ...]
    seconds: float
    texts: tuple[str, ...]


def prompts_of(streams: int, turn: int) -> list[list[int]]:
    numbers = random.Random(turn)
    return [[numbers.randrange(1000, 40_000) for _ in range(PROMPT_TOKENS)] for _ in range(streams)]


class InProcess:
    """The engine on a thread of this process, as a worker has it."""

    def __init__(self, settings: Settings) -> None:
        engine, _ = build_engine(settings, parse_policy(POLICY.replace("START", "0")), worker="benchmark")
        self._chunks: queue.SimpleQueue[Sequence[Chunk]] = queue.SimpleQueue()
        self._loop = EngineLoop(engine, self._chunks.put, lambda report: None)
        self._loop.start()

    def turn(self, prompts: list[list[int]], tokens: int) -> Turn:
        started = time.perf_counter()
        for i, prompt in enumerate(prompts):
            sampling = SamplingParams(tokens, temperature=0.0, ignore_eos=True)
            request = EngineRequest(str(i), tuple(prompt), sampling, "default", created_at=time.time())
            self._loop.submit(request)
        at: dict[str, list[float]] = {str(i): [] for i in range(len(prompts))}
        texts = dict.fromkeys(map(str, range(len(prompts))), "")
        left = len(prompts)
        while left:
            for chunk in self._chunks.get(timeout=600):
                at[chunk.request_id].append(time.perf_counter())
                texts[chunk.request_id] += chunk.text
                left -= chunk.finish_reason is not None
        seconds = time.perf_counter() - started
        first_s = tuple(times[0] - started for times in at.values())
        return Turn(first_s, between(at.values()), seconds, tuple(texts.values()))

    def stop(self) -> None:
        self._loop.stop()


async def over_http(url: str, prompts: list[list[int]], tokens: int, model: str) -> Turn:
    """The same as streams, all sent at once. Raises StreamError."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    asked = {"model": model, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    started = time.perf_counter()
    answers = await asyncio.gather(
        *(stream(parts.hostname, parts.port, "/v1/completions", {**asked, "prompt": prompt}) for prompt in prompts)
    )
    seconds = time.perf_counter() - started
    texts = ["".join(event["choices"][0]["text"] for event in answer.events()) for answer in answers]
    first_s = tuple(answer.events_at[0] - started for answer in answers)
    return Turn(first_s, between(answer.events_at for answer in answers), seconds, tuple(texts))


def between(streams: Iterable[Sequence[float]]) -> tuple[float, ...]:
    """Seconds from each token to the next one of its stream."""
    return tuple(later - earlier for times in streams for earlier, later in pairwise(times))


def row_of(streams: int, tokens: int, pairs: list[tuple[Turn, Turn]]) -> dict[str, Any]:
    """Figures of (in process, endpoint) pairs."""
    added = [1000 * (e - i) for ours, theirs in pairs for i, e in zip(ours.ttft_s, theirs.ttft_s, strict=True)]
    lost = Spread.of([1 - ours.seconds / theirs.seconds for ours, theirs in pairs])
    ttft = Spread.of(added)
    between_s = [median(s for turn in arm for s in turn.between_s) for arm in zip(*pairs, strict=True)]
    return {
        "streams": streams,
        "tokens": tokens,
        "pairs": len(pairs),
        "tokens_per_s_in_process": Spread.of([streams * tokens / ours.seconds for ours, _ in pairs]).median,
        "tokens_per_s_endpoint": Spread.of([streams * tokens / theirs.seconds for _, theirs in pairs]).median,
        "tokens_per_s_lost_min": lost.min,
        "tokens_per_s_lost_median": lost.median,
        "tokens_per_s_lost_max": lost.max,
        "ttft_added_ms_min": ttft.min,
        "ttft_added_ms_median": ttft.median,
        "ttft_added_ms_max": ttft.max,
        "between_tokens_ms_in_process": 1000 * between_s[0],
        "between_tokens_ms_endpoint": 1000 * between_s[1],
        "between_tokens_lost": 1 - between_s[0] / between_s[1],
    }


async def compare(
    url: str, engine: InProcess, streams: int, tokens: int, rounds: int, model: str
) -> list[tuple[Turn, Turn]]:
    pairs = []
    for turn in range(-1, rounds):  # the first pair warms up
        prompts = prompts_of(streams, turn)
        turns: dict[str, Turn] = {}
        for arm in ("engine", "endpoint") if turn % 2 else ("endpoint", "engine"):
            if arm == "engine":
                turns[arm] = await asyncio.to_thread(engine.turn, prompts, tokens)
            else:
                turns[arm] = await over_http(url, prompts, tokens, model)
        if turns["engine"].texts != turns["endpoint"].texts:
            raise typer.BadParameter("texts differ between the engine and the endpoint; no figures are reported")
        if turn >= 0:
            pairs.append((turns["engine"], turns["endpoint"]))
    return pairs


def main(
    streams: Annotated[list[int], typer.Option(help="Give it several times.")] = [1, 16],  # noqa: B006
    tokens: Annotated[int, typer.Option(min=2)] = 64,
    rounds: Annotated[int, typer.Option(min=1)] = 9,
    csv: Annotated[Path, typer.Option(help="Rows are appended here.")] = RESULTS,
) -> None:
    """What the endpoint adds, by number of streams."""
    given: dict[str, Any] = {"drafter": "ngram", "max_sequences": 16, "profile_s": 0.0, "canary_share": 0.0}
    given["prefix_cache"] = False  # rounds repeat their prompts
    settings = load_settings(**given)
    engine = InProcess(settings)
    rows = []
    with running(0, **given) as server:
        for n in streams:
            pairs = uvloop.run(compare(server.url, engine, n, tokens, rounds, settings.model))
            rows.append(row_of(n, tokens, pairs))
            typer.echo(json.dumps(rows[-1]))
    engine.stop()
    conditions = {"date": datetime.now(UTC).date().isoformat(), **machine(settings.worker_threads)}
    append_lines(csv, [conditions | row for row in rows])


if __name__ == "__main__":
    typer.run(main)

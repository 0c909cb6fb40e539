"""How long until every replica obeys a new plan, and what that does to the streams: real Ray Serve, under load.

    OMP_WAIT_POLICY=ACTIVE GOMP_SPINCOUNT=500 python -m benchmarks.plan_propagation --replicas 3 --repeats 4

Starts `kadence serve` with replicas of a tiny model with random weights (one thread each), keeps seeded streams running
in closed loop, and changes the plan over HTTP again and again: another policy, kill switch to zero, kill switch off.

acknowledged: seconds from sending the request to its answer, which comes when every replica has the plan; it is obeyed
from the next step on. on record: seconds to the end of the latest replica's first window that carries the new version:
an upper bound, since a window is closed once a second. Nothing is reported where a replica missed a plan, or where a
stream failed, ended early or gave other text than the same request before.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn

import httpx
import ray
import sqlalchemy as sa
import typer

from benchmarks.decode import machine
from benchmarks.decode_figures import append_lines
from benchmarks.plan_propagation_figures import Change, Stream, WindowSeen, result_rows, stream_problems
from controlplane.store.engine import open_database
from controlplane.store.models import Window

RESULTS = Path(__file__).with_name("plan_propagation.csv")
KADENCE = str(Path(sys.executable).with_name("kadence"))
VOCABULARY, CONTEXT, PROMPT_TOKENS = 64, 1024, 24
START_WITHIN_S, STOP_WITHIN_S = 240.0, 60.0
BETWEEN_S, SETTLE_S = 4.0, 6.0
SEEDS = 12
"""Different requests; each comes again and again, and must give the same text every time."""
KINDS = ("policy", "policy", "kill zero", "kill off")


def policy_text(k: int) -> str:
    return (
        "version: 1\ncohorts:\n  - name: default\n    match: {}\n"
        f"    speculation: {{tuner: fixed, ladder: [0, 2, 4], start: {k}, fallback: 0}}\n"
    )


def make_model(folder: Path) -> None:
    """A Llama of two small layers with random weights and a tokenizer of words, in `folder`."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=CONTEXT, initializer_range=0.35, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    words = Tokenizer(WordLevel({f"t{n}": n for n in range(VOCABULARY)}, "t0"))
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="t0", eos_token="t1").save_pretrained(folder)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@asynccontextmanager
async def serving(home: Path, replicas: int) -> AsyncIterator[str]:
    """`kadence serve` with the tiny model; yields its URL once every replica answers, and stops it afterwards."""
    port, model, config, log = free_port(), home / "model", home / "kadence.yaml", home / "serve.log"
    make_model(model)
    (home / "policies.yaml").write_text(policy_text(4))
    config.write_text(
        f"home: {home}\npolicy: {home}/policies.yaml\npolicy_watch: false\nport: {port}\n"
        f"dashboard_port: {free_port()}\ndrafter: ngram\n"
        f"model: {model}\ndtype: float32\ndevice: cpu\nthreads: 1\nreplicas: {replicas}\nmax_context: {CONTEXT}\n"
        f"prices: {Path(__file__).parents[1] / 'prices.yaml'}\n"
    )
    with log.open("wb") as out:
        # A Ray cluster of someone else's: Kadence starts its own beside it.
        process = subprocess.Popen(
            [KADENCE, "serve", "--config", str(config)],
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=home,
            env={**os.environ, "RAY_ADDRESS": "127.0.0.1:1"},
        )
    try:
        ends = time.monotonic() + START_WITHIN_S
        while b"ready in" not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > ends:
                _stop(f"kadence serve did not start:\n{log.read_text(errors='replace')[-2000:]}")
            await asyncio.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()


async def stream_once(client: httpx.AsyncClient, url: str, model: str, seed: int, max_tokens: int) -> Stream:
    """One streamed completion: when each piece of text came, the text, and how it ended."""
    prompt = " ".join(f"t{2 + (7 * seed + i * i) % (VOCABULARY - 2)}" for i in range(PROMPT_TOKENS))
    body = {
        "model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0.7, "seed": seed, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    at, text, finish, tokens, error = [], "", None, 0, None
    try:
        async with client.stream("POST", f"{url}/v1/completions", json=body) as response:
            if response.status_code != 200:
                error = f"HTTP {response.status_code}: {(await response.aread()).decode()[:200]}"
            async for line in response.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                event = json.loads(line[6:])
                if event.get("error"):
                    error = str(event["error"])
                for choice in event.get("choices") or ():
                    if choice["text"]:
                        at.append(time.time())
                        text += choice["text"]
                    finish = choice["finish_reason"] or finish
                if event.get("usage"):
                    tokens = event["usage"]["completion_tokens"]
    except httpx.HTTPError as failure:
        error = f"{type(failure).__name__}: {failure}"
    return Stream(seed, tuple(at), text, finish, tokens, error)


async def keep_streaming(url: str, concurrency: int, max_tokens: int, stop: asyncio.Event, out: list[Stream]) -> None:
    """Streams in closed loop until `stop` is set; what runs then comes to its end."""
    seeds = deque(range(SEEDS))
    model = (await _json(url, "/v1/models"))["data"][0]["id"]

    async def one(client: httpx.AsyncClient) -> None:
        while not stop.is_set():
            seeds.rotate(-1)
            out.append(await stream_once(client, url, model, seeds[0], max_tokens))

    limits = httpx.Limits(max_connections=concurrency)
    async with httpx.AsyncClient(timeout=60, limits=limits) as client:
        await asyncio.gather(*(one(client) for _ in range(concurrency)))


async def _json(url: str, path: str) -> Any:
    async with httpx.AsyncClient(timeout=10) as client:
        return (await client.get(url + path)).raise_for_status().json()


async def change(url: str, kind: str, turn: int) -> Change:
    """Send one change and wait for its answer."""
    async with httpx.AsyncClient(timeout=20) as client:
        sent = time.time()
        if kind == "policy":
            answer = await client.put(f"{url}/admin/policy?by=benchmark", content=policy_text(2 if turn % 2 else 4))
        else:
            body = {"mode": kind.removeprefix("kill "), "reason": "benchmark"}
            answer = await client.put(f"{url}/admin/kill-switch?by=benchmark", json=body)
        answered = time.time()
        answer.raise_for_status()
        plan = (await client.get(f"{url}/admin/plan")).raise_for_status().json()
    return Change(kind, sent, answered, int(plan["version"]))


async def measure(home: Path, replicas: int, repeats: int, concurrency: int, max_tokens: int) -> Any:
    """(changes, streams, windows)."""
    streams: list[Stream] = []
    changes = []
    async with serving(home, replicas) as url:
        stop = asyncio.Event()
        load = asyncio.create_task(keep_streaming(url, concurrency, max_tokens, stop, streams))
        await asyncio.sleep(SETTLE_S)
        for turn in range(repeats * len(KINDS)):
            await asyncio.sleep(BETWEEN_S)
            changes.append(await change(url, KINDS[turn % len(KINDS)], turn + 1))
        await asyncio.sleep(BETWEEN_S)
        stop.set()
        await load
    return changes, streams, read_windows(home)


def read_windows(home: Path) -> list[WindowSeen]:
    """Of the ledger, in the order of their ends."""
    engine = open_database(f"sqlite:///{home}/kadence.db")
    columns = (Window.worker, Window.started_at, Window.ended_at, Window.plan_version)
    with engine.connect() as connection:
        rows = connection.execute(sa.select(*columns).order_by(Window.ended_at)).all()
    engine.dispose()
    return [WindowSeen(*row) for row in rows]


def main(
    replicas: Annotated[int, typer.Option(min=1, max=16, help="Workers.")] = 3,
    repeats: Annotated[int, typer.Option(min=1, help="Times four changes: two policies, kill switch on and off.")] = 4,
    concurrency: Annotated[int, typer.Option(min=1, help="Streams at once.")] = 6,
    max_tokens: Annotated[int, typer.Option(min=8, max=CONTEXT // 2, help="Of a stream.")] = 240,
    csv: Annotated[Path, typer.Option(help="Rows are appended here.")] = RESULTS,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Seconds until every replica obeys a new plan, under load, and the gaps between tokens around it."""
    with tempfile.TemporaryDirectory(prefix="kadence-plan-") as folder:
        changes, streams, windows = asyncio.run(measure(Path(folder), replicas, repeats, concurrency, max_tokens))
    if problems := stream_problems(streams, max_tokens):
        _stop("\n".join([*problems[:10], f"{len(problems)} of {len(streams)} streams: no figures are reported"]))
    try:
        rows = result_rows(changes, streams, windows, replicas)
    except ValueError as error:
        _stop(str(error))
    conditions = {
        "date": datetime.now(UTC).date().isoformat(), **machine(1), "ray": ray.__version__, "replicas": replicas,
        "streams": len(streams), "concurrency": concurrency, "load_average": round(os.getloadavg()[1], 1),
    }  # fmt: skip
    append_lines(csv, [conditions | row for row in rows])
    if as_json:
        typer.echo(json.dumps({"machine": conditions, "rows": rows}))
        return
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))


def _stop(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)

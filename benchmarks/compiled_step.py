"""What compiling the CPU step is worth: step times, draft times, text per second, starts and memory.

`python -m benchmarks.compiled_step [--rounds N] [--part NAME]` appends to benchmarks/compiled_step.csv. Arms run in one
process by turns, so that what else the machine does hits all of them alike; a start is a process of its own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from benchmarks.decode import machine
from benchmarks.decode_figures import append_lines
from controlplane.policy import parse_policy
from controlplane.settings import Settings

CSV = Path(__file__).with_name("compiled_step.csv")
SEQUENCES = (1, 4, 8, 16, 32, 64)
ROWS = (1, 4, 8, 16, 32, 64, 128)
"""Of one sequence: what its verification or a chunk of its prompt takes."""
CONTEXT = 128
DRAFTERS = ("eagle", "medusa", "draft")
DEPTHS = (1, 2, 4)
TOKENS = 48
PROMPT = "Write a Python function that returns the n-th Fibonacci number, and explain how it works."
POLICY = """
version: 1
cohorts:
  - name: default
    match: {}
    speculation: {tuner: fixed, ladder: [0, 1, 2, 4], start: 0, fallback: 0}
"""

Figure = tuple[str, str, str, list[float]]
"""What was measured, of which arm, at which size, and every value."""


def settings(arm: str, drafter: str = "none", **changes: Any) -> Settings:
    values = {"drafter": drafter, "compile": "off" if arm == "eager" else "auto", "device": "cpu", "threads": 2}
    return Settings(**{**values, "max_sequences": 64, "max_context": 512, "profile_s": 0, **changes})


def engine_of(arm: str, drafter: str = "none") -> Any:
    """Compiled first, where that was not done before."""
    from workers.build import build_engine
    from workers.compiled.background import compile_now

    own = settings(arm, drafter)
    engine, _ = build_engine(own, parse_policy(POLICY, source="benchmark"), "benchmark")
    compile_now(engine.uncompiled, own.model_cache, engine.adopt)
    return engine


def by_turns(arms: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Values of each arm, after one run that does not count."""
    values: dict[str, list[float]] = {name: [] for name in arms}
    for n in range(rounds + 1):
        for name, run in arms.items():
            value = run()
            if n:
                values[name].append(value)
    return values


def steps(rounds: int) -> Iterable[Figure]:
    runners = {arm: engine_of(arm).target.runner for arm in ("eager", "compiled")}
    for size, arms in step_arms(runners):
        yield from (("step_ms", arm, size, values) for arm, values in by_turns(arms, rounds).items())


def step_arms(runners: Mapping[str, Any]) -> Iterable[tuple[str, dict[str, Callable[[], float]]]]:
    """Each size of step, and what computes one by each runner and says how many milliseconds it took."""
    from workers.kv_cache import KVSlots
    from workers.step_layout import Rows

    def forward(runner: Any, rows: list[Any], n: int) -> float:
        started = time.perf_counter()
        runner.forward(rows, range(n))
        return 1e3 * (time.perf_counter() - started)

    places = KVSlots(max(SEQUENCES), CONTEXT + max(ROWS))
    shapes = [(f"{n} sequences", [Rows(places.blocks(s), CONTEXT, [17]) for s in range(n)]) for n in SEQUENCES]
    shapes += [(f"{n} rows", [Rows(places.blocks(0), CONTEXT, [17] * n)]) for n in ROWS]
    for size, rows in shapes:
        n = sum(len(r.token_ids) for r in rows)
        yield size, {arm: partial(forward, runner, rows, n) for arm, runner in runners.items()}


def drafts(rounds: int) -> Iterable[Figure]:
    from workers.latency_profile import StepSize

    def draft(engine: Any, size: StepSize) -> float:
        return 1e3 * float(engine.rehearse(size).draft_seconds)

    for drafter in DRAFTERS:
        engines = {arm: engine_of(arm, drafter) for arm in ("eager", "compiled")}
        for k in DEPTHS:
            run = {arm: partial(draft, engine, StepSize(1, k, CONTEXT)) for arm, engine in engines.items()}
            for arm, values in by_turns(run, rounds).items():
                yield "draft_ms", arm, f"{drafter} k={k}", values


def texts(rounds: int) -> Iterable[Figure]:
    """Greedy tokens a second of one request at K = 0, prefill included."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from workers.models.resolve import resolve_model
    from workers.sequence import EngineRequest, SamplingParams

    folder = resolve_model(settings("eager").model, settings("eager").model_cache)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    library = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).train(False)
    chat = [{"role": "user", "content": PROMPT}]
    prompt: Any = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)

    def generate() -> float:
        started = time.perf_counter()
        with torch.inference_mode():
            library.generate(
                torch.tensor([prompt]), do_sample=False, max_new_tokens=TOKENS, min_new_tokens=TOKENS, pad_token_id=0
            )
        return TOKENS / (time.perf_counter() - started)

    def decode(engine: Any) -> float:
        sampling = SamplingParams(TOKENS, temperature=0.0, ignore_eos=True)
        started = time.perf_counter()
        engine.submit(EngineRequest("r", tuple(prompt), sampling, "default"))
        while engine.has_work:
            engine.step()
        return TOKENS / (time.perf_counter() - started)

    engines = {arm: engine_of(arm) for arm in ("eager", "compiled")}
    arms: dict[str, Callable[[], float]] = {"transformers": generate}
    arms |= {arm: partial(decode, engine) for arm, engine in engines.items()}
    for arm, values in by_turns(arms, rounds).items():
        yield "tokens_per_s", arm, "1 sequence", values


def starts() -> Iterable[Figure]:
    """Of a process each: eager, compiled for the first time, and compiled before."""
    cache = settings("eager").model_cache
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for entry in cache.iterdir():
            if entry.name != ".compiled":
                (folder / entry.name).symlink_to(entry)
        for arm, compile_ in (("eager", "off"), ("first start", "auto"), ("second start", "auto")):
            command = [sys.executable, "-m", "benchmarks.compiled_step", "start", compile_, str(folder)]
            said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            answer = json.loads(said.splitlines()[-1])  # behind the log
            yield from ((what, arm, "", [value]) for what, value in answer.items())


def start(compile_: str, cache: str) -> None:
    """One start, told as JSON: seconds from the interpreter's first line on, megabytes resident."""
    began = time.perf_counter()
    from workers.build import build_engine
    from workers.compiled.background import BackgroundCompiler
    from workers.latency_profile import StepSize

    own = settings("any", compile=compile_, model_cache=Path(cache), max_sequences=8)
    engine, _ = build_engine(own, parse_policy(POLICY, source="benchmark"), "benchmark")
    engine.rehearse(StepSize(1, 0, CONTEXT))
    told = {"ready_s": time.perf_counter() - began}
    ready: list[Any] = []
    background = BackgroundCompiler(engine.uncompiled, own.model_cache, lambda *part: ready.append(part))
    background.start()
    while len(ready) < len(engine.uncompiled):
        time.sleep(0.05)
    for part, graph in ready:
        engine.adopt(part, graph)
    if engine.target.runner.is_compiled:
        engine.rehearse(StepSize(1, 0, CONTEXT))
        told["compiled_s"] = time.perf_counter() - began
    kv = engine.target.runner.kv
    weights = {p.data_ptr(): p.nbytes for p in engine.target.runner._model.parameters()}
    told["resident_mb"] = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6
    told["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    told["kv_mb"] = sum(t.nbytes for t in (*kv.keys, *kv.values)) / 1e6
    told["torch_weights_mb"] = sum(weights.values()) / 1e6
    print(json.dumps(told))


def main(
    rounds: int = 9,
    part: Annotated[
        list[str] | None, typer.Option(help="steps, texts, drafts, starts; all of them where not given")
    ] = None,
) -> None:
    measured: dict[str, Callable[[], Iterable[Figure]]] = {
        "steps": partial(steps, rounds),
        "texts": partial(texts, max(3, rounds // 2)),
        "drafts": partial(drafts, 2 * rounds),
        "starts": starts,
    }
    parts = [measured[name]() for name in part or measured]
    head = {"date": datetime.now(UTC).date().isoformat(), **machine(2), "model": settings("eager").model}
    lines = []
    for figures in parts:
        for what, arm, size, values in figures:
            numbers = (min(values), median(values), max(values))
            line = dict(zip(("min", "median", "max"), (round(n, 3) for n in numbers), strict=True))
            lines.append({**head, "what": what, "arm": arm, "size": size, "runs": len(values), **line})
            print(what, arm, size, line, flush=True)
    append_lines(CSV, lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["start"]:
        start(*sys.argv[2:])
    else:
        typer.run(main)

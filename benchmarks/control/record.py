"""Records the real engine for `bench control`: what was drafted and kept step by step, and what steps take.

    OMP_WAIT_POLICY=ACTIVE GOMP_SPINCOUNT=500 python -m benchmarks.control.record --out tests/data/control

`steps-*.json`: the drafter at K = 8, chains, on the shipped prompts, in their order, greedy and seeded at T = 0.7.
`step-times.csv`: a step's seconds by sequences and K, medians over turns through all sizes from alternating ends.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import transformers
import typer

from benchmarks.decode import machine
from benchmarks.decode_figures import spread_over
from controlplane.policy import parse_policy
from controlplane.settings import load_settings
from workers.build import build_engine
from workers.compiled.background import compile_now
from workers.engine import Engine
from workers.latency_profile import StepSize, StepTime
from workers.load.mix import PROMPTS, load_prompts
from workers.plan_client import constant_plan
from workers.sequence import EngineRequest, SamplingParams

DOMAINS = ("code", "json", "contract", "fiction")
DEPTH, COHORT, CONTEXT = 8, "recorded", 1024
TIMED_SEQUENCES, TIMED_K, TIMED_CONTEXT = (1, 2, 3, 4, 6, 8, 12, 16), (0, 1, 2, 3, 4, 6, 8), 192
WARM_UP = 2
POLICY = f"""
version: 1
cohorts:
  - {{name: {COHORT}, match: {{}}, speculation: {{tuner: fixed, ladder: [0, {DEPTH}], start: 0, fallback: 0}}}}
"""


def step_code(drafted: int, accepted: int, running: int) -> str:
    """One step as three base-36 digits."""
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    return digits[drafted] + digits[accepted] + digits[running]


def record_steps(
    engine: Engine, tokenizer: Any, domain: str, requests: int, max_tokens: int, temperature: float
) -> list[str]:
    """The steps of `requests` requests of a domain, all submitted at once; a string a request.

    Steps at the end of a completion, whose draft was cut because so few tokens were left, are no part of it.
    """
    codes: dict[str, list[str]] = {}
    lengths: dict[str, int] = {}
    for i, text in enumerate(spread_over(load_prompts(domain, PROMPTS), requests)):
        messages = [{"role": "user", "content": text}]
        token_ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        sampling = SamplingParams(max_tokens, temperature=temperature, seed=i)
        name = f"{domain}-{i}"
        codes[name], lengths[name] = [], 0
        engine.submit(EngineRequest(name, tuple(token_ids), sampling, COHORT))
    while engine.has_work:
        chunks = engine.step()
        running = sum(len(chunk.steps) for chunk in chunks)
        for chunk in chunks:
            for drafted, accepted in chunk.steps:
                if max_tokens - lengths[chunk.request_id] - 1 >= DEPTH:
                    codes[chunk.request_id].append(step_code(drafted, accepted, running))
            lengths[chunk.request_id] += len(chunk.token_ids)
    return ["".join(steps) for steps in codes.values()]


def time_steps(engine: Engine, rounds: int) -> list[dict[str, Any]]:
    """A row for each size: median seconds over `rounds` turns."""
    sizes = [StepSize(n, k, TIMED_CONTEXT) for n in TIMED_SEQUENCES for k in TIMED_K]
    took: dict[StepSize, list[StepTime]] = {size: [] for size in sizes}
    for turn in range(WARM_UP + rounds):
        for size in sizes[:: -1 if turn % 2 else 1]:
            time = engine.rehearse(size)
            if time is None:
                raise RuntimeError("the engine is busy")
            if turn >= WARM_UP:
                took[size].append(time)
    return [
        {
            "sequences": size.sequences,
            "k": size.k,
            "context": size.context,
            "seconds": round(median(t.seconds for t in times), 6),
            "draft_seconds": round(median(t.draft_seconds for t in times), 7),
            "seconds_min": round(min(t.seconds for t in times), 6),
            "rounds": rounds,
        }
        for size, times in took.items()
    ]


def write_times(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def main(
    out: Annotated[Path, typer.Option(help="Folder for the files.")],
    requests: Annotated[int, typer.Option(min=1, help="Of each domain.")] = 12,
    max_tokens: Annotated[int, typer.Option(min=16, max=CONTEXT // 2, help="Of a completion.")] = 160,
    rounds: Annotated[int, typer.Option(min=1, help="Turns through all sizes.")] = 7,
    only: Annotated[str, typer.Option(help="steps, times or both.")] = "both",
    model: Annotated[str | None, typer.Option(help="Known name, local folder or hub id.")] = None,
    drafter: Annotated[str, typer.Option(help="As in the setting of that name.")] = "auto",
) -> None:
    """Record steps and step times from the real engine."""
    transformers.utils.logging.disable_progress_bar()
    settings = load_settings(
        model=model or load_settings().model, drafter=drafter, device="cpu", dtype="bfloat16",
        max_sequences=max(TIMED_SEQUENCES) if only != "steps" else 8, max_context=CONTEXT, prefix_cache=False,
        trees=False,  # a smaller K is replayed as the first tokens of what was drafted
    )  # fmt: skip
    engine, tokenizer = build_engine(settings, parse_policy(POLICY), worker="recorder")
    compile_now(engine.uncompiled, settings.model_cache, engine.adopt)
    engine.plan_client.plan = constant_plan(DEPTH, [COHORT])
    out.mkdir(parents=True, exist_ok=True)
    about = {"date": datetime.now(UTC).date().isoformat(), **machine(settings.worker_threads), "model": settings.model}
    about |= {"dtype": "bfloat16", "drafter": engine.meter.drafter}
    if only != "steps":
        write_times(out / "step-times.csv", time_steps(engine, rounds))
        (out / "step-times.json").write_text(json.dumps(about | {"context": TIMED_CONTEXT}, indent=1) + "\n")
    if only == "times":
        return
    for name, temperature in (("greedy", 0.0), ("seeded", 0.7)):
        steps = {d: record_steps(engine, tokenizer, d, requests, max_tokens, temperature) for d in DOMAINS}
        told = about | {"temperature": temperature, "max_tokens": max_tokens, "depth": DEPTH}
        told |= {"code": "three base-36 digits a step: drafted, accepted, running sequences"}
        (out / f"steps-{name}.json").write_text(json.dumps({"about": told, "steps": steps}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)

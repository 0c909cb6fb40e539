"""Let the target answer the prompts: a process for each core, each with one thread, all resumable."""

from __future__ import annotations

import multiprocessing
import os
import queue
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from controlplane.policy import parse_policy
from workers.engine import Engine
from workers.meter import Meter
from workers.model_runner import ModelRunner
from workers.plan_client import PlanClient, unplanned
from workers.proposers.none import NoProposer
from workers.target import Target
from workers.training.answers import Answer, AnswerFiles, Question, answered
from workers.training.prompts import Prompt
from workers.training.report import Report
from workers.verifier import Verifier

SLOTS = 32
"""Sequences at once in a process. On one Zen 4 core 16, 32 and 64 gave 139, 178 and 189 tokens a CPU second."""

TEMPERATURE = 0.7
PLAIN = """
version: 1
cohorts: [{name: all, match: {}, speculation: {tuner: fixed, ladder: [0], start: 0, fallback: 0}}]
"""


def sampled_seeds(seed: int, samples: int) -> tuple[int, ...]:
    """Of the sampled answers to each prompt of a run with `seed`."""
    return tuple(range(seed + 1, seed + 1 + samples))


def questions(prompts: Iterable[Prompt], tokenizer: Any, max_tokens: int, seeds: Sequence[int]) -> list[Question]:
    """Each prompt as a chat, once greedily and once at TEMPERATURE with each of the seeds, in an order that any part of
    the work represents all of it.
    """
    found = []
    for prompt in prompts:
        message = [{"role": "user", "content": prompt.text}]
        text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        token_ids = tuple(tokenizer(text, add_special_tokens=False).input_ids)
        for temperature, seed in ((0.0, 0), *((TEMPERATURE, seed) for seed in seeds)):
            found.append(Question(prompt.domain, prompt.held_out, token_ids, temperature, seed, max_tokens))
    return sorted(found, key=lambda question: question.key("order"))


def generate(
    folder: Path,
    weights: str,
    wanted: Sequence[Question],
    out: Path,
    processes: int,
    report: Report,
    until: float = float("inf"),
) -> list[Answer]:
    """The answers to `wanted`, computing those that `out` does not hold yet.

    folder: the target's. weights: their hash. until: time.monotonic() after which no new question is begun; what is
    there is then returned. Raises RuntimeError where a process failed.
    """
    report.stage("answers", len(wanted))
    files = AnswerFiles(out)
    have = files.read()
    missing = [q for q in wanted if q.key(weights) not in have]
    if missing:
        _run(folder, weights, missing, out, processes, report, until)
        have = files.read()
    return [have[key] for key in (q.key(weights) for q in wanted) if key in have]


def _run(
    folder: Path,
    weights: str,
    missing: Sequence[Question],
    out: Path,
    processes: int,
    report: Report,
    until: float,
) -> None:
    context = multiprocessing.get_context("spawn")
    news: Any = context.Queue()
    parts = [missing[i::processes] for i in range(processes)]
    workers = [
        context.Process(target=_work, args=(folder, weights, part, out, f"{os.getpid()}-{i}", news, until), daemon=True)
        for i, part in enumerate(parts)
        if part
    ]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers) or not news.empty():
        try:
            report.advance(news.get(timeout=0.5))
        except queue.Empty:
            continue
    failed = [worker.exitcode for worker in workers if worker.exitcode]
    if failed:
        raise RuntimeError(f"a process that computes answers ended with exit code {failed[0]}; run the command again")


def _work(folder: Path, weights: str, part: Sequence[Question], out: Path, name: str, news: Any, until: float) -> None:
    """One process: its questions, one after the other as slots become free."""
    torch.set_num_threads(1)
    longest = max(len(q.prompt_token_ids) + q.max_tokens for q in part)
    engine = plain_engine(folder, SLOTS, longest + 1)
    parent = multiprocessing.parent_process()
    for _ in AnswerFiles(out).append(answered(engine, part, weights, until=until), name):
        news.put(1)
        # Whoever was killed cannot stop its processes; what is stored stays.
        if parent is not None and not parent.is_alive():
            return


def plain_engine(folder: Path, slots: int, context: int) -> Engine:
    """An engine without a drafter, as serving has it: bf16, eager."""
    from transformers import AutoTokenizer

    runner = ModelRunner.load(
        folder, num_slots=slots, context=context, device=torch.device("cpu"), dtype=torch.bfloat16
    )
    return Engine(
        Target(runner),
        NoProposer(),
        Verifier(sorted(runner.eos_token_ids)),
        PlanClient(unplanned(parse_policy(PLAIN)), time.time, "training", "none@1"),
        Meter("training", 1, runner.name, "none@1", "cpu", time.time),
        AutoTokenizer.from_pretrained(folder),
        runner.eos_token_ids,
    )

"""A mix that drifts, on the real engine: K chosen by the controller beside every fixed K, in tokens per second.

    OMP_WAIT_POLICY=ACTIVE GOMP_SPINCOUNT=500 python -m benchmarks.drift --rounds 3

Phases: code at load 1 and at load 8, fiction at load 8, json at load 8 and at load 1. Every arm has an engine, an
engine loop and a plan client of its own in this process, and the adaptive ones a production Controller that ticks once
a second and keeps its state over all phases and rounds. All arms get the same seeded requests in closed loop; within a
phase they take turns of a few seconds, in rotating order, and stand still, clock and all, between their turns. Seeded
texts do not depend on K: nothing is reported where they differ.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import count, product
from pathlib import Path
from typing import Annotated, Any, NoReturn

import transformers
import typer

from benchmarks.decode import machine
from benchmarks.decode_figures import append_lines, rotated
from benchmarks.drift_arms import START_AT, Arm
from benchmarks.drift_figures import WHOLE, Turn, aims, differences, rows_of
from benchmarks.drift_policy import ADAPTIVE, LADDER, policy_of
from benchmarks.drift_trace import ONE_COHORT, TEMPERATURE, Phase, Texts, phases, requests_of
from controlplane.settings import Settings, load_settings
from workers.logs import log_to_stderr

RESULTS = Path(__file__).with_name("drift.csv")
FIXED = tuple(f"K={k}" for k in LADDER)
GOODPUT = ("adaptive",)


def build_arms(names: Sequence[str], settings: Settings, cohorts: Sequence[str]) -> list[Arm]:
    """One engine each; that of a controller which asks what a step costs has its step times measured."""
    arms = []
    for name in names:
        speculation = ADAPTIVE.get(name, ADAPTIVE["adaptive"])
        k = None if name in ADAPTIVE else int(name.removeprefix("K="))
        arms.append(Arm(name, settings, policy_of(cohorts, speculation), k))
    for arm in arms:
        if arm.name in GOODPUT:
            arm.measure_profile()
    return arms


def measure(arms: Sequence[Arm], trace: Sequence[Phase], texts: Texts, rounds: int, **how: Any) -> list[Turn]:
    """Every arm through every phase of every round, by turns. how: turn_s, max_tokens, one_cohort, settle."""
    turns: list[Turn] = []
    order = count()
    # Uncounted: the first steps of an engine allocate and warm up.
    for arm in arms:
        arm.begin(_requests(0, Phase("code", 1, 1), -1, texts, 16, how["one_cohort"]), 1)
        while not arm.turn(how["turn_s"]):
            pass
        arm.phase_run()
    try:
        for round, at in product(range(-how["settle"], rounds), range(len(trace))):
            run = _through(arms, at, trace[at], round, texts, order, **how)
            turns += run if round >= 0 else []
    except KeyboardInterrupt:
        whole = len(turns) // (len(arms) * len(trace)) * len(arms) * len(trace)
        if not whole:
            raise
        print(f"interrupted: {whole // (len(arms) * len(trace))} whole rounds are reported", file=sys.stderr)
        turns = turns[:whole]
    return turns


def _through(
    arms: Sequence[Arm], at: int, phase: Phase, round: int, texts: Texts, order: Iterator[int], **how: Any
) -> list[Turn]:
    """All arms through one phase."""
    by_name = {arm.name: arm for arm in arms}
    for arm in arms:
        arm.begin(_requests(at, phase, round, texts, how["max_tokens"], how["one_cohort"]), phase.load)
    waiting = list(by_name)
    while waiting:
        waiting = [name for name in rotated(waiting, next(order)) if not by_name[name].turn(how["turn_s"])]
    turns = [Turn(arm.name, at, phase.name, round, arm.phase_run()) for arm in arms]
    said = "  ".join(f"{turn.arm} {_speed(turn):.1f}" for turn in turns)
    print(f"round {round}, {phase.name}: {said} tokens/s", file=sys.stderr, flush=True)
    return turns


def _requests(at: int, phase: Phase, round: int, texts: Texts, max_tokens: int, one_cohort: bool) -> list[Any]:
    cohort = ONE_COHORT if one_cohort else phase.domain
    return requests_of(at, phase, round, texts.prompts[phase.domain], max_tokens, cohort)


def _speed(turn: Turn) -> float:
    return sum(len(t) for t in turn.run.tokens.values()) / turn.run.seconds


def timeline(arm: Arm) -> list[dict[str, Any]]:
    """What an adaptive arm did: planned K by window of a second, and its decisions, by seconds of its own clock."""
    out: list[dict[str, Any]] = [
        {"s": round(s, 1), "mean_k": round(sum(k * n for k, n in by_k.items()) / sum(by_k.values()), 2)}
        for s, by_k in arm.windows
    ]
    out += [
        {"s": round(d.at - START_AT, 1), "cohort": d.cohort, "load_bucket": d.load_bucket,
         "old_k": d.old_k, "new_k": d.new_k, "reason": d.reason.value, "why": d.sentence}
        for d in arm.journal.decisions
        if d.old_k != d.new_k
    ]  # fmt: skip
    return sorted(out, key=lambda each: each["s"])


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Times that the whole trace is run.")] = 3,
    settle: Annotated[int, typer.Option(min=0, help="Rounds before, not counted: a controller that just began.")] = 0,
    load: Annotated[int, typer.Option(min=2, max=64, help="The high load.")] = 8,
    scale: Annotated[float, typer.Option(min=0.01, help="Of the number of requests of each phase.")] = 1.0,
    max_tokens: Annotated[int, typer.Option(min=8, max=512, help="Tokens per completion, at most.")] = 160,
    turn_s: Annotated[float, typer.Option(min=0.2, help="Seconds of an arm's turn.")] = 3.0,
    profile_s: Annotated[float, typer.Option(min=0, help="Seconds of step timing at the start.")] = 20.0,
    arms: Annotated[str, typer.Option(help="Which, with commas.")] = ",".join((*FIXED, *ADAPTIVE)),
    one_cohort: Annotated[bool, typer.Option(help="The controller is not told which text a request is.")] = False,
    model: Annotated[str | None, typer.Option(help="Known name, local folder or hub id.")] = None,
    drafter: Annotated[str, typer.Option(help="As in the setting of that name.")] = "auto",
    csv: Annotated[Path, typer.Option(help="Rows are appended here.")] = RESULTS,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Tokens per second of adaptive K beside every fixed K, by phase of a mix that drifts."""
    transformers.utils.logging.disable_progress_bar()
    log_to_stderr()
    names = arms.split(",")
    if unknown := [name for name in names if name not in (*FIXED, *ADAPTIVE)]:
        _stop(f"--arms: {unknown[0]!r} is none of {', '.join((*FIXED, *ADAPTIVE))}", 2)
    if not set(names) & set(FIXED):
        _stop(f"--arms: name at least one fixed K to compare with: {', '.join(FIXED)}", 2)
    settings = load_settings(
        model=model or load_settings().model, drafter=drafter, device="cpu", dtype="bfloat16",
        max_sequences=load, max_context=1024, profile_s=profile_s, prefix_cache=False,
    )  # fmt: skip
    cohorts = [ONE_COHORT] if one_cohort else list(TEMPERATURE)
    built = build_arms(names, settings, cohorts)
    trace = phases(load, scale)
    try:
        texts = Texts.load(built[0].tokenizer)
        turns = measure(
            built, trace, texts, rounds, turn_s=turn_s, max_tokens=max_tokens, one_cohort=one_cohort, settle=settle
        )
    finally:
        for arm in built:
            arm.stop()
    if unequal := differences(turns):
        _stop("\n".join([*unequal[:20], f"{len(unequal)} texts depend on K: no figures are reported"]))
    fixed = [name for name in names if name in FIXED]
    rows = rows_of(turns, fixed)
    conditions = {
        "date": datetime.now(UTC).date().isoformat(), **machine(settings.worker_threads), "model": settings.model,
        "dtype": settings.dtype, "drafter": built[0].engine.meter.drafter, "cohorts": len(cohorts),
        "max_tokens": max_tokens, "profile_s": profile_s, "settle": settle,
        "load_average": round(os.getloadavg()[1], 1),
    }  # fmt: skip
    append_lines(csv, [conditions | row for row in rows])
    adaptive = [arm for arm in built if arm.controller is not None]
    reached = {arm.name: aims(rows, arm.name) for arm in adaptive}
    if as_json:
        lines = {arm.name: timeline(arm) for arm in adaptive}
        profile = [
            {"sequences": c.sequences, "k": c.k, "context": c.context, "ms": round(1e3 * c.seconds, 2)}
            for arm in adaptive[:1]
            if arm.engine.profile is not None
            for c in arm.engine.profile.cells
        ]
        typer.echo(
            json.dumps({"machine": conditions, "rows": rows, "aims": reached, "profile": profile, "timeline": lines})
        )
        return
    for row in rows:
        mark = "  <- best fixed" if row["arm"] == row["best_fixed"] else ""
        print(
            f"{row['phase']:>18}  {row['arm']:>9}  {row['tokens_per_s']:6.1f} tokens/s"
            f"  of best fixed {row['ratio_to_best_fixed']:.3f} ({row['ratio_min']:.3f}-{row['ratio_max']:.3f})"
            f"  mean K {row['mean_k']}{mark}"
        )
    for name, aim in reached.items():
        print(f"{name}: {aim['worst_phase_ratio']:.3f} in {aim['worst_phase']}, {WHOLE} {aim['whole_trace_ratio']:.3f}")


def _stop(message: str, code: int = 1) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(code)


if __name__ == "__main__":
    typer.run(main)

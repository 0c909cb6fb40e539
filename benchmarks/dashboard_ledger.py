"""A ledger of a year for the dashboard's benchmark: 200 cohorts in the rollups, and the last day of them in windows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa

from benchmarks.ledger_report import SKUS, TENANTS, fill
from controlplane.finops.attribution import split
from controlplane.finops.savings import LENGTH_BOUNDS
from controlplane.store.engine import open_database, writing
from controlplane.store.experiment_models import ExperimentEntry, ExperimentWindow
from controlplane.store.migrate import upgrade
from controlplane.store.models import DecisionEntry, PlanEntry, Window, WindowCohort
from controlplane.store.rollup import IDLE, Amounts, Part, add_to_rollups
from controlplane.telemetry import LATENCY_BOUNDS_S, LOAD_BUCKETS

DAY_S = 86_400
NS = 10**9
WINDOW_S = 10
AT_ONCE = 8
"""Cohorts that a window has."""

PROFILE = [[n, k, 0, 0.01 + 0.0006 * n + 0.001 * k, 0.0] for n in (1, 2, 4, 8, 16, 32) for k in (0, 1, 2, 4, 6)]
PROFILE_EVERY = 6
"""Windows: a worker tells its step times every minute."""

DECISION_S = 60
PAIRS = 200
PAIR_WINDOW_S = 60
"""Of an experiment that was finished some minutes ago: its pairs, and seconds of each of their two windows."""

PRICES = """version: 1
prices:
{lines}"""


class BenchLedger(NamedTuple):
    """rows: of cost_hour, windows of the last day or two."""

    url: str
    prices: Path
    rows: int
    windows: int


def build(folder: Path, *, days: int, cohorts: int, every: int, now: float, window_s: int = WINDOW_S) -> BenchLedger:
    """Migrates and fills a SQLite ledger in `folder` that ends at `now` (unix seconds).

    Rollups of `days` days up to yesterday; since then windows of `window_s` with the rollups that they make.
    every: of how many hours a cohort works in one.
    """
    url = f"sqlite:///{folder / 'kadence.db'}"
    upgrade(url)
    engine = open_database(url)
    yesterday = int(now // DAY_S - 1) * DAY_S
    fill(engine, days * 24, cohorts, yesterday // 3600 - days * 24, every)
    windows = 0
    for batch in _batches(yesterday, now, cohorts, window_s):
        with writing(engine).begin() as connection:
            connection.execute(sa.insert(Window), [row for row, _, _ in batch])
            connection.execute(sa.insert(WindowCohort), [each for _, found, _ in batch for each in found])
            bill: list[tuple[Any, list[Part]]] = [(Window(**row), parts) for row, _, parts in batch]
            add_to_rollups(connection, bill)
        windows += len(batch)
    _decide(engine, yesterday, now, cohorts)
    _try_out(engine, now)
    with engine.connect() as connection:
        rows = connection.scalar(sa.text("SELECT COUNT(*) FROM cost_hour")) or 0
    engine.dispose()
    prices = folder / "prices.yaml"
    today = datetime.fromtimestamp(now, UTC).date().isoformat()
    lines = "".join(
        f'  - {{sku: {sku}, basis: {basis}, currency: USD, per_hour: "{amount}", source: benchmark, as_of: {today}, '
        f"effective_from: 2020-01-01}}\n"
        for sku, amounts in zip(SKUS, (("2.95", "1.90"), ("0.80", "0.45")), strict=True)
        for basis, amount in zip(("on_demand", "reserved"), amounts, strict=True)
    )
    prices.write_text(PRICES.format(lines=lines))
    return BenchLedger(url, prices, rows, windows)


def _batches(
    start: float, end: float, cohorts: int, window_s: int
) -> Iterator[list[tuple[dict[str, Any], list[dict[str, Any]], list[Part]]]]:
    draw = random.Random(7)
    batch = []
    for sequence in range(int((end - start) // window_s)):
        for worker, sku in enumerate(SKUS):
            batch.append(_window(draw, worker, sku, sequence, start + sequence * window_s, cohorts, window_s))
        if len(batch) >= 720:
            yield batch
            batch = []
    if batch:
        yield batch


def _window(
    draw: random.Random, worker: int, sku: str, sequence: int, at: float, cohorts: int, window_s: int
) -> tuple[dict[str, Any], list[dict[str, Any]], list[Part]]:
    """One window with AT_ONCE cohorts, its rows and what it adds to the bill."""
    here = sorted(draw.sample(range(worker, cohorts, len(SKUS)), min(AT_ONCE, cohorts // len(SKUS))))
    ns = split(8 * NS, [draw.randint(1, 9) for _ in here])
    idle_ns = (window_s - 8) * NS
    key = {"worker": f"w{worker}", "epoch": 1, "sequence": sequence}
    window = {
        **key, "model": f"model-{worker}", "drafter": "ngram", "device": sku, "hour": int(at // 3600), "started_at": at,
        "ended_at": at + window_s, "seconds_ns": window_s * NS, "busy_ns": 8 * NS, "idle_ns": idle_ns,
        "energy_uj": sum(each // 10_000 for each in ns) + 20_000, "idle_uj": 20_000, "energy_source": "counter",
        "plan_version": 1, "plan_expired": False, "plan_age_s": 0.5, "running": 4, "waiting": 0, "kv_used": 10,
        "kv_total": 100, "latency": [[4, 20, 300, 4.8, 0, 0.3]],
        "profile": PROFILE if sequence % PROFILE_EVERY == 0 else [], "tick_at": at + window_s, "busy_s": 8.0,
    }  # fmt: skip
    found, parts = [], [Part("", None, IDLE, Amounts(idle_ns, uj=20_000, wasted_uj=0))]
    for number, busy in zip(here, ns, strict=True):
        name, tenant = f"cohort-{number:03}", f"tenant-{number % TENANTS:02}"
        spec = draw.randint(20, 60)
        accepted = draw.randint(0, 4 * spec)
        emitted, uj, prefill = spec + accepted, busy // 10_000, busy // 10
        asked = Amounts(prefill, 0, uj // 10, 0, 120, 120)
        given = Amounts(
            busy - prefill,
            busy // 20,
            uj - uj // 10,
            uj // 20,
            emitted,
            emitted,
            spec,
            4 * spec,
            4 * spec,
            accepted,
            1,
            spec,
        )
        parts += [Part(name, tenant, "input", asked), Part(name, tenant, "output", given)]
        found.append(
            {
                **key, "cohort": name, "attributed_ns": busy, "wasted_ns": busy // 20, "attributed_uj": uj,
                "wasted_uj": uj // 20, "input_ns": prefill, "input_uj": uj // 10, "input_tokens": 120,
                "prefill_positions": 120, "verify_positions": 5 * spec, "draft_positions": 0, "first_tokens": 1,
                "emitted_tokens": emitted, "spec_steps": spec, "plain_steps": 0, "draft_tokens": 4 * spec,
                "accepted_tokens": accepted, "planned_k_steps": 4 * spec, "step_seconds": busy / NS,
                "requests_started": 1, "requests_finished": 1, "requests_failed": 0,
                "cells": [[2, 4, [[spec, accepted // 4, 0, spec]] * 4, busy / NS, [], []]],
                "ttft": {"counts": [], "sum_s": 0.0}, "tpot": {"counts": [], "sum_s": 0.0},
                "uses": [[tenant, "input", *asked], [tenant, "output", *given]],
            }
        )  # fmt: skip
    return window, found, parts


def _try_out(engine: sa.Engine, end: float) -> None:
    """A finished experiment that saves about 20 % of the busy time."""
    draw = random.Random(13)
    name, start = "exp-1", end - 2 * PAIRS * PAIR_WINDOW_S - 600
    entry = {
        "experiment": name, "unit": "window", "holdout": 0.5, "window_s": float(PAIR_WINDOW_S), "burn_in_s": 10.0,
        "pairs": PAIRS, "seed": 7, "started_at": start, "ended_at": end - 300, "started_by": "benchmark",
        "why": "is it worth it", "state": "finished", "sentence": f"all {PAIRS} pairs are complete",
    }  # fmt: skip
    rows = []
    for pair in range(PAIRS):
        for n, arm in enumerate(("treatment", "control") if pair % 2 else ("control", "treatment")):
            at = start + (2 * pair + n) * PAIR_WINDOW_S
            busy_ns = round(40 * NS * draw.lognormvariate(0, 0.05) * (0.8 if arm == "treatment" else 1.0))
            bounds = (LENGTH_BOUNDS, LATENCY_BOUNDS_S, LATENCY_BOUNDS_S)
            lengths, ttft, tpot = ([0] * (len(each) + 1) for each in bounds)
            lengths[7], ttft[5], tpot[4] = 60, 60, 60
            rows.append(
                {
                    "experiment": name, "pair": pair, "arm": arm, "started_at": at, "burn_in_end": at + 10,
                    "ended_at": at + PAIR_WINDOW_S, "policy_revision": "0123456789ab", "state": "done", "reason": "",
                    "windows": 2 * PAIR_WINDOW_S // WINDOW_S, "seconds_ns": 2 * PAIR_WINDOW_S * NS, "busy_ns": busy_ns,
                    "machine_ns": dict.fromkeys(SKUS, PAIR_WINDOW_S * NS), "tokens": 10_000,
                    "energy_uj": busy_ns // 10_000, "measured_tokens": 10_000, "energy_sources": ["counter"],
                    "early_busy_ns": busy_ns // 2, "early_tokens": 5_000,
                    "draft_tokens": 8_000 if arm == "treatment" else 0, "requests": 60, "failed": 0,
                    "prompt_tokens": 7_200, "completion_tokens": 10_000, "lengths": lengths,
                    "ttft": {"counts": ttft, "sum_s": 10.0}, "tpot": {"counts": tpot, "sum_s": 1.0},
                    "filled_at": at + PAIR_WINDOW_S,
                }
            )  # fmt: skip
    with writing(engine).begin() as connection:
        connection.execute(sa.insert(ExperimentEntry), [entry])
        connection.execute(sa.insert(ExperimentWindow), rows)


def _decide(engine: sa.Engine, start: float, end: float, cohorts: int) -> None:
    """A decision a minute, and the plan that they led to."""
    draw = random.Random(11)
    rows = []
    for n in range(int((end - start) // DECISION_S)):
        cohort, old = f"cohort-{draw.randrange(cohorts):03}", draw.randint(1, 4)
        sentence = f"{cohort} {old} -> {old + 1} at load 2: position {old} accepted 83 % (floor 50 %), 100 samples"
        rows.append(
            {
                "at": start + n * DECISION_S, "cohort": cohort, "load_bucket": 1, "old_k": old, "new_k": old + 1,
                "reason": "step_up", "sentence": sentence, "samples": 100, "accept_at": [0.9, 0.8], "plan_version": 1,
                "policy_revision": "0123456789ab",
            }
        )  # fmt: skip
    names = [f"cohort-{n:03}" for n in range(cohorts)]
    plan = {
        "version": 1, "epoch": 1, "issued_at": end - 60, "expires_at": end + 3600,
        "k": {name: [4] * len(LOAD_BUCKETS) for name in names}, "fallback": dict.fromkeys(names, 2),
        "policy_revision": "0123456789ab", "kill_switch": "off",
    }  # fmt: skip
    with writing(engine).begin() as connection:
        connection.execute(sa.insert(DecisionEntry), rows)
        connection.execute(sa.insert(PlanEntry), [plan])

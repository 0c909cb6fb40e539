"""Anything at all thrown at the real controller and a real worker's plan client: what must hold holds.

Policies of every tuner, objective and kind of slots; windows that are odd, late, early, doubled, of unknown cohorts, of
other drafters and devices; step times of nothing and of hours; profiles with holes; clocks that jump; kill switches,
other policies, trials of policies, alerts and restarts in between. Every array of a state is made read-only as soon as
it is returned.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from itertools import count
from math import inf, isfinite, nan
from typing import Any

import numpy as np
import pytest

from controlplane.alerts import CanaryCheck
from controlplane.controller import Controller
from controlplane.decision.decide import Decision, Rates
from controlplane.decision.plan import Plan
from controlplane.policy import Policy, parse_policy
from controlplane.replay import KeptDecisions
from controlplane.rollout import RolloutError, StageOrder
from controlplane.step_columns import StepColumns
from controlplane.telemetry import (
    LATENCY_BOUNDS_S,
    LOAD_BUCKETS,
    MAX_K,
    PRICE_LOADS,
    CohortWindow,
    LatencyCell,
    LatencyHistogram,
    ProfileCell,
    RankCount,
    Report,
    StepCell,
    StepCount,
    WindowId,
    WorkerWindow,
    load_bucket,
)
from workers.plan_client import PlanClient, unplanned

LADDERS = ([0], [4], [0, 16], [2, 3], [0, 1, 2, 4], [0, 2, 4, 6, 8], list(range(MAX_K + 1)), [1, 8, 16])
NAMES = ("code", "chat", "json", "default")
SECONDS = (0.0, 1e-9, 1e-3, 0.02, 0.02, 0.5, 30.0, 1e6)

Order = Callable[[Controller], Any]


def some_policy(rng: random.Random) -> Policy:
    lines = ["version: 1", "cohorts:"]
    names = sorted(rng.sample(NAMES[:3], rng.randint(0, 3)))
    for name in [*names, "default"]:
        ladder = rng.choice(LADDERS)
        start, fallback = rng.choice(ladder), rng.choice(ladder)
        speculation = f"tuner: {{}}, ladder: {ladder}, start: {start}, fallback: {fallback}"
        tuner = rng.choice(("fixed", "threshold", "goodput", "goodput", "goodput"))
        speculation = speculation.format(tuner)
        if tuner == "threshold":
            speculation += f", acceptance_floor: {rng.choice((1, 30, 50, 99))}%"
        if tuner == "goodput":
            speculation += f", slots: {rng.choice(('uniform', 'ragged'))}"
            speculation += f", objective: {rng.choice(('throughput', 'latency', 'cost', 'energy'))}"
        slo = (
            f"slo: {{tpot_p95: {rng.choice((1, 30, 2000))}ms}}"
            if rng.random() < 0.5 or "latency" in speculation
            else ""
        )
        guard = f"guard: {{tolerance: {rng.choice((0, 2, 20))}%, hold: {rng.choice((1, 10))}s, "
        guard += f"min_samples: {rng.choice((1, 20, 50))}, probe_every: {rng.choice((20, 60))}s}}"
        match = "{}" if name == "default" else f"{{api_key: [{name}]}}"
        lines.append(f"  - {{name: {name}, match: {match}, speculation: {{{speculation}}}, {guard}")
        lines[-1] += f", {slo}}}" if slo else "}"
    return parse_policy("\n".join(lines) + "\n")


class Hostile:
    """Windows of three workers, as few of them sensible as a broken machine would send.

    is_calm: as a sound machine with odd traffic would, so that probes, raises and the like come to an end, too.
    """

    def __init__(self, rng: random.Random, *, is_calm: bool) -> None:
        self.rng, self.is_calm = rng, is_calm
        self.sequence = count(1)
        self.accept = 0.8

    def some_s(self) -> float:
        return self.rng.uniform(0.01, 0.03) if self.is_calm else self.rng.choice(SECONDS)

    def counts(self, k: int) -> tuple[StepCount, ...]:
        rng, tally = self.rng, dict[tuple[int, int, bool], int]()
        for _ in range(rng.choice((0, 1, 3, 6))):
            drafted = rng.choice((k, k, k, 0, min(k + 3, 20), max(k - 1, 0)))
            accepted = next((j for j in range(drafted) if rng.random() > self.accept), drafted)
            key = drafted, accepted, accepted > 0 and rng.random() < 0.1
            tally[key] = tally.get(key, 0) + rng.choice((1, 5, 40) if self.is_calm else (1, 40, 10**6))
        return tuple(StepCount(*key, n) for key, n in sorted(tally.items()))

    def cell(self, k: int, bucket: int | None = None) -> StepCell:
        rng = self.rng
        overlap = tuple(rng.random() for _ in range(rng.choice((0, 0, k, 20))))
        steps = tuple(rng.choice((1, 2)) for _ in overlap)
        chances = tuple(rng.choice((0.0, 0.001, 0.5, 1.0)) for _ in range(rng.choice((0, 0, 0, k, 18))))
        return StepCell(
            rng.randrange(len(LOAD_BUCKETS)) if bucket is None else bucket, k, self.counts(k), self.some_s(),
            overlap, steps, chances,
        )  # fmt: skip

    def cohort(self, name: str, plan: Plan) -> CohortWindow:
        rng = self.rng
        planned = plan.k.get(name, (0,) * len(LOAD_BUCKETS))
        if self.is_calm:
            cells = tuple(self.cell(planned[b], b) for b in rng.sample((0, 0, 1, 2), 2))
            return CohortWindow(name, cells, tpot=LatencyHistogram().observe(0.03))
        cells = tuple(self.cell(rng.choice((*planned, rng.choice(planned), rng.randint(0, 20)))) for _ in range(2))
        bins = [rng.choice((0, 0, 0, 3)) for _ in range(len(LATENCY_BOUNDS_S) + 1)]
        tpot = LatencyHistogram(tuple(bins), rng.choice((0.0, 0.03, 1e6)))
        shadow = (self.cell(rng.randint(1, MAX_K)),) if rng.random() < 0.1 else ()
        if rng.random() < 0.1:
            ranks = (RankCount(rng.randint(0, 20), rng.randint(0, 20), 9, 4),)
            tree = tuple(rng.randint(-1, node - 1) for node in range(rng.randint(1, MAX_K)))
            cells = (*cells, replace(self.cell(rng.randint(0, 20)), tree=tree, ranks=ranks))
        return CohortWindow(name, cells[: rng.randint(0, 3)], tpot=tpot, shadow=shadow)

    def profile(self) -> tuple[ProfileCell, ...]:
        rng = self.rng
        loads, ks = rng.sample((1, 2, 4, 8, 64, 256, 300), rng.randint(1, 4)), rng.sample(range(MAX_K + 1), 3)
        return tuple(
            ProfileCell(n, k, rng.choice((64, 64, 1024)), self.some_s() * (1 + 0.1 * k), rng.choice((0, 1e-3)) * k)
            for n in loads
            for k in ks
            if rng.random() < 0.8
        )  # fmt: skip

    def window(self, plan: Plan, now: float) -> WorkerWindow:
        rng = self.rng
        started = now - (1.0 if self.is_calm else rng.choice((1.0, 1.0, 1.1, 7200.0, -3600.0)))
        cohorts = tuple(self.cohort(name, plan) for name in rng.sample((*NAMES, "gone"), rng.randint(0, 4)))
        seconds = rng.choice((0.0, 1.0, 1.0))
        energy = rng.choice((None, 0, 30_000_000))
        latency = tuple(
            LatencyCell(rng.choice((0, 1, 3, 64, 999)), rng.choice((0, 1, 4, 400)), rng.choice((0, 1, 30)),
                        self.some_s(), rng.choice((0, 500, 10**7)), 0.0)
            for _ in range(rng.randint(0, 3))
        )  # fmt: skip
        window = WorkerWindow(
            WindowId(f"w{rng.randint(0, 2)}", 1, next(self.sequence)), "m",
            rng.choice(("ngram@1",) * (300 if self.is_calm else 20) + ("draft@2",)), rng.choice(("cpu", "cuda")),
            started, started + seconds, rng.choice((0.0, seconds)), energy,
            "none" if energy is None else "counter", plan.version, False, 0.5, 3, 0, 0, 1, cohorts, latency,
            self.profile() if rng.random() < 0.15 else (),
        )  # fmt: skip
        return replace(window, columns=StepColumns.of(cohorts)) if rng.random() < 0.5 else window

    def spoiled(self, window: WorkerWindow) -> WorkerWindow:
        """What no window can be: refused, and nothing else happens."""
        bad = self.rng.choice((nan, inf, -1.0))
        change = self.rng.choice(
            ({"ended_at": bad}, {"busy_s": bad}, {"latency": (LatencyCell(1, 1, 1, bad),)},
             {"profile": (ProfileCell(1, 1, 1, bad, 0.0),)},
             {"cohorts": (CohortWindow("code", (StepCell(0, 1, (), bad),)),), "columns": None})
        )  # fmt: skip
        return replace(window, **change)


def orders(rng: random.Random, ticks: int, is_calm: bool, last: Callable[[], Plan]) -> Iterator[tuple[str, Any, float]]:
    """What happens, in turn: its kind, its value, and the time."""
    world, now, killed = Hostile(rng, is_calm=is_calm), 1e9, False
    jumps = () if is_calm else (0.0, 0.01, 30.0, 400.0, 86400.0, -5.0)
    seldom = 0.005 if is_calm else 0.03
    for _ in range(ticks):
        now += rng.choice((*(1.0,) * 12, *jumps))
        if rng.random() < 0.03:
            world.accept = rng.random()
        windows = [world.window(last(), now) for _ in range(rng.choice((0, 1, 3, 3)))]
        yield "windows", windows, now
        if windows and rng.random() < 0.1:
            yield "bad", world.spoiled(replace(windows[0], id=WindowId("bad", 1, next(world.sequence)))), now
        if rng.random() < seldom:
            yield "policy", some_policy(rng), now
        if rng.random() < seldom:
            order = StageOrder(0.5, rng.choice(("cohorts", "replicas")), min_windows=30, max_s=200.0)
            yield "trial", (some_policy(rng), order), now
        if rng.random() < seldom:
            yield "abort", None, now
        if rng.random() < seldom:
            wrong = rng.choice((0, 1, 4, 7))
            yield (
                "canary",
                CanaryCheck("r", "w1", "code", "ngram@1", now, "greedy", 4, 0, wrong, 9.0, 1.0, 0, 9, 0.1),
                now,
            )
        if rng.random() < 4 * seldom:
            yield "clear", None, now
        if rng.random() < (0.3 if killed else seldom):
            killed = not killed
            yield "kill", rng.choice(("zero", "fallback")) if killed else "off", now
        if rng.random() < seldom:
            yield "rates", Rates(rng.choice((None, 0.0, 1e-6, 1.0)), rng.choice((0.0, 1e-7))), now
        yield "tick", None, now
        if rng.random() < seldom:
            yield "restart", windows, now


class Run:
    """A controller, and a worker that hears each of its plans."""

    def __init__(self, policy: Policy) -> None:
        self.kept = KeptDecisions()
        self.now = 1e9
        self.controller = Controller(policy, self.kept, epoch=10**18)
        self.worker = PlanClient(unplanned(policy), lambda: self.now, "w0", "ngram@1", lambda: self.now)
        self.plans: list[Plan] = []

    def do(self, kind: str, value: Any, now: float) -> None:
        c = self.controller
        if kind in ("windows", "bad"):
            for window in value if kind == "windows" else [value]:
                c.observe(Report(window))
        elif kind == "canary":
            window = Hostile(random.Random(0), is_calm=True).window(c.plan, now)
            named = replace(window, id=WindowId("canary", 1, len(self.plans)))
            c.observe(Report(named, canary=(value,)))
        elif kind == "clear":
            for name in list(c.alerts.active):
                c.clear_alert(name, by="a", why="b", now=now)
        elif kind in ("trial", "abort"):
            with suppress(RolloutError):  # nothing differs, one is under way, or none is
                if kind == "trial":
                    c.apply_policy(value[0], by="a", why="b", now=now, rollout=value[1])
                else:
                    c.abort_rollout(by="a", why="b", now=now)
        elif kind == "policy":
            c.apply_policy(value, by="a", why="b", now=now)
        elif kind == "kill":
            c.set_kill_switch(value, by="a", why="b", now=now)
        elif kind == "rates":
            c.set_rates(value)
        elif kind == "restart":
            old = c.plan
            self.controller = Controller(c.policy, self.kept, epoch=old.epoch + 1, first_version=old.version + 1)
            self.controller.resume(old.k, value, now)
        else:
            c.tick(now)
        self.now = now
        self.plans.append(self.controller.plan)


def frozen(value: Any) -> None:
    """No array within a state may be written any more."""
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    elif is_dataclass(value):
        for each in fields(value):
            frozen(getattr(value, each.name))


def check(run: Run, loads: tuple[int, ...]) -> None:
    plan = run.controller.plan
    is_trying = plan.staged is not None and "w0" in plan.staged.workers
    rollout = run.controller.rollout
    cohorts = rollout.candidate.cohorts if is_trying and rollout else run.controller.state.table.cohorts
    for told in (plan, plan.staged):
        if told is not None:
            assert all(isfinite(price) and price >= 0 for price in told.price)
            assert len(told.price) == len(told.depth)
            assert len(told.price) in (0, len(PRICE_LOADS))
            assert len(told.charges) == len(told.price)
            assert all(isfinite(each) and each >= 0 for row in told.charges for each in row)
            assert all(0 <= chance <= 1 for by_depth in told.survival.values() for chance in by_depth)
    told = plan.staged if plan.staged is not None and is_trying else plan
    run.worker.accept(plan)
    run.worker.plan = plan  # a jumped clock may have made it refuse this one
    by_batch, names = run.worker._held.alive, [cohort.name for cohort in cohorts]
    batches = [[name] * running for name in names for running in loads]
    batches += [[names[i % len(names)] for i in range(running)] for running in loads]
    speculation = {cohort.name: cohort.speculation for cohort in cohorts}
    for name in names:
        assert set(told.k[name]) <= set(speculation[name].ladder)
    for batch in batches:
        for name, k in zip(batch, by_batch[tuple(batch)], strict=True):
            ceiling = told.k[name][load_bucket(len(batch))]
            allowed = {"off": range(ceiling + 1), "zero": (0,), "fallback": (speculation[name].fallback,)}
            assert k in ((0,) if plan.blocked_drafters else allowed[plan.kill_switch])
    for decision in run.kept.decisions:
        assert all(isfinite(chance) and 0 <= chance <= 1 for chance in decision.accept_at)
        assert "nan" not in decision.sentence
        assert "inf " not in decision.sentence


def thrown(seed: int, ticks: int, is_calm: bool) -> tuple[list[tuple[str, Any, float]], Policy, Run, list[Decision]]:
    """One run of everything, checked at every turn."""
    rng = random.Random(seed)
    policy = some_policy(rng)
    run, done, decisions = Run(policy), list[tuple[str, Any, float]](), list[Decision]()
    for order in orders(rng, ticks, is_calm, lambda: run.controller.plan):
        done.append(order)
        before = run.controller.refused
        frozen(run.controller.state)
        run.do(*order)
        if order[0] == "bad":
            assert sum(run.controller.refused.values()) == sum(before.values()) + 1
        frozen(run.controller.state)
        check(run, (1, rng.randint(2, 300)))
        decisions += run.kept.decisions
        run.kept.decisions = []
    return done, policy, run, decisions


@pytest.mark.parametrize(("seed", "ticks", "is_calm"), [(0, 40, False), (1, 40, False), (2, 40, False), (3, 120, True)])
def test_whatever_comes_every_k_is_legal_and_the_same_again(seed: int, ticks: int, is_calm: bool) -> None:
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        done, policy, run, decisions = thrown(seed, ticks, is_calm)
        again = Run(policy)
        for kind, value, now in done:
            if kind == "windows":  # in another order, and with no columns made for the controller
                value = [replace(w, columns=None) for w in reversed(value)]
            again.do(kind, value, now)
    assert decisions
    assert again.kept.decisions == decisions
    assert again.plans == run.plans

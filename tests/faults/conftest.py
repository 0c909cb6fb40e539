"""The loop of control in one process, with clocks, links and controllers that can be made to fail.

Real: Controller, PlanClient, the journal and the ledger where a test wants one. Made up: time, the link between worker
and controller, and what the worker would have counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from controlplane.controller import Controller
from controlplane.decision.decide import Decision
from controlplane.decision.plan import Plan
from controlplane.policy import Policy, parse_policy
from controlplane.telemetry import CohortWindow, Report, StepCell, StepCount, WindowId, WorkerWindow
from workers.plan_client import PlanClient, unplanned
from workers.sequence import EngineRequest, SamplingParams
from workers.sequence import Sequence as Served

LADDER = (0, 1, 2, 4)
FALLBACK = 1
START = 2
TTL_S = 10.0
POLICY = parse_policy(f"""
version: 1
cohorts:
  - {{name: json, match: {{api_key: [json]}},
     speculation: {{tuner: threshold, ladder: {list(LADDER)}, start: {START}, fallback: {FALLBACK}}}}}
  - {{name: default, match: {{}}, speculation: {{tuner: fixed, ladder: [0, 2], start: 2, fallback: 0}}}}
""")
T0 = 1_790_000_000.0


class Unreachable(Exception):
    """Nobody answers."""


class KeptJournal:
    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.decisions: list[Decision] = []

    def record(self, reports: Sequence[Report], decisions: Sequence[Decision], plan: Plan, now: float) -> None:
        self.reports += reports
        self.decisions += decisions

    def policy_applied(self, policy: Policy, by: str, why: str, now: float) -> None:
        pass

    def alert(self, *args: object) -> None:
        pass


@dataclass
class Time:
    """True seconds since the test began, and by how much each side's wall clock is wrong."""

    now: float = 0.0
    controller_off: float = 0.0
    worker_off: float = 0.0


@dataclass
class Link:
    """up: requests arrive. answers: so do the answers. delay_s: how late. controller: who answers, None = nobody."""

    controller: Controller | None
    up: bool = True
    answers: bool = True
    delay_s: float = 0.0
    late: list[tuple[float, Plan]] = field(default_factory=list)


class Worker:
    """One worker: counts a second of work, reports it until it is acknowledged, obeys what comes back."""

    def __init__(self, time: Time, link: Link, name: str = "w1") -> None:
        self.time, self.link, self.name = time, link, name
        self.client = PlanClient(
            unplanned(POLICY), lambda: T0 + time.now + time.worker_off, name, "ngram@1", monotonic=lambda: time.now
        )
        self.waiting: list[Report] = []
        self.sequence = 0
        self.used: list[int] = []
        request = EngineRequest("r", (3,), SamplingParams(8), "json")
        self._served = Served(request, [3], 0, None)  # type: ignore[arg-type]

    @property
    def k(self) -> int:
        (k,) = self.client.k_for([self._served])
        return k

    def second(self) -> None:
        """Serve for a second, and report."""
        self.time.now += 1.0
        self.used.append(self.k)
        self.waiting.append(self._report(self.used[-1]))
        for due, plan in [entry for entry in self.link.late if entry[0] <= self.time.now]:
            self.link.late.remove((due, plan))
            self.client.accept(plan)
        try:
            plan = self._send()
        except Unreachable:
            return
        self.waiting.clear()
        self.client.accept(plan)

    def _send(self) -> Plan:
        link, controller = self.link, self.link.controller
        if controller is None or not link.up:
            raise Unreachable
        for report in self.waiting:
            controller.observe(report)
        if not link.answers:
            raise Unreachable
        if link.delay_s:
            link.late.append((self.time.now + link.delay_s, controller.plan))
            raise Unreachable
        return controller.plan

    def _report(self, k: int) -> Report:
        self.sequence += 1
        counts = (StepCount(k, k, False, 60),)
        end = T0 + self.time.now + self.time.worker_off
        window = WorkerWindow(
            WindowId(self.name, 1, self.sequence), "m", "ngram@1", "cpu", end - 1.0, end, 0.9, None, "none",
            self.client.plan.version, self.client.is_expired, self.client.age_s, 1, 0, 0, 1,
            (CohortWindow("json", (StepCell(0, k, counts, 1.0),)),),
        )  # fmt: skip
        return Report(window)


class System:
    """A worker, a link and a controller; `run` lets seconds pass."""

    ladder, fallback, ttl_s, t0 = LADDER, FALLBACK, TTL_S, T0

    def __init__(self) -> None:
        self.time = Time()
        self.journal = KeptJournal()
        self.link = Link(self.start())
        self.worker = Worker(self.time, self.link)

    def start(self, **options: int) -> Controller:
        """A controller whose epoch is the time of its start, by its own clock."""
        epoch = int((T0 + self.time.now + self.time.controller_off) * 1e9)
        return Controller(POLICY, self.journal, **{"epoch": epoch, **options}, plan_ttl_s=TTL_S)

    def run(self, seconds: int) -> list[int]:
        """K in each of them."""
        before = len(self.worker.used)
        for _ in range(seconds):
            self.worker.second()
            if self.link.controller is not None:
                self.link.controller.tick(T0 + self.time.now + self.time.controller_off)
        return self.worker.used[before:]


@pytest.fixture
def system() -> System:
    """Three seconds old: the worker has a plan of its controller."""
    made = System()
    made.run(3)
    assert made.worker.client.plan.epoch
    return made

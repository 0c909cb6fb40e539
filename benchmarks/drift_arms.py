"""Arms of the drift benchmark: a real engine, loop and plan client each, and a controller where K is not fixed.

The arms share a machine by turns of a few seconds. An arm whose turn is over stands still between two steps: its
requests stay where they are, and its clock, by which it counts, reports and decides, stands still with it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.drift_figures import PhaseRun
from controlplane.controller import Controller
from controlplane.decision.decide import Decision
from controlplane.decision.plan import Plan
from controlplane.policy import Policy
from controlplane.settings import Settings
from controlplane.telemetry import Report
from workers.build import build_engine
from workers.compiled.background import compile_now
from workers.engine import Engine
from workers.engine_loop import EngineLoop
from workers.plan_client import PlanClient, constant_plan, unplanned
from workers.sequence import Chunk, EngineRequest

START_AT = 1_800_000_000.0
TICK_S = 1.0


class TurnClock:
    """Seconds that pass only while it is the arm's turn; reads as unix time from START_AT on."""

    def __init__(self) -> None:
        self._passed, self._since = 0.0, -1.0

    def __call__(self) -> float:
        return START_AT + self.seconds

    @property
    def seconds(self) -> float:
        since = self._since
        return self._passed + (time.perf_counter() - since if since >= 0 else 0.0)

    def go(self) -> None:
        self._since = time.perf_counter()

    def stand(self) -> None:
        if self._since >= 0:
            self._passed, self._since = self.seconds, -1.0


class Turnstile:
    """Lets the engine's thread through between two steps only while the arm has its turn."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_open = False
        self._is_parked = False
        self._is_for_ever = False

    def pass_through(self) -> None:
        """On the engine's thread."""
        with self._changed:
            if self._is_open:
                return
            self._is_parked = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_open)

    def open(self, for_ever: bool = False) -> None:
        with self._changed:
            self._is_open, self._is_for_ever = True, self._is_for_ever or for_ever
            self._is_parked = False
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._is_open = self._is_for_ever

    def wait_until_parked(self, timeout_s: float = 60.0) -> None:
        """Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_parked, timeout_s):
                raise TimeoutError("an engine did not come to the end of its step")


@dataclass
class MemoryJournal:
    """Keeps what was decided, with when."""

    decisions: list[Decision] = field(default_factory=list)

    def record(self, reports: Sequence[Report], decisions: Sequence[Decision], plan: Plan, now: float) -> None:
        self.decisions += decisions

    def policy_applied(self, policy: Policy, by: str, why: str, now: float) -> None: ...

    def rollout_changed(self, rollout: Any) -> None: ...

    def told(self, kind: str, value: dict[str, Any], *, epoch: int, at: float) -> None: ...

    def alert(self, alert: Any, decisions: Sequence[Decision]) -> None: ...


class Arm:
    """One way to choose K on an engine of its own. k: the fixed one; None: `policy` decides."""

    def __init__(self, name: str, settings: Settings, policy: Policy, k: int | None) -> None:
        self.name = name
        self.clock = TurnClock()
        self._is_fixed = k is not None
        self.engine, self.tokenizer = self._build(settings, policy)
        self.controller: Controller | None = None
        self.journal = MemoryJournal()
        self.windows: list[tuple[float, dict[int, int]]] = []
        if k is None:
            epoch = int(START_AT * 1e9) + sum(name.encode())
            self.controller = Controller(policy, self.journal, epoch=epoch, plan_ttl_s=10.0)
        plan = unplanned(policy) if k is None else constant_plan(k, [c.name for c in policy.cohorts])
        # Its own clock on both counts: a plan must not grow old while another arm has its turn.
        label = self.engine.meter.drafter
        padded = self.engine.target.runner.padded
        self.engine.plan_client = PlanClient(plan, self.clock, name, label, monotonic=self.clock, padded=padded)
        self._turnstile = Turnstile()
        self._loop = EngineLoop(self.engine, self._take_chunks, self._take_report, TICK_S)
        self._queue: deque[EngineRequest] = deque()
        self._open = 0
        self._chunks: list[Chunk] = []
        self._k: Counter[int] = Counter()
        self._phase_done = threading.Event()
        self._began = 0.0
        self._ticked_at = 0.0
        self._is_started = False

    def _build(self, settings: Settings, policy: Policy) -> tuple[Engine, Any]:
        engine, tokenizer = build_engine(settings, policy, worker=self.name, clock=self.clock)
        compile_now(engine.uncompiled, settings.model_cache, engine.adopt)
        if self._is_fixed:
            # A K that nobody will change needs no drafts in the shadow; they would cost K = 0 up to 1 %.
            engine._shadow = None
        return engine, tokenizer

    def measure_profile(self) -> None:
        """The worker's own step times, as a worker takes them while it is idle after its start."""
        profile = self.engine.profile
        while profile is not None and profile.advance():
            pass

    def begin(self, requests: Sequence[EngineRequest], load: int) -> None:
        """Queue a phase; it runs in the turns that follow."""
        self._queue = deque(requests)
        self._chunks, self._k = [], Counter()
        self._phase_done.clear()
        self._began = self.clock.seconds
        self._open = len(requests)
        for _ in range(min(load, len(requests))):
            self._loop.submit(self._queue.popleft())

    def turn(self, seconds: float) -> bool:
        """Run for so long, or until the phase is done; True when it is."""
        if self._phase_done.is_set():
            return True
        if not self._is_started:
            self._is_started = True
            self._loop.start()
        self.clock.go()
        self._turnstile.open()
        is_done = self._phase_done.wait(seconds)
        self._turnstile.close()
        if not is_done:
            self._turnstile.wait_until_parked()
            self.clock.stand()
        return self._phase_done.is_set()

    def phase_run(self) -> PhaseRun:
        """What came of the phase that is done. Raises RuntimeError where a request failed."""
        failed = [chunk.error or chunk.finish_reason for chunk in self._chunks if chunk.finish_reason == "error"]
        if failed:
            raise RuntimeError(f"{self.name}: {failed[0]}")
        tokens: dict[str, tuple[int, ...]] = {}
        texts: dict[str, str] = {}
        for chunk in self._chunks:
            tokens[chunk.request_id] = tokens.get(chunk.request_id, ()) + chunk.token_ids
            texts[chunk.request_id] = texts.get(chunk.request_id, "") + chunk.text
        steps = [step for chunk in self._chunks for step in chunk.steps]
        return PhaseRun(
            seconds=self.clock.seconds - self._began,
            tokens=tokens,
            texts=texts,
            k=dict(sorted(self._k.items())),
            steps=len(steps),
            spec_steps=sum(drafted > 0 for drafted, _ in steps),
            drafted=sum(drafted for drafted, _ in steps),
            accepted=sum(accepted for _, accepted in steps),
        )

    def stop(self) -> None:
        self._turnstile.open(for_ever=True)
        if self._is_started:
            self._loop.stop()

    def _take_chunks(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            self._chunks.append(chunk)
            if chunk.record is not None:
                self._open -= 1
                if self._queue:
                    self._loop.submit(self._queue.popleft())
                if not self._open:
                    self.clock.stand()
                    self._phase_done.set()
        self._turnstile.pass_through()

    def _take_report(self, report: Report) -> None:
        window = report.window
        k: Counter[int] = Counter()
        for cohort in window.cohorts:
            for cell in cohort.cells:
                k[cell.k] += sum(count.steps for count in cell.counts)
        self._k += k
        if k:
            self.windows.append((self.clock.seconds, dict(sorted(k.items()))))
        if self.controller is not None:
            # The answer to a report is the plan of the tick before it, as over the wire.
            self.engine.plan_client.accept(self.controller.observe(report))
            # The loop closes windows by the world's clock, which goes on while the arm stands: twice in a short turn.
            if self.clock() - self._ticked_at >= TICK_S:
                self._ticked_at = self.clock()
                self.controller.tick(self._ticked_at)
        self._turnstile.pass_through()

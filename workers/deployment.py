"""Kadence on Ray Serve: a Worker replica per model copy, and the Endpoint that speaks HTTP in front of them."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from transformers import AutoConfig, AutoTokenizer

from controlplane.decision.plan import Plan
from controlplane.keys.ring import KeyRing
from controlplane.policy import parse_policy
from controlplane.settings import Settings
from controlplane.store.api_keys import read_ring
from controlplane.store.engine import open_database
from controlplane.telemetry import Report
from workers.admission import Admission
from workers.api import create_app
from workers.backend import Draining, Overloaded
from workers.build import build_engine, choose_device
from workers.canary import Canary
from workers.controller_actor import send_reports
from workers.deadlines import QUEUE_WAIT, Deadlines, TimeLimits
from workers.engine_loop import EngineLoop
from workers.holdout import role_here, router_options
from workers.logs import configure_logs
from workers.model_support import context_limit
from workers.models.resolve import resolve_model
from workers.otel import phase_spans, request_telemetry
from workers.ray_backend import RayBackend
from workers.reporter import Reporter
from workers.request_ends import RequestEnds
from workers.sequence import Chunk, EngineRequest
from workers.worker_totals import MetricsSnapshot, WorkerTotals

LINGER_S = 10.0
"""That a replica is given to stop beyond the longest answer."""
HUNG_STEPS = 5
"""Times `stall_timeout_s` after which a step counts as hung, and Serve replaces the worker."""
ENDPOINTS = 1
"""Replicas of the endpoint: limits of API keys are divided by it, each replica keeping to its part."""

SERVE_LOGS = {"log_level": "WARNING", "enable_access_log": False}
"""Of Ray Serve and of each replica: a request has a line in Kadence's own log, and none of theirs beside it."""


class Worker:
    """One engine on its own thread; requests stream their chunks out of it."""

    def __init__(self, settings: Settings, policy_text: str) -> None:
        configure_logs(settings, "worker")
        policy = parse_policy(policy_text, source=str(settings.policy))
        name, settings = role_here(settings, policy)
        engine, _ = build_engine(settings, policy, worker=f"{name}{uuid.uuid4().hex[:8]}")
        self._plan_client = engine.plan_client
        engine.deadlines = Deadlines(TimeLimits(settings.queue_wait_s, settings.stall_timeout_s))
        self._overdue = engine.overdue
        self._slots = settings.max_sequences
        self._admission = Admission(settings.admission_limit)
        self._is_draining = False
        self._totals = WorkerTotals()
        self._snapshot: MetricsSnapshot | None = None
        self._streams: dict[str, asyncio.Queue[Chunk | Exception]] = {}
        self._outbox: deque[Chunk] = deque()
        self._is_delivering = False
        self._ends = RequestEnds(phase_spans(settings))
        self._event_loop = asyncio.get_event_loop()
        self._reporter = Reporter(send_reports, self._plan_client.accept)
        self._energy = engine.energy
        profile = engine.profile
        self._engine_loop = EngineLoop(
            engine,
            self._on_chunk,
            self._on_report,
            settings.tick_s,
            idle_work=None if profile is None else profile.advance,
            canary=Canary(engine, settings.canary_share),
            step_limit_s=HUNG_STEPS * settings.stall_timeout_s,
        )
        self._engine_loop.start()

    async def generate(self, request: EngineRequest) -> AsyncIterator[tuple[Chunk, ...]]:
        """The request's chunks, one a step; the last one carries finish_reason. What came since the last message goes
        into one: a reader that is slow costs fewer of them. Raises Overloaded, also for a request that was taken in and
        has to make room before it has begun; raises Draining.
        """
        if self._is_draining:
            raise Draining
        displaced = self._admission.admit(request)
        if displaced is not None:
            self._streams[displaced.request_id].put_nowait(Overloaded(self._admission.retry_after_s()))
        stream: asyncio.Queue[Chunk | Exception] = asyncio.Queue()
        self._streams[request.request_id] = stream
        finished = False
        try:
            self._ends.begin(request)
            self._engine_loop.submit(request)
            while not finished:
                chunks = await _all_of(stream)
                finished = chunks[-1].finish_reason is not None
                if chunks[-1].error == QUEUE_WAIT:
                    raise Overloaded(self._admission.retry_after_s(), "the request waited too long for its turn")
                yield chunks
        finally:
            self._admission.end(request.request_id)
            del self._streams[request.request_id]
            if not finished:
                self._engine_loop.cancel(request.request_id)

    async def snapshot(self) -> MetricsSnapshot | None:
        """Totals up to the last closed window; None before the first."""
        return self._snapshot

    async def drain(self) -> int:
        """Take nothing more in; the number of requests that are still open."""
        self._is_draining = True
        return len(self._admission)

    async def end_all(self, error: str) -> None:
        """End what is open with an error."""
        self._engine_loop.end_all(error)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What workers/autoscaling.py decides by."""
        shown = self._snapshot
        kv_share = shown.kv_used / shown.kv_total if shown is not None and shown.kv_total else 0.0
        return {"requests": float(len(self._admission)), "slots": float(self._slots), "kv_share": kv_share}

    async def accept_plan(self, plan: Plan) -> None:
        self._plan_client.accept(plan)

    def check_health(self) -> None:
        """Ray Serve replaces a replica that raises here."""
        if not self._engine_loop.is_healthy:
            raise RuntimeError("the engine's thread has ended, or all of its steps fail")

    def __del__(self) -> None:
        if hasattr(self, "_engine_loop"):
            self._engine_loop.stop()
            self._reporter.stop()
            if self._energy is not None:
                self._energy.stop()

    def _on_chunk(self, chunk: Chunk) -> None:
        # One wake-up for all chunks of a step: the flag may be late by one, which costs a wake-up and loses nothing.
        self._outbox.append(chunk)
        if not self._is_delivering:
            self._is_delivering = True
            self._event_loop.call_soon_threadsafe(self._deliver_all)

    def _deliver_all(self) -> None:
        self._is_delivering = False
        while self._outbox:
            self._deliver(self._outbox.popleft())

    def _deliver(self, chunk: Chunk) -> None:
        stream = self._streams.get(chunk.request_id)
        if stream is not None:
            stream.put_nowait(chunk)
            # From here on and not from when it is read: one that has a chunk is not turned away any more.
            self._admission.begin(chunk.request_id)
        self._ends.take(chunk)

    def _on_report(self, report: Report) -> None:
        self._reporter.put(report)
        self._snapshot = replace(
            self._totals.add(report.window, report.canary),
            plans_refused=self._plan_client.refused,
            plan_k_clamped=self._plan_client.clamped,
            reports_lost=self._reporter.lost,
            requests_cut={**self._overdue, **self._admission.refused},
            is_draining=self._is_draining,
            energy_windows_dropped={} if self._energy is None else self._energy.dropped,
        )


async def _all_of(stream: asyncio.Queue[Chunk | Exception]) -> tuple[Chunk, ...]:
    """Wait for a chunk and take all that are there. Raises an exception that was put."""
    taken = [await stream.get()]
    while not stream.empty():
        taken.append(stream.get_nowait())
    chunks = []
    for item in taken:
        if isinstance(item, Exception):
            raise item
        chunks.append(item)
    return tuple(chunks)


class Endpoint:
    """The FastAPI application's replica; it takes the Worker deployment so that Serve starts that one, too."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker


def keys_at_start(settings: Settings) -> KeyRing:
    """The API keys before the controller has said anything: an endpoint that starts without one knows at least these.

    Raises StoreError or what the database raises: `kadence up` has just upgraded it.
    """
    engine = open_database(settings.database_url)
    try:
        return read_ring(engine, time.time())
    finally:
        engine.dispose()


def scaling_options(settings: Settings) -> dict[str, Any]:
    """Options of the Worker deployment: as many replicas as set, or as workers/autoscaling.py says."""
    if not settings.max_replicas:
        return {"num_replicas": settings.replicas}
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=settings.min_replicas,
            max_replicas=settings.max_replicas,
            initial_replicas=settings.replicas,
            metrics_interval_s=2.0,
            look_back_period_s=6.0,
            policy=AutoscalingPolicy(policy_function="workers.autoscaling:decide"),
        )
    }


def build_app(settings: Settings, policy_text: str) -> Any:
    """The Serve application: Endpoint in front of `settings.replicas` Workers."""
    limit = settings.admission_limit
    environment = {
        "OMP_NUM_THREADS": str(settings.worker_threads),
        # Idle OpenMP threads sleep: spinning ones hold the core that the endpoint and Ray want, and each of the 240
        # parallel regions of a step then waits for a time slice (289 ms a step against 65, beside busy processes).
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
    }
    # A GPU to each worker, so that two of them never share one and bill it twice.
    gpus = 1 if choose_device(settings.device).type == "cuda" else 0
    worker = serve.deployment(
        name="Worker",
        **scaling_options(settings),
        # The worker refuses overload itself, with an answer a client understands; Ray must not queue before it.
        max_ongoing_requests=2 * limit + 16,
        # No answer takes longer, so that a replica that is replaced ends all of its own.
        graceful_shutdown_timeout_s=settings.request_timeout_s + LINGER_S,
        health_check_period_s=5,
        logging_config=SERVE_LOGS,
        ray_actor_options={"num_cpus": 0, "num_gpus": gpus, "runtime_env": {"env_vars": environment}},
        **router_options(settings, parse_policy(policy_text, source=str(settings.policy))),
    )(Worker)

    keys = keys_at_start(settings)

    def build_endpoint() -> Any:
        """Runs in the Endpoint's own process, when its replica starts."""
        configure_logs(settings, "endpoint")
        handle = serve.get_deployment_handle("Worker", "kadence")
        folder = resolve_model(settings.model, settings.model_cache)
        return create_app(
            RayBackend(
                handle,
                settings,
                policy_text,
                AutoTokenizer.from_pretrained(folder),
                context_limit(AutoConfig.from_pretrained(folder), settings.max_context),
                admin_key=os.environ.get("KADENCE_ADMIN_KEY") or None,
                keys=keys,
                endpoints=ENDPOINTS,
            ),
            request_telemetry(settings),
        )

    endpoint = serve.deployment(
        name="Endpoint",
        num_replicas=ENDPOINTS,
        max_ongoing_requests=4 * limit * max(settings.replicas, settings.max_replicas) + 64,
        # No answer takes longer, so that a replica that is replaced ends all of its own.
        graceful_shutdown_timeout_s=settings.request_timeout_s + LINGER_S,
        logging_config=SERVE_LOGS,
        ray_actor_options={"num_cpus": 0},
    )(serve.ingress(build_endpoint)(Endpoint))
    return endpoint.bind(worker.bind(settings, policy_text))

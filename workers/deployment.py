"""Kadence on Ray Serve: a Worker replica per model copy, and the Endpoint that speaks HTTP in front of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import ray
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
from workers.autoscaling import DOWN_AFTER_S, UP_AFTER_S
from workers.backend import Draining
from workers.build import build_engine, choose_device
from workers.canary import Canary
from workers.compiled.background import BackgroundCompiler
from workers.controller_actor import send_reports
from workers.deadlines import Deadlines, TimeLimits
from workers.engine_loop import EngineLoop
from workers.holdout import role_here, router_options
from workers.http_server import HttpServer
from workers.logs import configure_logs
from workers.model_support import context_limit
from workers.models.resolve import resolve_model
from workers.open_requests import OpenRequests
from workers.otel import phase_spans, request_telemetry
from workers.ray_backend import RayBackend
from workers.reporter import Reporter
from workers.request_ends import RequestEnds
from workers.sequence import Chunk, EngineRequest
from workers.token_inlet import TokenInlet
from workers.token_outlet import Outlets
from workers.token_wire import EndpointAddress
from workers.worker_totals import MetricsSnapshot, WorkerTotals

LINGER_S = 10.0
"""That a replica is given to stop beyond the longest answer."""
HUNG_STEPS = 5
"""Times `stall_timeout_s` after which a step counts as hung, and Serve replaces the worker."""
ENDPOINTS = 1
"""Replicas of the endpoint: limits of API keys are divided by it, each replica keeping to its part."""

SPIN_COUNT = "500"
"""Looks of an idle OpenMP thread before it sleeps, microseconds in all. A compiled plain step of SmolLM2-135M on two
cores took 28 ms with 0 of them, 22 with 250, 11.4 with 500, 10.4 with 2000; beside a process that keeps a core busy
18, 22, 26 and 50.
"""

ENDPOINT_ENVIRONMENT = {"RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0"}
"""Calls of workers leave from the event loop that HTTP is served on, without a thread between."""

SERVE_LOGS = {"log_level": "WARNING", "enable_access_log": False}
"""Of Ray Serve and of each replica: a request has a line in Kadence's own log, and none of theirs beside it."""


class Worker:
    """One engine on its own thread; its tokens go to the endpoints that asked, a message for each and step."""

    def __init__(self, settings: Settings, policy_text: str) -> None:
        configure_logs(settings, "worker")
        policy = parse_policy(policy_text, source=str(settings.policy))
        name, settings = role_here(settings, policy)
        engine, _ = build_engine(settings, policy, worker=f"{name}{uuid.uuid4().hex[:8]}")
        self._plan_client = engine.plan_client
        engine.deadlines = Deadlines(TimeLimits(settings.queue_wait_s, settings.stall_timeout_s))
        self._overdue = engine.overdue
        self._cache = engine.residency.counts
        self._slots = settings.max_sequences
        self._admission = Admission(settings.admission_limit)
        self._is_draining = False
        self._totals = WorkerTotals()
        self._snapshot: MetricsSnapshot | None = None
        self._event_loop = asyncio.get_event_loop()
        self._reporter = Reporter(send_reports, self._plan_client.accept)
        self._energy = engine.energy
        profile = engine.profile
        self._engine_loop = EngineLoop(
            engine,
            self._on_chunks,
            self._on_report,
            settings.tick_s,
            idle_work=None if profile is None else profile.advance,
            canary=Canary(engine, settings.canary_share),
            step_limit_s=HUNG_STEPS * settings.stall_timeout_s,
        )
        self._compiler = BackgroundCompiler(
            engine.uncompiled,
            settings.model_cache,
            partial(self._engine_loop.adopt, at_once=settings.compile == "at_once"),
        )
        self._runner = engine.target.runner
        self._outlets = Outlets()
        self._requests = OpenRequests(
            self._admission,
            RequestEnds(phase_spans(settings)),
            self._engine_loop.submit,
            self._engine_loop.cancel,
        )
        self._engine_loop.start()
        self._compiler.start()

    async def generate(self, request: EngineRequest, endpoint: EndpointAddress) -> None:
        """Returns when the last of the request's chunks, which has its finish_reason, is on its way to the endpoint.

        Raises Overloaded, also for a request that was taken in and has to make room before it has begun; raises
        Draining, and EndpointLost.
        """
        outlet = await self._outlets.reach(endpoint)
        if self._is_draining:
            raise Draining
        await self._requests.serve(request, outlet)

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
        if hasattr(self, "_requests"):
            self._compiler.stop()
            self._engine_loop.stop()
            with contextlib.suppress(RuntimeError):  # of an event loop that has ended before
                self._event_loop.call_soon_threadsafe(self._outlets.close)  # after the last chunks, which wait there
            self._reporter.stop()
            if self._energy is not None:
                self._energy.stop()

    def _on_chunks(self, chunks: Sequence[Chunk]) -> None:
        if not self._requests.pass_on(chunks):
            self._event_loop.call_soon_threadsafe(self._requests.deliver, chunks)

    def _on_report(self, report: Report) -> None:
        self._reporter.put(report)
        self._snapshot = replace(
            self._totals.add(report.window, report.canary),
            plans_refused=self._plan_client.refused,
            plan_k_clamped=self._plan_client.clamped,
            reports_lost=self._reporter.lost,
            requests_cut={**self._overdue, **self._admission.refused},
            prefix_cache_queries=dict(self._cache.prompt_tokens),
            prefix_cache_hits=dict(self._cache.cached_tokens),
            preemptions=dict(self._cache.preemptions),
            is_draining=self._is_draining,
            is_compiled=self._runner.is_compiled,
            energy_windows_dropped={} if self._energy is None else self._energy.dropped,
        )


class Endpoint:
    """Speaks HTTP, by a server of its own, for the workers behind `worker`, their deployment's handle.

    keys: API keys as they are now. Raises OSError where the port cannot be had.
    """

    def __init__(self, worker: Any, settings: Settings, policy_text: str, keys: KeyRing) -> None:
        configure_logs(settings, "endpoint")
        folder = resolve_model(settings.model, settings.model_cache)
        backend = RayBackend(
            worker,
            settings,
            policy_text,
            AutoTokenizer.from_pretrained(folder),
            context_limit(AutoConfig.from_pretrained(folder), settings.context),
            admin_key=os.environ.get("KADENCE_ADMIN_KEY") or None,
            keys=keys,
            endpoints=ENDPOINTS,
            inlet=TokenInlet(ray.util.get_node_ip_address()),
        )
        app = create_app(backend, request_telemetry(settings))
        self._answers_end_within_s = settings.request_timeout_s
        self._server = HttpServer(app, settings.host, settings.port)

    def check_health(self) -> None:
        """Ray Serve replaces a replica that raises here."""
        if not self._server.is_running:
            raise RuntimeError("the HTTP server has ended")

    async def __del__(self) -> None:
        if hasattr(self, "_server"):
            await self._server.stop(self._answers_end_within_s)


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
            upscale_delay_s=UP_AFTER_S,
            downscale_delay_s=DOWN_AFTER_S,
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
        # But not between two regions: to wake a sleeping core costs more than the region. "ACTIVE" is what makes the
        # number hold: else the runtime looks not once as soon as its threads, those of pools that rest included,
        # outnumber the cores, as they do beside an engine's own thread.
        "OMP_WAIT_POLICY": "ACTIVE",
        "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", SPIN_COUNT),
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

    endpoint = serve.deployment(
        name="Endpoint",
        num_replicas=ENDPOINTS,
        # No answer takes longer, so that a replica that is replaced ends all of its own.
        graceful_shutdown_timeout_s=settings.request_timeout_s + LINGER_S,
        logging_config=SERVE_LOGS,
        ray_actor_options={"num_cpus": 0, "runtime_env": {"env_vars": ENDPOINT_ENVIRONMENT}},
    )(Endpoint)
    return endpoint.bind(worker.bind(settings, policy_text), settings, policy_text, keys_at_start(settings))

"""`kadence serve` and `kadence up`: start what is asked for, keep it running in the foreground, stop it on Ctrl-C."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from rich.console import Console

from controlplane.experiment import holdout_replicas
from controlplane.finops.pricing import load_prices
from controlplane.policy import load_policy
from controlplane.ports import bind_problem
from controlplane.settings import Settings
from controlplane.store.engine import open_database
from controlplane.store.migrate import upgrade
from controlplane.store.price_book import save_prices
from workers.otel import check_otel

SUPERVISE_S = 2.0
DRAIN_LOOK_S = 0.5
ANSWER_S = 5.0
OBJECT_STORE_BYTES = 128 * 1024 * 1024
RAY_ENVIRONMENT = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray's own 15 lets everything else on the machine, even what runs at nice 19, take time from each step.
    "RAY_worker_niceness": "0",
    # What Ray does while nothing is asked of it took 110 ms of processor time a second, and 65 with these: looks at a
    # cluster of one machine ten times a second, records of every call and event that nobody reads.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    "RAY_raylet_report_resources_period_milliseconds": "1000",
    "RAY_metrics_report_interval_ms": "60000",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_event_stats": "0",
}
"""Of a cluster that is Kadence's own, where the operator's environment does not say otherwise."""
console = Console(stderr=True, highlight=False)


class ServingError(RuntimeError):
    """The endpoint cannot start; the message is one line and says what to do."""


def serve(settings: Settings) -> None:
    """The endpoint alone, until Ctrl-C or SIGTERM. Raises a one-line error for whatever would stop it."""
    _run(settings, with_dashboard=False)


def up(settings: Settings) -> None:
    """Database, endpoint and dashboard, until Ctrl-C or SIGTERM."""
    _run(settings, with_dashboard=True)


def _run(settings: Settings, with_dashboard: bool) -> None:
    policy_text, drafter = _check(settings, with_dashboard)
    from workers.key_report import MAKE_ONE, report_keys

    keys = report_keys(settings)
    stop = _Stop()
    stop.listen()
    with contextlib.ExitStack() as stack:
        started = time.monotonic()
        endpoint = stack.enter_context(_endpoint(settings, policy_text, stop))
        dashboard = stack.enter_context(_Dashboard(settings)) if with_dashboard else None
        took = time.monotonic() - started
        held = "" if settings.quantization == "none" else f", {settings.quantization} weights"
        console.print(f"[bold]endpoint[/]   {settings.url}/v1   ({settings.model}{held})")
        console.print(f"[bold]drafter[/]    {drafter}", soft_wrap=True)
        if dashboard is not None:
            console.print(f"[bold]dashboard[/]  {settings.dashboard_url}")
        make_one = "" if keys.valid else f" (make one: {MAKE_ONE})"
        console.print(f"[bold]keys[/]       {keys.said}{make_one}", soft_wrap=True)
        hint = f"ready in {took:.0f} s; try: kadence load --url {settings.url}   (Ctrl-C stops everything)"
        console.print(hint, soft_wrap=True)
        while not stop.wait(SUPERVISE_S):
            endpoint.revive()
            if dashboard is not None:
                dashboard.supervise()
        limit_s = settings.drain_s if stop.number == signal.SIGINT else settings.request_timeout_s
        endpoint.drain(limit_s)
        console.print("stopping ...")


def _check(settings: Settings, with_dashboard: bool) -> tuple[str, str]:
    """Everything that can be wrong, before anything is started; returns the policy's text and what drafts."""
    from dashboard.launch import check_can_start

    policy = load_policy(settings.policy)
    holdout_replicas(policy, settings.replicas, settings.holdout_replicas)  # raises where nothing would draft
    for warning in policy.warnings:
        console.print(f"[yellow]policy[/]     {warning}")
    check_otel(settings)
    check_port(settings.host, settings.port)
    if with_dashboard:
        check_can_start(settings)
    # Only now what takes seconds to import.
    from workers.build import check_models, choose_device, choose_dtype, used_drafter
    from workers.models.command import progress_bars
    from workers.models.resolve import resolve_model

    choose_dtype(settings.dtype, choose_device(settings.device))
    settings.home.mkdir(parents=True, exist_ok=True)
    prices = load_prices(settings.prices)
    upgrade(settings.database_url)
    save_prices(open_database(settings.database_url), prices)
    with progress_bars() as on_progress:
        choice = settings.drafter_choice
        for name in (settings.model, choice.where if choice.kind == "draft_model" else ""):
            if name:
                resolve_model(name, settings.model_cache, on_progress=on_progress)
    check_models(settings)
    return policy.text, used_drafter(settings).said


def check_port(host: str, port: int) -> None:
    """Raises ServingError when `port` is taken."""
    problem = bind_problem(host, port)
    if problem is not None:
        raise ServingError(
            f"port {port} on {host}: {problem}; stop the other program or choose another port with --port"
        )


class _Stop(threading.Event):
    """Set by Ctrl-C or SIGTERM, whose number it keeps."""

    number = 0

    def listen(self) -> None:
        """Take these signals, from now on."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.is_set():
            # The second Ctrl-C: the user does not want to wait for the drain.
            os._exit(130)
        self.number = number
        self.set()


@contextlib.contextmanager
def _endpoint(settings: Settings, policy_text: str, stop: _Stop) -> Iterator[_Endpoint]:
    """Ray, the controller, and the Serve application."""
    for name, value in RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray
    from ray import serve
    from ray.exceptions import RayError
    from ray.serve.config import ProxyLocation

    from workers.controller_actor import start_controller, stop_controller
    from workers.deployment import SERVE_LOGS, build_app

    for noisy in ("ray.serve", "ray._private.authentication"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    ray.init(
        # Never a cluster that RAY_ADDRESS or `ray start` offers: its applications are not ours to stop.
        address="local",
        num_cpus=max(2, settings.replicas),
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        log_to_driver=bool(os.environ.get("KADENCE_DEBUG")),
        logging_level=logging.WARNING,
        namespace="kadence",
    )
    # Ray's handler of SIGTERM ends the process at once, with all its streams.
    stop.listen()

    def revive() -> None:
        # Serving goes on without a controller; a try that fails is made again at the next look.
        with contextlib.suppress(RayError, ValueError):
            start_controller(settings, policy_text, is_revival=True)

    def tell_workers(method: str, *arguments: Any) -> list[Any]:
        handle = serve.get_deployment_handle("Worker", "kadence")
        return list(handle.broadcast(method, *arguments).results(timeout_s=ANSWER_S, return_exceptions=True))

    try:
        start_controller(settings, policy_text)
        # No proxy of Ray's: the endpoint has an HTTP server of its own.
        serve.start(proxy_location=ProxyLocation.Disabled, logging_config=SERVE_LOGS)
        try:
            serve.run(build_app(settings, policy_text), name="kadence", route_prefix="/")
        except RuntimeError as error:
            raise ServingError(_cause(str(error), serve.status())) from error
        yield _Endpoint(revive, lambda limit_s: drain(tell_workers, limit_s))
    finally:
        # Ray reports its own orderly ends as errors of a task; nobody should read them as ours.
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            with contextlib.suppress(Exception):
                serve.shutdown()
            stop_controller()
            ray.shutdown()


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """revive: a controller that is gone. drain: let requests end, within so many seconds."""

    revive: Callable[[], object]
    drain: Callable[[float], object]


def drain(tell_workers: Callable[..., list[Any]], limit_s: float) -> bool:
    """Have the workers take nothing more in and wait until none has a request left; whether that was so in time.

    Past `limit_s` seconds what is left is ended with an error, so that a stream ends as one that failed and not as one
    that was cut off. tell_workers: calls a method of every worker, and returns what they answered.
    """
    ends_at = time.monotonic() + limit_s
    is_told = False
    while True:
        try:
            answers = tell_workers("drain")
        except Exception:  # no worker is there any more, or none answers: there is nothing to wait for
            return False
        left = sum(answer for answer in answers if isinstance(answer, int))
        if not left:
            return True
        if time.monotonic() >= ends_at:
            break
        if not is_told:
            is_told = True
            console.print(f"waiting up to {limit_s:.0f} s for {left} request(s) to end (again to stop at once) ...")
        time.sleep(min(DRAIN_LOOK_S, max(ends_at - time.monotonic(), 0.0)))
    console.print(f"ending {left} request(s) that are not done")
    with contextlib.suppress(Exception):
        tell_workers("end_all", "the server is shutting down")
        time.sleep(DRAIN_LOOK_S)  # for the error to reach the clients
    return False


def _cause(error: str, status: Any) -> str:
    """One line on why the application did not start: the last line of the replica's traceback, where Serve has one."""
    messages = [d.message for app in status.applications.values() for d in app.deployments.values() if d.message]
    for message in (*messages, error):
        lines = [
            line.strip() for line in message.splitlines() if re.match(r"[\w.]+(Error|Model|Mismatch|Exception): ", line)
        ]
        if lines:
            return lines[-1].partition(": ")[2]
    return f"the endpoint did not start: {error.splitlines()[0]} (KADENCE_DEBUG=1 shows the workers' logs)"


class _Dashboard:
    """The dashboard's process; started again when it dies, because nothing depends on it and nobody should miss it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._log = settings.home / "dashboard.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> _Dashboard:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def supervise(self) -> None:
        if self._process is None or self._process.poll() is not None:
            with contextlib.suppress(RuntimeError, OSError):
                self._start()

    def _start(self) -> None:
        from dashboard.launch import run_dashboard

        with open(self._log, "ab") as log:
            self._process = run_dashboard(self._settings, stdout=log.fileno(), stderr=log.fileno())

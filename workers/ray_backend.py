"""The endpoint's view of Kadence on Ray: requests go to Worker replicas, policy and plan come from the controller."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import structlog
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RequestCancelledError

from controlplane.alerts import Alert, AlertState
from controlplane.budgets.desk import Ask, Refusal, Settled
from controlplane.decision.plan import KillSwitch, Plan
from controlplane.experiment import ExperimentError
from controlplane.finops.budget import BudgetStatus
from controlplane.keys.ring import KeyRing
from controlplane.policy import Policy, parse_policy
from controlplane.policy_control import PolicyStatus
from controlplane.rollout import RolloutError, StageOrder
from controlplane.settings import Settings
from controlplane.store.policies import PolicyEntry
from workers.backend import Draining, JournalCounts, Overloaded, WorkerError
from workers.budget_gate import BudgetGate
from workers.controller_actor import ANSWER_WITHIN_S, ControllerState, find_controller
from workers.logs import said_by
from workers.plan_client import unplanned
from workers.reporter import ControllerUnreachable
from workers.sequence import Chunk, EngineRequest
from workers.token_inlet import UNFINISHED, TokenInlet, TokenStream
from workers.worker_totals import MetricsSnapshot

log = structlog.get_logger(__name__)

REFRESH_S = 1.0
SNAPSHOT_WITHIN_S = 2.0
LEARN_WITHIN_S = 2.0
"""How long the first request waits for the keys: after that, those of the start of serving hold."""


class RayBackend:
    """One per Endpoint replica. Keeps the last policy and plan it saw, so that a dead controller stops nothing."""

    def __init__(
        self,
        workers: Any,
        settings: Settings,
        policy_text: str,
        tokenizer: Any,
        max_context: int,
        admin_key: str | None = None,
        keys: KeyRing | None = None,
        endpoints: int = 1,
        inlet: TokenInlet | None = None,
    ) -> None:
        """keys: as they were when serving started, until the controller says more. inlet: where tokens come in."""
        self.model_id = settings.model
        self.max_context = max_context
        self.max_prompts = settings.admission_limit
        self.tokenizer = tokenizer
        self.has_chat_template = bool(getattr(tokenizer, "chat_template", None))
        self.admin_key = admin_key
        self.keys_demanded = settings.keys_demanded
        self.endpoints = endpoints
        self.request_timeout_s = settings.request_timeout_s
        self._may_be_without_workers = settings.max_replicas > 0 and settings.min_replicas == 0
        self._keys = keys or KeyRing()
        self._has_asked = asyncio.Event()
        self._workers = workers
        self._inlet = inlet or TokenInlet()
        self._calls: set[asyncio.Task[None]] = set()  # the loop itself holds tasks weakly
        self._responses: dict[str, Any] = {}
        self._policy = parse_policy(policy_text, source=str(settings.policy))
        self._plan = unplanned(self._policy)
        self._counts = JournalCounts()
        self._heard_at: float | None = None
        self._status = PolicyStatus()
        self._refreshing: asyncio.Task[None] | None = None
        self._controller: Any = None
        self._gate = BudgetGate(self._tell_controller)

    def policy(self) -> Policy:
        self._keep_fresh()
        return self._policy

    def keys(self) -> KeyRing:
        return self._keys

    async def learn_keys(self) -> None:
        self._keep_fresh()
        if not self._has_asked.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._has_asked.wait(), LEARN_WITHIN_S)

    async def generate(self, request: EngineRequest) -> AsyncIterator[Chunk]:
        address = await self._inlet.address()
        stream = self._inlet.open(request.request_id)
        response = self._workers.generate.remote(request, address)
        self._responses[request.request_id] = response
        call = asyncio.create_task(_follow(response, stream))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        is_over = False
        try:
            while not is_over:
                chunk = await stream.get()
                is_over = chunk.finish_reason is not None
                yield chunk
        except (Overloaded, Draining):
            raise
        except RayTaskError as error:
            if isinstance(error.cause, Overloaded | Draining):
                raise error.cause from None
            log.error("worker call failed", request_id=request.request_id, reason=said_by(error.cause))
            raise WorkerError("the worker failed while serving this request; try again") from error
        except (BackPressureError, DeploymentUnavailableError) as error:
            raise Overloaded(1.0) from error
        except RequestCancelledError as error:  # its client has gone, and no worker: nothing for a log
            raise WorkerError("this request was cancelled") from error
        except RayError as error:
            log.error("worker lost", request_id=request.request_id, reason=str(error).splitlines()[0])
            raise WorkerError("the worker went away while serving this request; try again") from error
        finally:
            self._responses.pop(request.request_id, None)
            self._inlet.close(request.request_id)
            if not is_over:
                # Reached by a client that left, too: the worker then ends the sequence within a step.
                response.cancel()

    async def admit(self, ask: Ask) -> Refusal | None:
        return await self._gate.admit(self._policy, ask)

    def settle(self, settled: Settled) -> None:
        self._gate.settle(settled)

    async def budgets(self) -> list[BudgetStatus]:
        found: list[BudgetStatus] = await self._ask("budgets")
        return found

    async def cancel(self, request_id: str) -> None:
        response = self._responses.get(request_id)
        if response is not None:
            response.cancel()

    async def snapshots(self) -> list[MetricsSnapshot]:
        """What each replica counted up to its last window; replicas that do not answer in time are left out."""
        self._keep_fresh()
        with contextlib.suppress(TimeoutError, RayError, DeploymentUnavailableError):
            answers = await self._workers.broadcast("snapshot").results_async(
                timeout_s=SNAPSHOT_WITHIN_S, return_exceptions=True
            )
            return [a for a in answers if isinstance(a, MetricsSnapshot)]
        return []

    async def journal_counts(self) -> JournalCounts:
        silence_s = None if self._heard_at is None else time.monotonic() - self._heard_at
        return replace(self._counts, silence_s=silence_s)

    async def ready(self) -> bool:
        snapshots = await self.snapshots()
        if snapshots and all(snapshot.is_draining for snapshot in snapshots):
            raise Draining
        # Where workers may all be let go, a request is what starts one: a balancer must go on sending.
        return bool(snapshots) or self._may_be_without_workers

    async def plan(self) -> Plan:
        with contextlib.suppress(WorkerError):
            await self._refresh()
        return self._plan

    async def set_kill_switch(self, mode: KillSwitch, reason: str, by: str) -> None:
        await self._broadcast(await self._ask("set_kill_switch", mode, by, reason))

    async def alerts(self, state: AlertState | None) -> list[Alert]:
        found: list[Alert] = await self._ask("alerts", state)
        return found

    async def clear_alert(self, name: str, by: str, why: str) -> Alert | None:
        cleared: tuple[Alert, Plan] | None = await self._ask("clear_alert", name, by, why)
        if cleared is None:
            return None
        alert, plan = cleared
        await self._broadcast(plan)
        return alert

    async def apply_policy(self, text: str, by: str, why: str, stage: StageOrder | None = None) -> str:
        policy = parse_policy(text, source="the posted policy")
        plan: Plan = await self._ask("apply_policy", text, by, why, stage)
        if stage is None:
            self._policy = policy
        await self._broadcast(plan)
        return policy.revision

    async def abort_rollout(self, by: str, why: str) -> None:
        await self._broadcast(await self._ask("abort_rollout", by, why))

    async def experiment(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = await self._ask("experiment")
        return found

    async def start_experiment(self, asked: dict[str, Any], by: str, why: str, seed: int | None) -> dict[str, Any]:
        started: dict[str, Any] = await self._ask("start_experiment", asked, by, why, seed)
        return started

    async def stop_experiment(self, by: str, why: str) -> dict[str, Any]:
        stopped, plan = await self._ask("stop_experiment", by, why)
        await self._broadcast(plan)
        return dict(stopped)

    async def policy_status(self) -> PolicyStatus:
        with contextlib.suppress(WorkerError):
            await self._refresh()
        return self._status

    async def policy_history(self, limit: int) -> list[PolicyEntry]:
        found: list[PolicyEntry] = await self._ask("policy_history", limit)
        return found

    async def _broadcast(self, plan: Plan) -> None:
        """Tell every worker at once; one that misses it gets the plan with its next report."""
        self._plan = plan
        with contextlib.suppress(TimeoutError, RayError, DeploymentUnavailableError):
            await self._workers.broadcast("accept_plan", plan).results_async(
                timeout_s=SNAPSHOT_WITHIN_S, return_exceptions=True
            )

    async def _ask(self, method: str, *arguments: Any) -> Any:
        """Call the controller; raises WorkerError where it does not answer, and what it refuses an order with."""
        try:
            actor = await asyncio.to_thread(find_controller)
            return await asyncio.wait_for(getattr(actor, method).remote(*arguments), ANSWER_WITHIN_S)
        except (ControllerUnreachable, RayError, TimeoutError) as error:
            if isinstance(error, RayTaskError) and isinstance(error.cause, RolloutError | ExperimentError):
                raise error.cause from None
            raise WorkerError("the controller does not answer; workers use the fallback K until it is back") from error

    async def _tell_controller(self, method: str, *arguments: Any) -> Any:
        """The same on the path of a request: the handle is looked up once, and again after a call that failed."""
        if self._controller is None:
            self._controller = await asyncio.to_thread(find_controller)
        try:
            return await getattr(self._controller, method).remote(*arguments)
        except RayError:
            self._controller = None
            raise

    async def _refresh(self) -> None:
        state: ControllerState = await self._ask("state", self._keys.revision)
        self._heard_at = time.monotonic()
        if state.policy_revision != self._policy.revision:
            self._policy = parse_policy(state.policy_text, source="the policy in force")
        self._plan, self._counts, self._status = state.plan, state.counts, state.status
        self._keys = state.keys or self._keys
        self._gate.note(state.counts.budgets)

    def _keep_fresh(self) -> None:
        """Start asking the controller once a second; from the first request on, since it takes a running loop."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh_forever())

    async def _refresh_forever(self) -> None:
        while True:
            with contextlib.suppress(WorkerError):
                await self._refresh()
            self._has_asked.set()
            await self._gate.hold()
            await asyncio.sleep(REFRESH_S)


async def _follow(response: Any, stream: TokenStream) -> None:
    """Tell a stream how the call that it belongs to has ended."""
    try:
        await response
    except asyncio.CancelledError:
        stream.fail(WorkerError("this request was cancelled"))
    except Exception as error:
        stream.fail(error)
    else:
        stream.fail_late(UNFINISHED)

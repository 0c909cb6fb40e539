"""The controller as one named Ray actor: wires Controller to the database and to the reports of the workers."""

from __future__ import annotations

import asyncio
import contextlib
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import ray
import sqlalchemy as sa
import structlog
from ray.exceptions import RayError

from controlplane.alerts import Alert, AlertState
from controlplane.anomaly_watch import follow as follow_anomalies
from controlplane.budgets.desk import Answer, Ask, Settled
from controlplane.budgets.office import BudgetOffice
from controlplane.controller import Controller
from controlplane.decision.decide import Rates
from controlplane.decision.plan import KillSwitch, Plan
from controlplane.experiment_office import keep_filled, take_up
from controlplane.finops.budget import BudgetStatus
from controlplane.finops.pricing import PriceSheet
from controlplane.finops.pricing.current import machine_prices
from controlplane.key_watch import KeyWatch
from controlplane.keys.ring import KeyRing
from controlplane.policy import Policy, parse_policy
from controlplane.policy_control import PolicyControl, PolicyStatus
from controlplane.policy_watch import FILE, PolicyWatch
from controlplane.price_watch import PriceWatch
from controlplane.price_watch import follow as follow_prices
from controlplane.retention import follow as follow_retention
from controlplane.rollout import StageOrder
from controlplane.settings import Settings
from controlplane.store.alerts import alert_log
from controlplane.store.engine import open_database
from controlplane.store.journal import SqlJournal
from controlplane.store.policies import PolicyEntry, close_rollouts, last_of_file, policy_history
from controlplane.store.queries import last_plan_epoch, last_plan_version, latest_plan, policy_log
from controlplane.store.recorded import last_windows
from controlplane.telemetry import Report, WorkerWindow
from workers.backend import JournalCounts
from workers.logs import configure_logs
from workers.reporter import ControllerUnreachable

log = structlog.get_logger(__name__)

NAME = "kadence-controller"
NAMESPACE = "kadence"
ANSWER_WITHIN_S = 5.0
LOOK_FOR_OTHERS_S = 5.0
REMEMBERED_S = 600.0
REMEMBERED_WINDOWS = 2000
"""How much of the journal a restarted controller takes in again: older evidence has faded, and more takes too long."""
CLOSE_WITHIN_S = 15.0  # longer than the journal takes to give up on a locked database


@dataclass(frozen=True, slots=True)
class ControllerState:
    """What an ingress asks for once a second: the policy in force, the plan, what was journalled, and the API keys.

    keys: None where it has them already or nobody could read them.
    """

    policy_text: str
    policy_revision: str
    plan: Plan
    counts: JournalCounts
    status: PolicyStatus
    keys: KeyRing | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """What a controller begins with; k, windows: the last plan's K, and what was seen before it, where it goes on."""

    policy_text: str
    last_version: int
    kill_switch: KillSwitch = "off"
    why: str = "start"
    last_epoch: int = 0
    file_revision: str | None = None
    alerts: tuple[Alert, ...] = ()
    k: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    windows: Sequence[WorkerWindow] = ()


def read_start(engine: sa.Engine, policy_text: str, restarted: bool) -> Start:
    """Begin with the policy file; a controller that died and came back goes on as the journal says it was.

    An operator's kill switch, or a policy applied over HTTP, must not vanish with a process. An alert lasts until it is
    cleared, whatever starts or ends.
    """
    alerts = tuple(alert_log(engine, "active"))
    close_rollouts(engine, "aborted: the controller that tried it ended", time.time())
    version, epoch = last_plan_version(engine), last_plan_epoch(engine)
    plan, applied = latest_plan(engine), policy_log(engine, limit=1)
    if not restarted or plan is None or not applied:
        return Start(policy_text, version, last_epoch=epoch, alerts=alerts)
    kill_switch = cast("KillSwitch", plan.kill_switch)
    why = "restart of the controller"
    windows = last_windows(engine, REMEMBERED_S, REMEMBERED_WINDOWS)
    file_revision = last_of_file(engine, FILE)
    return Start(applied[0].text, version, kill_switch, why, epoch, file_revision, alerts, plan.k, windows)


def _was_restarted() -> bool:
    """Whether Ray started this actor anew after its process died."""
    with warnings.catch_warnings():
        # Ray's own property calls an accessor that Ray deprecates.
        warnings.simplefilter("ignore", DeprecationWarning)
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)


class SteppedDown(RuntimeError):
    """A later controller writes to the same database: this one decides no more."""


class ControllerActor:
    """Async, so calls take turns on one thread: the Controller needs no lock."""

    def __init__(self, settings: Settings, policy_text: str, is_revival: bool = False) -> None:
        """is_revival: whether a controller ran before in this deployment, so that this one goes on where it was."""
        configure_logs(settings, "controller")
        self._settings = settings
        self._engine = engine = open_database(settings.database_url)
        self._journal = SqlJournal(engine)
        self._has_stepped_down = False
        self._device, self._rates = "", Rates()
        self._price_watch = PriceWatch(settings.prices)
        self._budgets = BudgetOffice(engine, self._journal, settings.tick_s)
        self._look_at = time.monotonic() + LOOK_FOR_OTHERS_S
        start = Start(policy_text, last_version=int(time.time()))
        try:
            start = read_start(engine, policy_text, is_revival or _was_restarted())
        except Exception as error:
            # A database that is away must not stop control; versions from the clock are higher than any counted ones.
            log.warning("the journal cannot be read; starting from the policy file", reason=str(error).splitlines()[0])
        policy = parse_policy(start.policy_text, source=str(settings.policy))
        # The latest one to start wins, also where an earlier one started by a clock that was ahead.
        self._epoch = max(time.time_ns(), start.last_epoch + 1)
        self._controller = Controller(
            policy,
            self._journal,
            epoch=self._epoch,
            first_version=start.last_version + 1,
            plan_ttl_s=settings.plan_ttl_s,
            alerts=start.alerts,
            on_window=self._budgets.take,
        )
        self._budgets.open(policy, time.time())
        file_revision = start.file_revision or parse_policy(policy_text, source=str(settings.policy)).revision
        watch = PolicyWatch(settings.policy, file_revision) if settings.policy_watch else None
        self._policy = PolicyControl(self._controller, watch, is_in_charge=lambda: not self._has_stepped_down)
        self._policy.put(policy, "kadence", start.why)
        log.info("controller began", why=start.why, epoch=self._epoch, policy=policy.revision)
        self._spend()  # the desk knows the budgets before it is asked
        self._experiment = take_up(engine, self._controller, self._journal)
        if start.k:
            self._controller.resume(start.k, start.windows, time.time())
        if start.kill_switch != "off":
            self._controller.set_kill_switch(start.kill_switch, by="kadence", why=start.why, now=time.time())
        loop = asyncio.get_running_loop()
        self._ticking = loop.create_task(self._tick_forever())
        self._following = loop.create_task(self._policy.follow_file())
        self._filling = loop.create_task(keep_filled(engine, lambda: not self._has_stepped_down))
        self._budgeting = loop.create_task(self._budgets.follow(lambda: not self._has_stepped_down))
        self._pricing = loop.create_task(follow_prices(self._price_watch, engine, lambda: not self._has_stepped_down))
        self._comparing = loop.create_task(
            follow_anomalies(engine, self._controller, lambda: self._prices, lambda: not self._has_stepped_down)
        )
        retention = follow_retention(engine, settings.retention_days, lambda: not self._has_stepped_down)
        self._pruning = loop.create_task(retention)
        self._keys = KeyWatch(engine)
        self._keying = loop.create_task(self._keys.follow())

    async def _tick_forever(self) -> None:
        while not self._has_stepped_down:
            await asyncio.sleep(self._settings.tick_s)
            self._tick()
            if time.monotonic() >= self._look_at:
                self._look_at = time.monotonic() + LOOK_FOR_OTHERS_S
                await self.look_for_others()

    async def look_for_others(self) -> None:
        """Step down where the database has plans of a controller that started later.

        Reports are refused from then on: workers keep them for whoever is the controller next.
        """
        try:
            latest = await asyncio.to_thread(last_plan_epoch, self._engine)
        except Exception as error:
            # Control does not depend on the database.
            log.warning("cannot look for other controllers", reason=str(error).splitlines()[0])
            return
        if latest > self._epoch and not self._has_stepped_down:
            self._tick()  # what was acknowledged is journalled
            self._has_stepped_down = True
            log.error("stepping down: a later controller uses this database", epoch=self._epoch, later=latest)

    def _check_in_charge(self) -> None:
        if self._has_stepped_down:
            raise SteppedDown("a later controller uses this database; this one has stepped down")

    @property
    def _prices(self) -> PriceSheet:
        """The sheet in force; an empty one where none could be read, as cost objectives then go unpursued."""
        return self._price_watch.sheet

    def _price(self) -> None:
        """Tell the controller what a second of the workers' device costs and who pursues cost, where that changed."""
        rates = Rates(self._prices.per_second(self._device, time.time()), dialled=self._spend())
        if rates != self._rates:
            self._rates = rates
            self._controller.set_rates(rates)

    def _spend(self) -> tuple[str, ...]:
        """Take the windows to the budgets; the cohorts that are to pursue cost. What goes wrong there stops nobody."""
        try:
            return self._budgets.tick(self._controller, self._prices, time.time())
        except Exception:
            log.exception("budgets failed in this tick")
            return self._budgets.dialled

    def _tick(self) -> None:
        try:
            self._experiment.advance(time.time())
        except Exception:
            log.exception("the experiment failed in this tick")
        try:
            self._price()
            self._controller.tick(time.time())
        except Exception:
            # The plan then expires and workers use the fallback K: closed, not silent.
            log.exception("controller tick failed")

    async def report(self, reports: Sequence[Report]) -> Plan:
        """Take a worker's reports; the answer is the newest plan. Raises SteppedDown."""
        self._check_in_charge()
        for report in reports:
            self._controller.observe(report)
            self._device = report.window.device
        return self._controller.plan

    async def state(self, known_keys: str | None = None) -> ControllerState:
        """known_keys: revision of the ring that the asker has, which is then not sent again."""
        ring = self._keys.ring
        policy: Policy = self._controller.policy
        return ControllerState(
            policy.text,
            policy.revision,
            self._controller.plan,
            JournalCounts(
                dict(self._controller.decided),
                self._journal.spooled,
                self._journal.lost,
                self._controller.refused,
                self._has_stepped_down,
                tuple(self._controller.alerts.active),
                self._budgets.statuses,
                self._budgets.unasked,
                machine_prices(self._prices, time.time()),
            ),
            self._policy.status(),
            None if ring is None or ring.revision == known_keys else ring,
        )

    async def apply_policy(self, text: str, by: str, why: str, stage: StageOrder | None = None) -> Plan:
        """Raises PolicyError and RolloutError; the last good policy then stays in force. Raises SteppedDown."""
        self._check_in_charge()
        return self._policy.put_text(text, by, why, stage)

    async def abort_rollout(self, by: str, why: str) -> Plan:
        """Raises RolloutError where none is under way, and SteppedDown."""
        self._check_in_charge()
        return self._policy.abort_rollout(by, why)

    async def policy_history(self, limit: int) -> list[PolicyEntry]:
        """Policies as they were put in force, newest first."""
        return await asyncio.to_thread(policy_history, self._engine, limit)

    async def alerts(self, state: AlertState | None) -> list[Alert]:
        """Newest first: the active ones as they are now, the others as they were stored."""
        active = sorted(self._controller.alerts.active.values(), key=lambda alert: alert.last_seen, reverse=True)
        ended = [] if state == "active" else await asyncio.to_thread(alert_log, self._engine, "cleared")
        return [*(active if state != "cleared" else []), *ended]

    async def clear_alert(self, name: str, by: str, why: str) -> tuple[Alert, Plan] | None:
        """The alert as it ended and the plan after it; None where none of that name is active. Raises SteppedDown."""
        self._check_in_charge()
        if name not in self._controller.alerts.active:
            return None
        alert = self._controller.clear_alert(name, by=by, why=why, now=time.time())
        return alert, self._controller.plan

    async def set_kill_switch(self, mode: KillSwitch, by: str, why: str) -> Plan:
        """Raises SteppedDown."""
        self._check_in_charge()
        self._controller.set_kill_switch(mode, by=by, why=why, now=time.time())
        return self._controller.tick(time.time())

    async def budgets(self) -> list[BudgetStatus]:
        """Every budget as of the last tick."""
        return list(self._budgets.statuses)

    async def budget_admit(self, holder: str, ask: Ask) -> Answer:
        """Whether a request of the endpoint `holder` may still be paid for. Raises SteppedDown."""
        self._check_in_charge()
        return self._budgets.admit(holder, ask, time.time())

    async def budget_settle(self, holder: str, settled: Settled) -> None:
        """A request that was admitted has ended. Raises SteppedDown."""
        self._check_in_charge()
        self._budgets.settle(holder, settled, time.time())

    async def budget_hold(
        self, holder: str, asks: Sequence[Ask], refused: Mapping[str, int], unasked: int, asking: Sequence[str] = ()
    ) -> None:
        """All that the endpoint has under way, and ids of what it is just asking about. Raises SteppedDown."""
        self._check_in_charge()
        self._budgets.hold(holder, asks, time.time(), refused, unasked, asking)

    async def experiment(self) -> dict[str, Any] | None:
        """The savings experiment that is running, or the last one."""
        return self._experiment.status()

    async def start_experiment(self, asked: dict[str, Any], by: str, why: str, seed: int | None) -> dict[str, Any]:
        """Raises ExperimentError and SteppedDown."""
        self._check_in_charge()
        self._experiment.start(asked, by, why, seed)
        return self._experiment.status() or {}

    async def stop_experiment(self, by: str, why: str) -> tuple[dict[str, Any], Plan]:
        """What became of it, and the plan after it. Raises ExperimentError and SteppedDown."""
        self._check_in_charge()
        self._experiment.stop(by, why)
        return self._experiment.status() or {}, self._controller.plan

    async def close(self) -> None:
        """Journal what was reported since the last tick, write what is spooled, and stop ticking."""
        self._ticking.cancel()
        self._following.cancel()
        self._filling.cancel()
        self._pricing.cancel()
        self._comparing.cancel()
        self._pruning.cancel()
        self._budgeting.cancel()
        self._keying.cancel()
        if not self._has_stepped_down:
            self._tick()
        await self._budgets.close(is_in_charge=not self._has_stepped_down)
        await asyncio.to_thread(self._journal.close)


def start_controller(settings: Settings, policy_text: str, *, is_revival: bool = False) -> Any:
    """Get the named actor, creating it where it is not running; Ray restarts it when its process dies.

    is_revival: this deployment had one before. Raises RayError or ValueError where it cannot be created just now.
    """
    actor = ray.remote(ControllerActor).options(
        name=NAME,
        namespace=NAMESPACE,
        get_if_exists=True,
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=0,
        lifetime="detached",
    )
    return actor.remote(settings, policy_text, is_revival)


def find_controller() -> Any:
    """The running actor's handle; raises ControllerUnreachable where there is none."""
    try:
        return ray.get_actor(NAME, namespace=NAMESPACE)
    except (ValueError, RayError) as error:
        raise ControllerUnreachable(str(error).splitlines()[0]) from error


def send_reports(reports: Sequence[Report]) -> Plan:
    """Blocking; for a Reporter. Raises ControllerUnreachable."""
    actor = find_controller()
    try:
        plan: Plan = ray.get(actor.report.remote(list(reports)), timeout=ANSWER_WITHIN_S)
    except (RayError, TimeoutError) as error:
        raise ControllerUnreachable(str(error).splitlines()[0]) from error
    return plan


def stop_controller() -> None:
    """Let it write what it has, then end it; no error where it is gone already."""
    with contextlib.suppress(ControllerUnreachable, RayError, TimeoutError):
        actor = find_controller()
        try:
            ray.get(actor.close.remote(), timeout=CLOSE_WITHIN_S)
        finally:
            ray.kill(actor, no_restart=True)

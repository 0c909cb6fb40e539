"""The controller: reports in, decisions made, a plan out. The only state of the control loop lives here.

Not thread-safe: the caller (an actor) serialises the calls. Every call but a slow journal's is a few microseconds to
a few milliseconds; nothing in here waits.

    observe(report)   keeps the window until the next tick, answers with the newest plan
    tick(now)         merge -> decide -> publish -> journal
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from controlplane.alerts import Alert, AlertBook, CanaryCheck
from controlplane.decision.decide import Decision, DecisionState, Observation, Rates, Reason, Tick, decide, observe
from controlplane.decision.guard import REASONS
from controlplane.decision.plan import KillSwitch, Plan, PlanArm
from controlplane.experiment import is_holdout
from controlplane.ordered_decisions import moved, stopped_or_freed, switched
from controlplane.policy import Policy
from controlplane.rollout import Rollout, RolloutError, StageOrder
from controlplane.seen_windows import SeenWindows
from controlplane.telemetry import Report, WorkerWindow
from controlplane.tolerant_journal import Journal, TolerantJournal
from controlplane.trial import Trial
from controlplane.window_problems import window_problem

log = logging.getLogger(__name__)

LATE_S = 60.0
"""A window that ended longer ago than this is journalled but no longer decided on."""


class Controller:
    """Decides K for every cohort and load bucket, once a tick, and publishes it as a plan.

    epoch: start of this controller, unix nanoseconds. first_version: version of its first plan; give the last known
    plus one, so that versions rise across restarts. plan_ttl_s: seconds for which a plan is valid after its tick.
    alerts: those on record; what is active stays so. on_window: is given every window that counts, once.
    """

    def __init__(
        self,
        policy: Policy,
        journal: Journal,
        *,
        epoch: int,
        first_version: int = 1,
        plan_ttl_s: float = 10.0,
        alerts: Iterable[Alert] = (),
        on_window: Callable[[WorkerWindow], None] | None = None,
    ) -> None:
        self._journal, self._epoch, self._ttl_s = TolerantJournal(journal), epoch, plan_ttl_s
        self._policy = policy
        self._state = DecisionState.start(policy)
        self._trial: Trial | None = None
        self._heard: dict[str, float] = {}
        self._held_out: dict[str, float] = {}
        self._rates = Rates()
        self._kill_switch: KillSwitch = "off"
        self._arm: PlanArm = ""
        self._control_from, self._control_until = math.inf, -math.inf
        self._pending: list[Report] = []
        self._seen = SeenWindows()
        self._refused: Counter[str] = Counter()
        self._decided: Counter[tuple[str, str]] = Counter()
        self._on_window = on_window
        self._alerts = AlertBook.of(alerts)
        self._plan = self._draw(first_version, epoch / 1e9)

    @property
    def plan(self) -> Plan:
        """The newest plan."""
        return self._plan

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._policy

    @property
    def rollout(self) -> Rollout | None:
        """The policy that is being tried on a part, or the last one that was."""
        return None if self._trial is None else self._trial.rollout

    @property
    def alerts(self) -> AlertBook:
        """The active alerts."""
        return self._alerts

    @property
    def state(self) -> DecisionState:
        """What is believed and remembered; a value, safe to keep."""
        return self._state

    @property
    def journal_failures(self) -> int:
        """Times that the journal raised; what it was given then is lost."""
        return self._journal.failures

    @property
    def refused(self) -> Mapping[str, int]:
        """Reports not used, by why: duplicate, late, or the field that was wrong."""
        return dict(self._refused)

    @property
    def decided(self) -> Mapping[tuple[str, str], int]:
        """Decisions made, by (cohort, reason), since this controller started."""
        return dict(self._decided)

    def observe(self, report: Report) -> Plan:
        """Keep a report for the next tick and answer with the newest plan. A repeated or a bad one changes nothing.

        What the canary found counts beside a bad window, too: where text goes wrong, numbers may.
        """
        problem = window_problem(report.window)
        if problem is not None:
            self._refused[problem] += 1
            log.warning("report of %s refused: %s", report.window.id, problem)
        elif not self._seen.add(report.window.id):
            self._refused["duplicate"] += 1
            return self._plan
        else:
            self._pending.append(report)
            if self._on_window is not None:
                self._on_window(report.window)
        for check in report.canary:
            self._take_check(check)
        return self._plan

    def tick(self, now: float) -> Plan:
        """Decide on what was reported since the last tick and publish. now: unix seconds.

        Where deciding fails, that is raised after the reports were journalled; the plan is not renewed, so it expires.
        """
        reports, self._pending = self._pending, []
        try:
            decisions = self._decide(reports, now)
        except Exception:
            self._journal.record(reports, (), self._plan, now)
            raise
        return self._publish(reports, decisions, now)

    def _decide(self, reports: Sequence[Report], now: float) -> tuple[Decision, ...]:
        # Sorted, so that sums of floats come out the same when the journal is replayed.
        fresh = sorted((r.window for r in reports if r.window.ended_at >= now - LATE_S), key=lambda w: w.id)
        self._refused["late"] += len(reports) - len(fresh)
        self._held_out |= {window.id.worker: now for window in fresh if is_holdout(window.id.worker)}
        fresh = [window for window in fresh if self._is_evidence(window)]
        self._heard |= {window.id.worker: now for window in fresh}
        if self._arm == "control":
            return ()
        if self._trial is None or self._trial.rollout.is_over:
            return self._decide_all(fresh, now)
        is_stopped = self._kill_switch != "off"
        kept, tried = self._trial.split(fresh)
        made = self._decide_all(kept, now)
        self._trial, tick = self._trial.decide(tried, now, self._rates, is_stopped=is_stopped)
        if tick is not None:
            self._count(tick)
            made += tick.decisions
        return self._advance(made, fresh, now)

    def _is_evidence(self, window: WorkerWindow) -> bool:
        """Whether it says what speculation does: neither a worker without a drafter nor a control window does."""
        if is_holdout(window.id.worker):
            return False
        return window.ended_at <= self._control_from or window.started_at >= self._control_until

    def _advance(self, made: tuple[Decision, ...], windows: Sequence[WorkerWindow], now: float) -> tuple[Decision, ...]:
        """Compare the two parts of the trial, and act on what that says; the tick's decisions and those it adds."""
        if self._trial is None:
            return made
        before = self._trial.rollout
        members = before.members if before.order.unit == "cohorts" and before.begins_at is not None else frozenset()
        revision = before.candidate.revision
        made = tuple(replace(d, policy_revision=revision) if d.cohort in members else d for d in made)
        self._trial = self._trial.advance(windows, now, is_stopped=self._kill_switch != "off")
        after = self._trial.rollout
        if (before.stage, before.begins_at, before.members) == (after.stage, after.begins_at, after.members):
            return made
        return made + self._settle(made, now)

    def _settle(self, made: Sequence[Decision], now: float) -> tuple[Decision, ...]:
        """Obey what became of the trial: it took effect on its cohorts, was promoted, or is over."""
        if self._trial is None:
            return ()
        rollout, tried = self._trial.rollout, self._trial.state
        self._journal.rollout_changed(rollout)
        if rollout.stage == "promoted":
            self._journal.policy_applied(rollout.candidate, rollout.by, f"promoted: {rollout.why}", now)
        if not rollout.is_over and rollout.order.unit == "replicas":
            return ()  # workers came or went: the plan says who tries it
        if rollout.is_over:
            log.info("rollout of revision %s: %s", rollout.candidate.revision, rollout.sentence)
        if rollout.stage == "promoted" and tried is not None:
            self._state = tried
        elif rollout.stage == "promoted" or rollout.order.unit == "cohorts":
            self._state = self._state.carried(rollout.policy)
        if rollout.stage == "promoted":
            self._policy = rollout.candidate
        told = {(d.cohort, d.load_bucket, d.policy_revision) for d in made}
        ordered = self._moved(f"policy {rollout.candidate.revision} {rollout.sentence}", now)
        return tuple(d for d in ordered if (d.cohort, d.load_bucket, d.policy_revision) not in told)

    def _decide_all(self, fresh: Sequence[WorkerWindow], now: float) -> tuple[Decision, ...]:
        seen = Observation.of(fresh, self._state.table.names)
        if self._kill_switch != "off":
            self._state = observe(self._state, seen, now)
            return ()
        tick = decide(self._state, seen, now, self._rates)
        self._state = tick.state
        self._count(tick)
        return tick.decisions

    def _count(self, tick: Tick) -> None:
        names = tick.state.table.names
        flat = np.arange(len(names))[:, None] * len(REASONS) + tick.reasons
        counts = np.bincount(flat[tick.reasons >= 0], minlength=len(names) * len(REASONS))
        for code in np.flatnonzero(counts):
            self._decided[names[code // len(REASONS)], REASONS[code % len(REASONS)].value] += int(counts[code])

    def set_rates(self, rates: Rates) -> None:
        """What busy time costs from now on, for cohorts whose objective is cost; and which of the others pursue it."""
        changed = set(rates.dialled) ^ set(self._rates.dialled)
        if changed:
            self._state = self._state.retold(changed)
        self._rates = rates
        value = {"per_second": rates.per_second, "per_joule": rates.per_joule, "dialled": list(rates.dialled)}
        self._tell("rates", value, self._plan.issued_at)

    def resume(self, k: Mapping[str, tuple[int, ...]], windows: Iterable[WorkerWindow], now: float) -> None:
        """Go on from an earlier controller's plan: its K by cohort and load, and the windows it had last, oldest first.

        What those say is believed, nothing is decided on them, and every hold begins anew. Publishes at once.
        """
        windows = list(windows)
        said = {"k": {name: list(by_load) for name, by_load in k.items()}, "windows": [list(w.id) for w in windows]}
        self._tell("resume", said, now)
        for window in windows:
            if window_problem(window) is None and self._seen.add(window.id) and not is_holdout(window.id.worker):
                self._state = observe(self._state, Observation.of([window], self._state.table.names), window.ended_at)
        self._state = self._state.resumed(k, now)
        self._publish((), (), now)

    def apply_policy(self, policy: Policy, *, by: str, why: str, now: float, rollout: StageOrder | None = None) -> None:
        """Put another policy in force and publish at once. Cohorts that keep name and ladder keep what was learnt.

        rollout: try it on a part first. A trial under way ends, all back to the policy in force. Only a parsed Policy
        gets this far, so a bad file never replaces a good policy. Raises TypeError otherwise, and RolloutError where it
        cannot be tried, or another one is being tried.
        """
        if not isinstance(policy, Policy):
            raise TypeError(f"apply_policy takes a parsed Policy, not {type(policy).__name__}")
        if rollout is not None:
            self._try(policy, rollout, by, why, now)
            return
        if self._trial is not None and not self._trial.rollout.is_over:
            self._end_trial(by, f"revision {policy.revision} was applied instead", now)
        self._state = self._state.carried(policy)
        self._policy = policy
        self._journal.policy_applied(policy, by, why, now)
        self._publish((), self._moved(f"policy applied by {by}: {why}", now), now)

    def _try(self, policy: Policy, order: StageOrder, by: str, why: str, now: float) -> None:
        if self._trial is not None and not self._trial.rollout.is_over:
            tried = self._trial.rollout.candidate.revision
            raise RolloutError(
                f"revision {tried} is being tried: wait for it, or abort it (kadence policy rollout --abort)"
            )
        self._trial = Trial.begin(
            policy, self._policy, order, self._state, workers=self._heard, by=by, why=why, now=now
        )
        self._rollout_changed()
        self._publish((), (), now)

    def abort_rollout(self, *, by: str, why: str, now: float) -> None:
        """End the trial, all back to the policy in force, and publish at once. Raises RolloutError without one."""
        if self._trial is None:
            raise RolloutError("no policy is being tried")
        self._end_trial(by, why, now)
        self._publish((), self._moved(f"trial aborted by {by}: {why}", now), now)

    def _end_trial(self, by: str, why: str, now: float) -> None:
        if self._trial is None:
            return
        self._trial = self._trial.aborted(by, why, now)
        if self._trial.rollout.order.unit == "cohorts":
            self._state = self._state.carried(self._policy)
        self._rollout_changed()

    def _rollout_changed(self) -> None:
        if self._trial is not None:
            self._journal.rollout_changed(self._trial.rollout)

    def _tell(self, kind: str, value: dict[str, Any], at: float) -> None:
        """Journal what replay has to tell again."""
        self._journal.told(kind, value, epoch=self._epoch, at=at)

    def _moved(self, sentence: str, now: float) -> list[Decision]:
        """What a policy moves that came into force since the last plan."""
        return self._counted(moved(self._plan, self._state, self._policy, sentence, now))

    def _counted(self, decisions: Iterable[Decision]) -> list[Decision]:
        """`decisions`, counted."""
        decisions = list(decisions)
        self._decided.update((d.cohort, d.reason.value) for d in decisions)
        return decisions

    def set_kill_switch(self, mode: KillSwitch, *, by: str, why: str, now: float) -> None:
        """Override all cohorts at once: `fallback` or `zero`, and `off` for normal control. Publishes at once.

        While it is on, evidence is still taken in but nothing is decided; afterwards control resumes from the K before.
        """
        if mode not in ("off", "fallback", "zero"):
            raise ValueError(f"kill switch mode {mode!r} is not one of off, fallback, zero")
        old = self._plan
        self._kill_switch = mode
        self._state = self._state.resting(now)
        self._trial = None if self._trial is None else self._trial.resting(now)
        new = replace(self._draw(old.version, now), expires_at=now + self._ttl_s)
        sentence = f"kill switch {mode} by {by}: {why}"
        decisions = switched(old, new, self._state, self._policy, Reason.KILL_SWITCH, sentence, now)
        self._publish((), self._counted(decisions), now)

    @property
    def held_out(self) -> Mapping[str, float]:
        """Workers without a drafter, and the tick (unix seconds) at which each was heard last."""
        return dict(self._held_out)

    @property
    def arm(self) -> PlanArm:
        """The window of a savings experiment that is under way."""
        return self._arm

    def set_arm(self, arm: PlanArm, *, sentence: str, now: float) -> None:
        """A window of a savings experiment begins ("": it is over); publishes at once.

        In a control window nothing is drafted and nothing is learnt; afterwards control resumes from the K before.
        """
        old = self._plan
        self._tell("experiment", {"arm": arm, "sentence": sentence}, now)
        if "control" in (arm, self._arm) and arm != self._arm:
            self._state = self._state.resting(now)
        if arm == "control":
            self._control_from, self._control_until = now, math.inf
        elif self._arm == "control":
            self._control_until = now
        self._arm = arm
        new = replace(self._draw(old.version, now), expires_at=now + self._ttl_s)
        decisions = switched(old, new, self._state, self._policy, Reason.EXPERIMENT, sentence, now)
        self._publish((), self._counted(d for d in decisions if d.old_k != d.new_k), now)

    def _take_check(self, check: CanaryCheck) -> None:
        """Wrong text blocks its drafter in the very answer to the report."""
        problem = check.problem
        if problem is not None:
            self._refused[problem] += 1
            log.warning("canary check of %s refused: %s", check.worker, problem)
            return
        self._alerts, alert = self._alerts.take(check)
        if alert is not None:
            log.error("alert %s: %s", alert.name, alert.detail)
            self._obey_alerts(alert, f"canary: {alert.detail}", check.at)

    def raise_alert(self, alert: Alert) -> None:
        """Keep an alert that somebody else found, and journal it."""
        self._alerts = self._alerts.with_alert(alert)
        log.warning("alert %s: %s", alert.name, alert.detail)
        self._obey_alerts(alert, alert.detail, alert.last_seen)

    def clear_alert(self, name: str, *, by: str, why: str, now: float) -> Alert:
        """The alert as it ended; its drafter may draft again. Raises ValueError where none of that name is active."""
        self._alerts, alert = self._alerts.clear(name, by=by, why=why, now=now)
        self._obey_alerts(alert, f"alert {name} cleared by {by}: {why}", now)
        return alert

    def _obey_alerts(self, alert: Alert, sentence: str, now: float) -> None:
        """Publish which drafters are blocked, at once. What was decided stands, so the version stays what it is."""
        old, blocked = self._plan, self._alerts.blocked_drafters
        decisions: list[Decision] = []
        if blocked != old.blocked_drafters:
            # A moment later than the last issue, so that workers take it for the newer one.
            self._plan = replace(old, issued_at=old.issued_at + 1e-6, blocked_drafters=blocked)
            found = stopped_or_freed(old, self._plan, alert.subject, self._state, self._policy, sentence, now)
            decisions = [replace(decision, plan_version=self._plan.version) for decision in self._counted(found)]
        self._journal.alert(alert, decisions)

    def _publish(self, reports: Sequence[Report], decisions: Sequence[Decision], now: float) -> Plan:
        drawn = self._draw(self._plan.version, now)
        if _says(drawn) != _says(self._plan):
            drawn = replace(drawn, version=drawn.version + 1)
        self._plan = drawn
        stamped = [replace(decision, plan_version=drawn.version) for decision in decisions]
        self._journal.record(reports, stamped, drawn, now)
        return drawn

    def _draw(self, version: int, now: float) -> Plan:
        return Plan(
            epoch=self._epoch,
            version=version,
            issued_at=now,
            expires_at=now + self._ttl_s,
            fallback={cohort.name: cohort.speculation.fallback for cohort in self._state.table.cohorts},
            policy_revision=self._policy.revision,
            kill_switch=self._kill_switch,
            **self._state.planned(),
            staged=None if self._trial is None else self._trial.plan,
            blocked_drafters=self._alerts.blocked_drafters,
            arm=self._arm,
        )


def _says(plan: Plan) -> tuple[object, ...]:
    staged = plan.staged
    tried = None if staged is None else (staged.workers, staged.k, staged.fallback, staged.policy_revision)
    return (plan.k, plan.fallback, plan.policy_revision, plan.kill_switch, tried, plan.arm)

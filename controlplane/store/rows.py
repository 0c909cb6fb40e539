"""Values on their way into the ledger: one report, decision, plan or policy -> rows, as plain dictionaries."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from controlplane.decision.plan import Plan
from controlplane.finops.attribution import WindowUse, nanoseconds, window_use
from controlplane.rollout import Rollout
from controlplane.store.rollup import IDLE, Part, hour_of, parts
from controlplane.telemetry import CohortWindow, LatencyHistogram, RequestRecord, StepCell, WorkerWindow

if TYPE_CHECKING:
    from controlplane.decision.decide import Decision
    from controlplane.policy import Policy

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PolicyApplied:
    """One apply of a policy, with who did it, why, and when (unix seconds)."""

    policy: Policy
    by: str
    why: str
    at: float


@dataclass(frozen=True, slots=True)
class WindowSeen:
    """A worker's window and the tick (unix seconds) that took it in."""

    window: WorkerWindow
    at: float


@dataclass(frozen=True, slots=True)
class Ticked:
    """One time that a controller published: the plan, and the `now` it was given (unix seconds)."""

    plan: Plan
    at: float


@dataclass(frozen=True, slots=True)
class ControlTold:
    """Something else that a controller was told (models.ControlEvent)."""

    epoch: int
    at: float
    kind: str
    value: dict[str, Any]


def _text(written: str) -> str:
    """What a person wrote, without NUL: PostgreSQL stores none, and would refuse the row."""
    return written.replace("\0", "")


@dataclass(frozen=True, slots=True)
class WindowRows:
    """A window on its way into the ledger: its row, one per cohort, and what it adds to the rollups."""

    window: WorkerWindow
    row: Row
    cohorts: list[Row]
    parts: list[Part]


def window_rows(seen: WindowSeen) -> WindowRows:
    """The window taken apart once, for all the tables it goes to."""
    use = window_use(seen.window)
    found = parts(seen.window, use)
    return WindowRows(seen.window, _window_row(seen, use), _cohort_rows(seen.window, found), found)


def _window_row(seen: WindowSeen, use: WindowUse) -> Row:
    window = seen.window
    return {
        **_key(window),
        "model": window.model,
        "drafter": window.drafter,
        "device": window.device,
        "hour": hour_of(window.started_at),
        "started_at": window.started_at,
        "ended_at": window.ended_at,
        "seconds_ns": use.total_ns,
        "busy_ns": min(nanoseconds(window.busy_s), use.total_ns),
        "idle_ns": use.idle_ns,
        "energy_uj": window.energy_uj,
        "idle_uj": use.idle_uj,
        "idle_energy_uj": window.idle_energy_uj,
        "energy_source": window.energy_source,
        "plan_version": window.plan_version,
        "plan_expired": window.plan_expired,
        "plan_age_s": window.plan_age_s,
        "running": window.running,
        "waiting": window.waiting,
        "kv_used": window.kv_used,
        "kv_total": window.kv_total,
        "latency": [list(cell) for cell in window.latency],
        "profile": [[*cell[:5], list(cell.tree)] if cell.tree else list(cell[:5]) for cell in window.profile],
        "tick_at": seen.at,
        "busy_s": window.busy_s,
    }


def _cohort_rows(window: WorkerWindow, found: list[Part]) -> list[Row]:
    """A row per cohort of the window, each with its part of the machine time and energy."""
    by_cohort: dict[str, list[Part]] = {cohort.cohort: [] for cohort in window.cohorts}
    for part in found:
        if part.direction != IDLE:
            by_cohort[part.cohort].append(part)
    is_measured = window.energy_uj is not None
    return [
        {**_key(window), **_shares(by_cohort[cohort.cohort], is_measured), **_cohort(cohort)}
        for cohort in window.cohorts
    ]


def _key(window: WorkerWindow) -> Row:
    return {"worker": window.id.worker, "epoch": window.id.epoch, "sequence": window.id.sequence}


def _shares(found: list[Part], is_measured: bool) -> Row:
    ns = wasted_ns = uj = wasted_uj = input_ns = input_uj = input_tokens = 0
    for _, _, direction, amounts in found:
        ns += amounts.ns
        wasted_ns += amounts.wasted_ns
        uj += amounts.uj or 0
        wasted_uj += amounts.wasted_uj or 0
        if direction == "input":
            input_ns += amounts.ns
            input_uj += amounts.uj or 0
            input_tokens += amounts.tokens
    return {
        "attributed_ns": ns,
        "wasted_ns": wasted_ns,
        "attributed_uj": uj if is_measured else None,
        "wasted_uj": wasted_uj if is_measured else None,
        "input_ns": input_ns,
        "input_uj": input_uj if is_measured else None,
        "input_tokens": input_tokens,
        "uses": [[part.tenant, part.direction, *part.amounts] for part in found],
    }


def _cohort(cohort: CohortWindow) -> Row:
    sums, spec_steps = cohort.as_one_tenant, cohort.spec_steps
    return {
        "cohort": cohort.cohort,
        "prefill_positions": cohort.prefill_positions,
        "verify_positions": sums.verify_positions,
        "draft_positions": cohort.draft_positions,
        "first_tokens": cohort.first_tokens,
        "emitted_tokens": sums.emitted_tokens,
        "spec_steps": spec_steps,
        "plain_steps": sums.steps - spec_steps,
        "draft_tokens": sums.draft_tokens,
        "accepted_tokens": sums.accepted_tokens,
        "planned_k_steps": sum(cell.k * cell.steps for cell in cohort.cells),
        "step_seconds": sum(cell.step_seconds for cell in cohort.cells),
        "requests_started": cohort.requests_started,
        "requests_finished": cohort.requests_finished,
        "requests_failed": cohort.requests_failed,
        "cells": [_cell(cell) for cell in cohort.cells],
        "ttft": _histogram(cohort.ttft),
        "tpot": _histogram(cohort.tpot),
        "shadow": [_cell(cell) for cell in cohort.shadow],
        "tenants": [list(tenant) for tenant in cohort.tenants],
    }


def _cell(cell: StepCell) -> list[Any]:
    counts = [list(count) for count in cell.counts]
    row = [cell.load_bucket, cell.k, counts, cell.step_seconds, list(cell.overlap), list(cell.overlap_steps)]
    return [*row, list(cell.tree), [list(count) for count in cell.ranks]] if cell.tree else row


def _histogram(histogram: LatencyHistogram) -> Row:
    return {"counts": list(histogram.counts), "sum_s": histogram.sum_s}


REQUEST_FIELDS = tuple(f.name for f in fields(RequestRecord))
_request_values = attrgetter(*REQUEST_FIELDS)


def request_row(request: RequestRecord) -> Row:
    row: Row = dict(zip(REQUEST_FIELDS, _request_values(request), strict=True))
    row["hour"] = hour_of(request.finished_at)
    return row


def decision_row(decision: Decision) -> Row:
    return {
        "at": decision.at,
        "cohort": decision.cohort,
        "load_bucket": decision.load_bucket,
        "old_k": decision.old_k,
        "new_k": decision.new_k,
        "reason": str(decision.reason),
        "sentence": _text(decision.sentence),
        "samples": decision.samples,
        # NaN is no JSON.
        "accept_at": [a if math.isfinite(a) else None for a in decision.accept_at],
        "plan_version": decision.plan_version,
        "policy_revision": decision.policy_revision,
    }


def plan_row(plan: Plan) -> Row:
    return {
        "version": plan.version,
        "epoch": plan.epoch,
        "issued_at": plan.issued_at,
        "expires_at": plan.expires_at,
        "k": {cohort: list(by_load) for cohort, by_load in plan.k.items()},
        "fallback": dict(plan.fallback),
        "policy_revision": plan.policy_revision,
        "kill_switch": plan.kill_switch,
    }


def policy_row(applied: PolicyApplied) -> Row:
    return {
        "revision": applied.policy.revision,
        "applied_at": applied.at,
        "applied_by": _text(applied.by),
        "why": _text(applied.why),
        "text": applied.policy.text,
    }


def event_row(told: ControlTold) -> Row:
    return {"epoch": told.epoch, "at": told.at, "kind": told.kind, "value": told.value}


def rollout_row(rollout: Rollout) -> Row:
    return {
        "revision": rollout.candidate.revision,
        "incumbent": rollout.incumbent.revision,
        "unit": rollout.order.unit,
        "share": rollout.order.share,
        "min_windows": rollout.order.min_windows,
        "max_s": rollout.order.max_s,
        "members": sorted(rollout.members),
        "stage": rollout.stage,
        "started_at": rollout.started_at,
        "ended_at": rollout.ended_at,
        "started_by": _text(rollout.by),
        "why": _text(rollout.why),
        "sentence": _text(rollout.sentence),
        "text": rollout.candidate.text,
    }


def tick_row(ticked: Ticked) -> Row:
    return {
        "epoch": ticked.plan.epoch,
        "at": ticked.at,
        "plan_version": ticked.plan.version,
        "policy_revision": ticked.plan.policy_revision,
        "kill_switch": ticked.plan.kill_switch,
    }

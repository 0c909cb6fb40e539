"""What the canary found, and the alerts that follow from it: values and pure rules.

A canary check is one finished request whose text was computed again by the target alone. An alert stays active, and
counts what comes after, until an operator clears it; one that comes back after that is a new alert.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from typing import Literal

Severity = Literal["warning", "critical"]
AlertState = Literal["active", "cleared"]
Verdict = Literal["same", "near_tie", "mismatch"]

CANARY = "canary"
"""Kind of the alert that a drafter's text was not the target's; its subject is the drafter, name@version."""
BUDGET = "budget"
"""Kind of the alert that a share of a budget is spent; its subject is budget/share/period, such as ide/80%/2026-11."""
ANOMALY = "anomaly"
"""Kind of the alert that a cohort's tokens cost unusually much; its subject is cohort/first hour of it, in UTC."""


@dataclass(frozen=True, slots=True)
class CanaryCheck:
    """One finished request, computed again by the target alone: no prompt, no text, no token.

    drafter: name@version. at: unix seconds. mode: how the request was sampled. positions: completion tokens compared.
    near_ties: of them, those that differ and that rounding explains: the emitted token's score is within `tolerance`
    of the best (both in units of logits). mismatches: those that differ by more. worst_gap: the largest such distance,
    None where the emitted token was not allowed at all. first_mismatch: 0-based place in the completion of the first
    mismatch. rows: positions computed; seconds: that it took.
    """

    request_id: str
    worker: str
    cohort: str
    drafter: str
    at: float
    mode: Literal["greedy", "seeded"]
    positions: int
    near_ties: int
    mismatches: int
    worst_gap: float | None
    tolerance: float
    first_mismatch: int | None
    rows: int
    seconds: float

    @property
    def verdict(self) -> Verdict:
        return "mismatch" if self.mismatches else "near_tie" if self.near_ties else "same"

    @property
    def problem(self) -> str | None:
        """The first field that cannot be true, else None: a check comes over the network."""
        for name in ("at", "seconds", "tolerance", "worst_gap"):
            value = getattr(self, name)
            if value is not None and not (isfinite(value) and value >= 0):
                return f"bad {name}"
        if not 0 <= self.near_ties + self.mismatches <= self.positions or min(self.near_ties, self.mismatches) < 0:
            return "bad positions"
        return None

    def sentence(self) -> str:
        """What an operator reads of a mismatch."""
        gap = "was not even allowed" if self.worst_gap is None else f"missed the best by {self.worst_gap:.3g} logits"
        return (
            f"text of {self.cohort} drafted by {self.drafter} is not the target's: {self.mismatches} of "
            f"{self.positions} tokens differ in request {self.request_id}, from token {self.first_mismatch} on; the "
            f"worst {gap} (rounding explains {self.tolerance:.3g})"
        )


@dataclass(frozen=True, slots=True)
class Alert:
    """Something that an operator must look at. kind and subject name it; first_seen to cleared_at are unix seconds.

    count: how often it was seen. detail: the last sighting, in one sentence. cleared_by, why: of the operator.
    """

    kind: str
    subject: str
    severity: Severity
    first_seen: float
    last_seen: float
    count: int
    detail: str
    state: AlertState = "active"
    cleared_at: float | None = None
    cleared_by: str = ""
    why: str = ""

    @property
    def name(self) -> str:
        """How an operator names it: kind:subject."""
        return f"{self.kind}:{self.subject}"

    def as_json(self) -> dict[str, object]:
        """As the admin API and `kadence alerts list --json` show it."""
        return {"name": self.name, **asdict(self)}


@dataclass(frozen=True, slots=True)
class AlertBook:
    """The active alerts, by name. Values: each change gives a new book."""

    active: Mapping[str, Alert] = field(default_factory=dict)

    @classmethod
    def of(cls, alerts: Iterable[Alert]) -> AlertBook:
        """Of those that are active, as they were stored."""
        return cls({alert.name: alert for alert in alerts if alert.state == "active"})

    def take(self, check: CanaryCheck) -> tuple[AlertBook, Alert | None]:
        """With what `check` says; the alert that it raised or counts to, None where the text was right."""
        if check.verdict != "mismatch":
            return self, None
        seen = Alert(CANARY, check.drafter, "critical", check.at, check.at, 1, check.sentence())
        known = self.active.get(seen.name)
        if known is not None:
            # Reports of several workers come in any order.
            seen = replace(
                seen,
                first_seen=known.first_seen,
                last_seen=max(known.last_seen, check.at),
                count=known.count + 1,
            )
        return AlertBook({**self.active, seen.name: seen}), seen

    def with_alert(self, alert: Alert) -> AlertBook:
        """With `alert`, in place of one of that name."""
        return AlertBook({**self.active, alert.name: alert})

    def clear(self, name: str, *, by: str, why: str, now: float) -> tuple[AlertBook, Alert]:
        """Without that alert; the alert as it ended. Raises ValueError where none of that name is active."""
        if name not in self.active:
            known = ", ".join(sorted(self.active)) or "none"
            raise ValueError(f"alert: no active alert is named {name!r} (active: {known})")
        ended = replace(self.active[name], state="cleared", cleared_at=now, cleared_by=by, why=why)
        return AlertBook({n: alert for n, alert in self.active.items() if n != name}), ended

    @property
    def blocked_drafters(self) -> tuple[str, ...]:
        """Drafters that must not draft: name@version, sorted."""
        return tuple(sorted(a.subject for a in self.active.values() if a.kind == CANARY))

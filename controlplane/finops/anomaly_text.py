"""Anomalies in words, and the one alert that a stretch of unusual hours of a cohort gives. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from math import exp
from operator import attrgetter
from typing import NamedTuple

from controlplane.alerts import ANOMALY, Alert
from controlplane.finops.anomaly import Anomaly, Factor

HOUR_S = 3600.0


def hour_text(hour: int) -> str:
    """Hours since the unix epoch as 2026-11-29T15:00Z, the hour's start."""
    return datetime.fromtimestamp(hour * HOUR_S, UTC).strftime("%Y-%m-%dT%H:00Z")


def percent(change: float) -> str:
    """A change of a logarithm as +25 %."""
    return f"{100.0 * (exp(change) - 1.0):+.0f} %"


def sentence(anomaly: Anomaly, currency: str) -> str:
    """What an operator reads: how much, how unusual, and what it likely comes from."""
    unit = f"{currency} per million tokens" if anomaly.metric == "cost" else "J per token"
    parts = ", ".join(f"{factor} {percent(part)}" for factor, part in anomaly.parts.items())
    return (
        f"{anomaly.cohort} at {hour_text(anomaly.hour)}: {anomaly.value:.4g} {unit}, usually {anomaly.usual:.4g} "
        f"({percent(anomaly.change)}, z {anomaly.z:+.1f}); likely cause {anomaly.cause}: "
        f"{cause_text(anomaly, currency)}. All: {parts}"
    )


def cause_text(anomaly: Anomaly, currency: str) -> str:
    """The cause's figure in this hour and what is usual."""
    cause = anomaly.cause
    now, before = (_figure(cause, each[cause], currency) for each in (anomaly.now, anomaly.before))
    text = f"{now}, usually {before}"
    if cause in ("load", "acceptance"):
        text += f" (drafting {anomaly.drafted:.2f} tokens a step, usually {anomaly.drafted_before:.2f})"
    return text


def _figure(factor: Factor, value: float, currency: str) -> str:
    match factor:
        case "price":
            return f"{exp(value) * 3600.0:.4g} {currency} a machine hour"
        case "power":
            return f"{exp(value) * 1000.0:.4g} W a machine"
        case "idle":
            return f"{_rest_percent(value):.0f} % of the machine time idle"
        case "prefill":
            return f"{_rest_percent(value):.0f} % of the busy time for prompts"
        case "load":
            return f"{exp(value) / 1e6:.3g} ms of a machine for a sequence's step"
        case "acceptance":
            return f"{exp(-value):.2f} tokens a step"


def _rest_percent(value: float) -> float:
    """Of whole / part, as a logarithm: the rest of the whole, in percent."""
    return 100.0 * (1.0 - exp(-value))


class Episode(NamedTuple):
    """Hours in a row in which a cohort cost unusually much, or took unusually much energy."""

    cohort: str
    first: int
    last: int
    anomalies: tuple[Anomaly, ...]

    @property
    def hours(self) -> int:
        return self.last - self.first + 1


def episodes(anomalies: Iterable[Anomaly]) -> list[Episode]:
    """Only rises: an hour that was cheap is no reason to call anybody."""
    found: list[Episode] = []
    for each in sorted((a for a in anomalies if a.change > 0), key=attrgetter("cohort", "hour")):
        before = found[-1] if found else None
        if before is not None and before.cohort == each.cohort and each.hour <= before.last + 1:
            found[-1] = Episode(each.cohort, before.first, each.hour, (*before.anomalies, each))
        else:
            found.append(Episode(each.cohort, each.hour, each.hour, (each,)))
    return found


def alerts_due(found: Iterable[Episode], known: Sequence[Alert], currency: str) -> list[Alert]:
    """Alerts to raise or to go on with: one an episode, counting its hours; `known`: active ones, and cleared ones.

    Looking twice at the same hours gives nothing new. An episode whose alert an operator cleared stays silent for as
    long as it is seen from its start.
    """
    due = []
    for episode in found:
        alert = _alert(episode, currency)
        before = next((k for k in known if k.kind == ANOMALY and _is_of(k, episode)), None)
        if before is None:
            due.append(alert)
        elif before.state == "active" and alert.last_seen > before.last_seen:
            more = round((alert.last_seen - before.last_seen) / HOUR_S)
            due.append(replace(alert, subject=before.subject, first_seen=before.first_seen, count=before.count + more))
    return due


def _is_of(alert: Alert, episode: Episode) -> bool:
    """Whether the alert's hours and the episode's are one stretch."""
    cohort = alert.subject.rpartition("/")[0]
    begins, ends = _seen_at(episode.first), _seen_at(episode.last)
    return cohort == episode.cohort and begins <= alert.last_seen + HOUR_S and alert.first_seen <= ends


def _seen_at(hour: int) -> float:
    """When an hour can be judged: at its end."""
    return (hour + 1) * HOUR_S


def _alert(episode: Episode, currency: str) -> Alert:
    last = [sentence(each, currency) for each in episode.anomalies if each.hour == episode.last]
    return Alert(
        kind=ANOMALY,
        subject=f"{episode.cohort}/{hour_text(episode.first)}",
        severity="warning",
        first_seen=_seen_at(episode.first),
        last_seen=_seen_at(episode.last),
        count=episode.hours,
        detail="; ".join(last),
    )

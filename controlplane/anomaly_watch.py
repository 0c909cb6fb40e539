"""Looks for unusual hours beside a running controller, once an hour, and raises one alert for each stretch of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Protocol

import sqlalchemy as sa

from controlplane.alerts import Alert, AlertBook
from controlplane.finops.anomaly import HISTORY_HOURS, find
from controlplane.finops.anomaly_text import alerts_due, episodes
from controlplane.finops.pricing import PriceSheet
from controlplane.store.anomalies import cleared_anomalies, hour_uses

log = logging.getLogger(__name__)

HOUR_S = 3600.0
FIRST_S = 60.0
"""After the start, when what a start has to do is done."""
AFTER_S = 300.0
"""After the end of an hour, when its last windows are stored."""
LOOK_BACK_HOURS = 24
"""Hours that are looked at each time: windows come late, and a controller may have been away."""


class Controlled(Protocol):
    """What this needs of the controller."""

    @property
    def alerts(self) -> AlertBook: ...

    def raise_alert(self, alert: Alert) -> None: ...


def due(engine: sa.Engine, sheet: PriceSheet, active: Iterable[Alert], now: float) -> list[Alert]:
    """Alerts to raise, or to go on with, by the hours that have ended (`now`: unix seconds). Blocks for its reads."""
    last = int(now // HOUR_S)
    first = last - LOOK_BACK_HOURS
    found = find(hour_uses(engine, first - HISTORY_HOURS, last, sheet), first, last)
    if not found.anomalies:
        return []
    known = [*active, *cleared_anomalies(engine, first * HOUR_S)]
    return alerts_due(episodes(found.anomalies), known, sheet.currency or "")


async def follow(
    engine: sa.Engine,
    controller: Controlled,
    sheet: Callable[[], PriceSheet],
    is_in_charge: Callable[[], bool],
    *,
    first_s: float = FIRST_S,
) -> None:
    """In the background until this process is not in charge; a database that is away is asked again in an hour."""
    pause = first_s
    while is_in_charge():
        await asyncio.sleep(pause)
        try:
            active = tuple(controller.alerts.active.values())
            alerts = await asyncio.to_thread(due, engine, sheet(), active, time.time())
        except Exception as error:
            log.warning("unusual hours are not looked for: %s", (str(error) or type(error).__name__).splitlines()[0])
            alerts = []
        if is_in_charge():
            for alert in alerts:
                controller.raise_alert(alert)
        pause = until_next(time.time())


def until_next(now: float) -> float:
    """Seconds until a little after the end of the hour; `now`: unix seconds."""
    return HOUR_S - (now - AFTER_S) % HOUR_S

"""Looks for unusual hours beside a running controller, once an hour, and raises one alert for each stretch of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Protocol

import sqlalchemy as sa

from controlplane.alerts import Alert, AlertBook
from controlplane.finops.anomaly import find, hours_needed
from controlplane.finops.anomaly_text import alerts_due, episodes
from controlplane.finops.pricing import PriceSheet
from controlplane.store.anomalies import cleared_anomalies, hour_uses

log = logging.getLogger(__name__)

HOUR_S = 3600.0
FIRST_S = 60.0
"""After the start, when what a start has to do is done."""
AFTER_S = 300.0
"""After the end of an hour, when its last windows are stored."""
LOOK_BACK_HOURS, LOOK_AGAIN_HOURS = 24, 3
"""Hours that are looked at first, as a controller may have been away, and each time: windows come late."""


class Controlled(Protocol):
    """What this needs of the controller."""

    @property
    def alerts(self) -> AlertBook: ...

    def raise_alert(self, alert: Alert) -> None: ...


def due(
    engine: sa.Engine, sheet: PriceSheet, active: Iterable[Alert], now: float, look_back: int = LOOK_BACK_HOURS
) -> list[Alert]:
    """Alerts to raise, or to go on with, by the last hours to end (`now`: unix seconds). Blocks for its reads."""
    last = int(now // HOUR_S)
    first = last - look_back
    found = find(hour_uses(engine, hours_needed(first, last), sheet), first, last)
    if not found.anomalies:
        return []
    known = [*active, *cleared_anomalies(engine, (last - LOOK_BACK_HOURS) * HOUR_S)]
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
    pause, look_back = first_s, LOOK_BACK_HOURS
    while is_in_charge():
        await asyncio.sleep(pause)
        try:
            active = tuple(controller.alerts.active.values())
            alerts = await asyncio.to_thread(due, engine, sheet(), active, time.time(), look_back)
            look_back = LOOK_AGAIN_HOURS
        except Exception as error:
            log.warning("unusual hours are not looked for: %s", (str(error) or type(error).__name__).splitlines()[0])
            alerts, look_back = [], LOOK_BACK_HOURS
        if is_in_charge():
            for alert in alerts:
                controller.raise_alert(alert)
        pause = until_next(time.time())


def until_next(now: float) -> float:
    """Seconds until a little after the end of the hour; `now`: unix seconds."""
    return HOUR_S - (now - AFTER_S) % HOUR_S

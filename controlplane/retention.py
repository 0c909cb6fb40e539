"""Raw rows of a running system go once they are older than the retention says; the bill stays (store/upkeep.py)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from controlplane.store.engine import one_line
from controlplane.store.upkeep import Pruned, prune, retention_ends

log = logging.getLogger(__name__)

FIRST_S = 120.0
"""After the start, when what a start has to do is done."""
EVERY_S = 3600.0


def prune_once(engine: sa.Engine, days: float, now: float) -> Pruned | None:
    """Delete what is older than `days` at `now` (unix seconds). Blocks; a database that is away is logged: None."""
    try:
        gone = prune(engine, retention_ends(now, days))
    except SQLAlchemyError as error:
        log.warning("old rows were not deleted, and are tried again: %s", one_line(error))
        return None
    if gone.windows or gone.requests:
        log.info("deleted %d windows and %d requests older than %g days", gone.windows, gone.requests, days)
    return gone


async def follow(
    engine: sa.Engine,
    days: float,
    is_in_charge: Callable[[], bool],
    *,
    first_s: float = FIRST_S,
    every_s: float = EVERY_S,
) -> None:
    """Prune once an hour beside the event loop until this process is not in charge. days 0: everything is kept."""
    if not days:
        return
    await asyncio.sleep(first_s)
    while is_in_charge():
        await asyncio.to_thread(prune_once, engine, days, time.time())
        await asyncio.sleep(every_s)

"""Prices of a running system: follows the price sheet's file, keeps its sheets on record, and closes hours.

A changed good file is in force at the second look that finds it (so never half written); a bad one is reported once and
the last good sheet stays. Once an hour what ended hours cost goes on record, by the sheet in force.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from controlplane.finops.pricing import PriceError, PriceSheet, load_prices
from controlplane.store.engine import StoreError, one_line
from controlplane.store.price_book import save_prices, sheets_in_force, stored_prices
from controlplane.store.price_history import close_hours
from controlplane.watched_file import WatchedFile

log = logging.getLogger(__name__)

POLL_S = 1.0
FIRST_CLOSE_S = 30.0
"""After the start, when what a start has to do is done."""
CLOSE_EVERY_S = 3600.0
FILE = "price file"
"""Who put a sheet in force that came from the file, in the history."""


class PriceWatch:
    """One price sheet file. sheet: the last good one; an empty one before that, as nothing is priced then."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sheet = PriceSheet()
        self.problems: tuple[str, ...] = ()
        self.has_sheet = False
        self._file = WatchedFile(path, is_known=True)
        self._load()

    def poll(self) -> bool:
        """Whether another good sheet is in force now. Blocks for a stat, and for a read after a change."""
        if not self._file.has_changed():
            return False
        before = self.sheet.revision if self.has_sheet else ""
        return self._load() and self.sheet.revision != before

    def keep(self, engine: sa.Engine, now: float, closes: bool = True) -> None:
        """Put the sheet on record, and what ended hours cost by it. Blocks; a database that is away is logged.

        Without a good file the sheet in the database is the one in force; without that, nothing goes on record.
        """
        try:
            if self.has_sheet:
                save_prices(engine, self.sheet, by=FILE, at=now)
            elif not sheets_in_force(engine, limit=1):
                return
            if closes:
                close_hours(engine, self.sheet if self.has_sheet else stored_prices(engine), now)
        except (SQLAlchemyError, StoreError, PriceError) as error:
            log.warning("prices did not go on record, and are tried again: %s", one_line(error))

    def _load(self) -> bool:
        try:
            self.sheet = load_prices(self.path)
        except PriceError as error:
            self.problems = error.problems
            log.warning("the price sheet is not used: %s", "; ".join(self.problems[:5]))
            return False
        self.problems = ()
        self.has_sheet = True
        return True


async def follow(
    watch: PriceWatch,
    engine: sa.Engine,
    is_in_charge: Callable[[], bool],
    *,
    every_s: float | None = None,
    first_close_s: float = FIRST_CLOSE_S,
) -> None:
    """Poll beside the event loop until this process is not in charge; a new sheet goes on record, hours are closed.

    every_s: between two looks; POLL_S where it is not given.
    """
    close_at = time.monotonic() + first_close_s
    while is_in_charge():
        await asyncio.sleep(POLL_S if every_s is None else every_s)
        is_new = await asyncio.to_thread(watch.poll)
        if is_new:
            log.info("price sheet %s is in force", watch.sheet.revision)
        closes = time.monotonic() >= close_at
        if (is_new or closes) and is_in_charge():
            await asyncio.to_thread(watch.keep, engine, time.time(), closes)
        if closes:
            close_at = time.monotonic() + CLOSE_EVERY_S

"""The controller's API keys: read from the ledger whenever they were changed, and kept where it cannot be read."""

from __future__ import annotations

import asyncio
import time

import sqlalchemy as sa
import structlog

from controlplane.keys.ring import KeyRing
from controlplane.store.api_keys import last_event, read_ring
from controlplane.store.engine import one_line

log = structlog.get_logger(__name__)

LOOK_S = 0.25
"""Between two looks for a change. With an endpoint's question each second, a revoked key is refused within 2 s."""
READ_AGAIN_S = 15.0
"""After which all is read without a change on record: a ledger may be put back from a copy."""


class KeyWatch:
    """ring: the keys as last read; None before the first time."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._event = -1
        self._read_at = 0.0
        self._is_away = False
        self.ring: KeyRing | None = None

    def look(self) -> None:
        """Read the keys where they were changed since. A ledger that is away leaves what is known."""
        try:
            event = last_event(self._engine)
            if event != self._event or time.monotonic() >= self._read_at + READ_AGAIN_S:
                self.ring = read_ring(self._engine, time.time())
                self._event, self._read_at = event, time.monotonic()
        except Exception as error:
            if not self._is_away:
                log.warning("API keys cannot be read; those known last stay", reason=one_line(error))
            self._is_away = True
        else:
            self._is_away = False

    async def follow(self) -> None:
        """Look for ever, on another thread."""
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(LOOK_S)

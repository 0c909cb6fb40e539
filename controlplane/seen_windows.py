"""Which windows were reported before: a report that comes twice must count once."""

from __future__ import annotations

from controlplane.telemetry import WindowId

REMEMBERED_WINDOWS, REMEMBERED_WORKERS = 4096, 1024
"""How many windows of one worker's start, and how many worker starts, are known again when they come twice."""


class SeenWindows:
    """Knows a window again. Bounded: of each worker's start only the newest REMEMBERED_WINDOWS sequence numbers.

    Anything older than those counts as seen: it is minutes late, and the journal has it or will never miss it.
    """

    def __init__(self) -> None:
        self._by_start: dict[tuple[str, int], tuple[int, set[int]]] = {}

    def add(self, window: WindowId) -> bool:
        """Whether this is the first time that `window` is seen."""
        start = (window.worker, window.epoch)
        newest, known = self._by_start.pop(start, (window.sequence, set()))
        self._by_start[start] = (max(newest, window.sequence), known)  # last again: the start heard from most lately
        if len(self._by_start) > REMEMBERED_WORKERS:
            del self._by_start[next(iter(self._by_start))]
        if window.sequence in known or window.sequence <= newest - REMEMBERED_WINDOWS:
            return False
        known.add(window.sequence)
        if len(known) > 2 * REMEMBERED_WINDOWS:
            known.difference_update([s for s in known if s <= newest - REMEMBERED_WINDOWS])
        return True

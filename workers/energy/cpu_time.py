"""A process's part of the CPU time of its machine (Linux): whose energy a whole-machine counter shows."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

PROC_STAT = Path("/proc/stat")
BUSY_COLUMNS = (1, 2, 3, 6, 7)
"""Of the line `cpu`: user, nice, system, irq, softirq. Guests are in user; idle, iowait and steal are not busy."""


class CpuTime:
    """CPU time of this process and of everything on the machine, nanoseconds since some fixed moment."""

    def __init__(self, stat: Path = PROC_STAT, own_ns: Callable[[], int] = time.process_time_ns) -> None:
        self._stat = stat
        self._own_ns = own_ns
        self._tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")

    def read(self) -> tuple[int, int]:
        """CPU time of (the process, the machine). Raises OSError or ValueError where the machine's cannot be read."""
        first = self._stat.read_text(encoding="ascii").partition("\n")[0].split()
        if len(first) <= max(BUSY_COLUMNS) or first[0] != "cpu":
            raise ValueError(f"{self._stat}: the first line does not list CPU time")
        return self._own_ns(), sum(int(first[column]) for column in BUSY_COLUMNS) * self._tick_ns

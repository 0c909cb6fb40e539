"""Samples an energy meter on a thread of its own; the engine's thread only picks up what is there."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from controlplane.telemetry import EnergySource
from workers.energy.base import EnergyReader, EnergyReading, Spent
from workers.energy.grid import WindowGrid
from workers.energy.idle import IdlePower
from workers.energy.integral import Integral
from workers.energy.windows import WindowEnergy

log = logging.getLogger(__name__)

STALE_PERIODS = 3
"""Without a sample for so many periods the energy is not known; what such a stretch used belongs to no window."""
LATE_START_S = 0.25
"""A meter that began so long after the first window did does not know that window's energy."""


class EnergySampler:
    """One worker's energy meter.

    open_reader: finds the meter, on the sampling thread, because a driver in a bad state may hang there, too. window_s:
    the usual length of a window. started_at: seconds at the start of the first window, by the clock of read_energy's
    `now`. idle_w: watts with nothing running, None to learn them. clock: monotonic seconds.
    """

    def __init__(
        self,
        open_reader: Callable[[], EnergyReader],
        window_s: float,
        started_at: float,
        idle_w: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_reader = open_reader
        self._clock = clock
        self._began_at = clock()
        self._grid = WindowGrid(window_s, self._began_at)
        self._stale_s = STALE_PERIODS * self._grid.period_s
        self._windows = WindowEnergy(started_at, self._began_at, self._stale_s, IdlePower(idle_w))
        self._source: EnergySource = "none"
        self._integral: Integral | None = None
        self._said = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kadence-energy", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 1.0) -> None:
        """Ask the thread to end and wait a moment; one that hangs in a driver is left behind."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    @property
    def source(self) -> EnergySource:
        """`none` until the meter was found."""
        return self._source

    @property
    def dropped(self) -> Mapping[str, int]:
        """Windows that the meter had no answer for, by reason, since the start."""
        return self._windows.dropped

    def read_energy(self, now: float, is_idle: bool) -> EnergyReading:
        """What the window that closes now used (see EnergyReading). For the engine's thread; no I/O."""
        at = self._clock()
        self._grid.closed(at)
        return self._windows.close(self._integral, self._source, now, at, is_idle)

    def _run(self) -> None:
        try:
            reader = self._open_reader()
            log.info("energy source %s: %s", reader.source, reader.detail)
            if reader.source == "none":
                return
            try:
                self.begin(reader)
                while not self._stopping.wait(self._wait_s()):
                    self.sample(reader)
            finally:
                reader.close()
        except Exception:
            log.exception("the energy meter failed; windows have no energy from here on")

    def begin(self, reader: EnergyReader) -> None:
        """Take the first look. One that comes late begins within a window, whose energy is then not known."""
        spent = self._look(reader)
        at = self._clock()
        is_late = at - self._began_at > LATE_START_S
        self._integral = Integral(at, gaps=int(is_late), gap=spent.gap or "begin")
        self._source = reader.source

    def sample(self, reader: EnergyReader) -> None:
        """Take a look and add the stretch that it ends. On the sampling thread."""
        spent = self._look(reader)
        # The time after the look, so that one which hung shows as the gap it was.
        at, integral = self._clock(), self._integral or Integral(self._began_at)
        if (seconds := at - integral.at) > self._stale_s:
            spent = Spent(None, spent.source, "stalled", f"no sample for {seconds:.1f} s")
        self._say(reader, spent)
        self._integral = integral.add(spent, at, reader.source)

    def _look(self, reader: EnergyReader) -> Spent:
        try:
            return reader.spent(self._clock())
        except Exception as e:  # a reader that misbehaves must not end the thread: the next look may do better
            return Spent(None, reader.source, "lost", f"{type(e).__name__}: {e}")

    def _say(self, reader: EnergyReader, spent: Spent) -> None:
        """One log line whenever what a meter says of itself changes."""
        about = spent.detail or ("" if spent.source == reader.source else f"measured by {spent.source}")
        if about != self._said:
            (log.warning if spent.energy_uj is None else log.info)("energy: %s", about or f"by {spent.source} again")
            self._said = about

    def _wait_s(self) -> float:
        now = self._clock()
        return max(self._grid.next_sample(now if self._integral is None else self._integral.at) - now, 0.0)

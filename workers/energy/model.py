"""Energy by a model that the operator configured: idle_w + utilisation x (tdp_w - idle_w). An estimate, labelled so."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from controlplane.telemetry import EnergySource
from workers.energy.base import Spent


@dataclass(frozen=True, slots=True)
class PowerModel:
    """Watts of what one worker runs on: with nothing running, and fully used."""

    idle_w: float
    tdp_w: float

    def watts(self, utilisation: float) -> float:
        return self.idle_w + utilisation * (self.tdp_w - self.idle_w)


class ModelReader:
    """utilisation: of the stretch since the call before, 0 to 1, from its length in seconds; None = cannot be told."""

    source: EnergySource = "model"

    def __init__(self, model: PowerModel, utilisation: Callable[[float], float | None], why: str) -> None:
        self._model = model
        self._utilisation = utilisation
        self._last: float | None = None
        self.detail = f"an estimate from {model.idle_w:g} W idle to {model.tdp_w:g} W full, as configured; {why}"

    def spent(self, now: float) -> Spent:
        before, self._last = self._last, now
        utilisation = self._utilisation(0.0 if before is None else now - before)
        if before is None:
            return Spent(None, self.source, "begin", "the first sample")
        if utilisation is None:
            return Spent(None, self.source, "lost", "the device does not tell its utilisation")
        return Spent(round(self._model.watts(utilisation) * (now - before) * 1e6), self.source)

    def close(self) -> None:
        pass


def cpu_utilisation(threads: int, own_ns: Callable[[], int] = time.process_time_ns) -> Callable[[float], float | None]:
    """CPU time of the process in the time of its `threads`, at most 1."""
    last = own_ns()

    def since_last(seconds: float) -> float | None:
        nonlocal last
        before, last = last, own_ns()
        return min((last - before) / 1e9 / seconds / threads, 1.0) if seconds > 0 else None

    return since_last


def gpu_utilisation(handle: Any) -> Callable[[float], float | None]:
    """NVML's share of time in which the board ran a kernel (of its last sample period)."""
    import pynvml

    def now(_seconds: float) -> float | None:
        try:
            return min(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100, 1.0)
        except pynvml.NVMLError:
            return None

    return now

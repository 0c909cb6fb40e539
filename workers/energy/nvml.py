"""Energy of an NVIDIA GPU through NVML (nvidia-ml-py).

`counter`: nvmlDeviceGetTotalEnergyConsumption, millijoules since the driver was loaded (Volta or newer); it moves about
every 100 ms, so stretches of a second or more are meant. `power`: where the counter does not answer, the board's power
(milliwatts) integrated by trapezoids; good to a few percent at one sample a second. A board whose counter comes and
goes is measured by either, stretch by stretch, so nothing is counted twice.

Both are of the whole board. A MIG slice, which shares one, is not measured at all; of a board with several compute
processes each is given an equal part, the largest number seen at the two ends of a stretch deciding.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pynvml

from controlplane.telemetry import EnergySource
from workers.energy.base import Spent

REOPEN_S = 5.0
"""Between two attempts at a board that is lost: it, or its driver, may come back."""
MOST_W = 10_000
"""No board draws more: an answer that says so is none, and its window would be refused with all that is in it."""


class NvmlUnavailable(RuntimeError):
    """No energy can be read from that device through NVML; the message says why."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """One look at a board. at: monotonic seconds. None: it did not answer. processes: 0 where they cannot be seen."""

    at: float
    energy_mj: int | None
    power_mw: int | None
    processes: int


class NvmlReader:
    """The energy of one board. It is found again by its UUID, so a board that is gone is never taken for another."""

    def __init__(self, handle: Any, name: int | str, source: EnergySource) -> None:
        self.source: EnergySource = source
        kind = "energy counter" if source == "counter" else "power, integrated (it has no energy counter),"
        self.detail = f"NVML {kind} of board {name}"
        self._handle: Any | None = handle
        self._uuid = pynvml.nvmlDeviceGetUUID(handle)
        self._last: _Seen | None = None
        self._retry_at = 0.0
        self._trouble = ""

    def spent(self, now: float) -> Spent:
        if self._handle is None and not self._reopen(now):
            return Spent(None, self.source, "lost", self._trouble)
        # Forgotten before the look, so that one which raises costs its stretch and gives none of it to the next.
        before, self._last = self._last, None
        seen = self._last = self._look(now)
        if seen is None:
            self._give_up(now)
            return Spent(None, self.source, "lost", self._trouble)
        if before is None:
            return Spent(None, self.source, "begin", "the first sample")
        return self._between(before, seen)

    def close(self) -> None:
        if self._handle is not None:
            self._handle = None
            _shut_down()

    def _look(self, now: float) -> _Seen | None:
        self._trouble = ""
        energy = self._ask("counter", pynvml.nvmlDeviceGetTotalEnergyConsumption)
        power = self._ask("power", pynvml.nvmlDeviceGetPowerUsage)
        if power is not None and power > MOST_W * 1000:
            self._trouble, power = f"power: {power / 1000:.0f} W is no board's", None
        return None if energy is None and power is None else _Seen(now, energy, power, _processes(self._handle))

    def _ask(self, what: str, question: Callable[[Any], int]) -> int | None:
        try:
            return question(self._handle)
        except pynvml.NVMLError as e:
            self._trouble = "; ".join(filter(None, (self._trouble, f"{what}: {e}")))
            return None

    def _between(self, before: _Seen, after: _Seen) -> Spent:
        # A process that came or went within the stretch counts for all of it: rather too little than counted twice.
        parts = max(before.processes, after.processes, 1)
        shared = f"an equal part: {parts} processes use this board" if parts > 1 else ""
        if before.energy_mj is not None and after.energy_mj is not None:
            used = (after.energy_mj - before.energy_mj) * 1000
            if used < 0:
                return Spent(None, "counter", "reset", "the energy counter went back: driver reloaded or board reset")
            # A second more, as the counter may lag behind by its period.
            if used > MOST_W * 1e6 * (after.at - before.at + 1):
                return Spent(None, "counter", "reset", f"the energy counter leapt by {used / 1e6:.0f} J")
            return Spent(used // parts, "counter", None, shared, parts > 1)
        if before.power_mw is not None and after.power_mw is not None:
            # mW x s = mJ
            used = round((after.at - before.at) * (before.power_mw + after.power_mw) / 2 * 1000)
            return Spent(used // parts, "power", None, shared, parts > 1)
        return Spent(None, self.source, "lost", f"neither answered twice in a row: {self._trouble}")

    def _give_up(self, now: float) -> None:
        self._handle, self._retry_at = None, now + REOPEN_S
        _shut_down()

    def _reopen(self, now: float) -> bool:
        if now < self._retry_at:
            return False
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as e:
            self._trouble, self._retry_at = f"no NVIDIA driver: {e}", now + REOPEN_S
            return False
        try:
            self._handle = whole_board(self._uuid)
        except (pynvml.NVMLError, NvmlUnavailable) as e:
            self._trouble = str(e)
            self._give_up(now)
            return False
        return True


def open_nvml(device: str, uuid: str | None = None) -> NvmlReader:
    """The meter of torch device `cuda` or `cuda:N`, whose UUID CUDA says is `uuid`. Raises NvmlUnavailable."""
    with opened(device, uuid) as (handle, name):
        return NvmlReader(handle, name, _best_source(handle))


@contextlib.contextmanager
def opened(device: str, uuid: str | None = None) -> Iterator[tuple[Any, int | str]]:
    """NVML started, and (handle, name) of that device's whole board; on failure NVML is shut down again.

    Without a UUID that NVML knows, CUDA_VISIBLE_DEVICES tells the board's index. Raises NvmlUnavailable, also for what
    NVML refuses inside the block.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as e:
        raise NvmlUnavailable(f"no NVIDIA driver: {e}") from e
    try:
        name = uuid if uuid and _is_known(uuid) else board(device, os.environ.get("CUDA_VISIBLE_DEVICES"))
        yield whole_board(name), name
    except (pynvml.NVMLError, NvmlUnavailable) as e:
        _shut_down()
        raise NvmlUnavailable(f"NVML cannot measure {device}: {e}") from e


def board(device: str, visible: str | None) -> int | str:
    """NVML's name of a torch device: the board's index or its UUID. Raises NvmlUnavailable.

    visible: CUDA_VISIBLE_DEVICES, which renumbers devices for CUDA and not for NVML. Indices agree when
    CUDA_DEVICE_ORDER=PCI_BUS_ID or all boards are alike.
    """
    _, _, number = device.partition(":")
    index = int(number or 0)
    if not visible:
        return index
    names = [name.strip() for name in visible.split(",")]
    if index >= len(names):
        raise NvmlUnavailable(f"CUDA_VISIBLE_DEVICES={visible} has no device {index}")
    if names[index].startswith("MIG-"):
        raise NvmlUnavailable("it is a MIG slice, and the counter is of the whole board")
    return int(names[index]) if names[index].isdigit() else names[index]


def whole_board(name: int | str) -> Any:
    """NVML's handle of a board that is not cut into MIG slices. Raises NVMLError or NvmlUnavailable."""
    if isinstance(name, int):
        if name >= (count := pynvml.nvmlDeviceGetCount()):
            raise NvmlUnavailable(f"there is no board {name}, only {count}")
        handle = pynvml.nvmlDeviceGetHandleByIndex(name)
    else:
        handle = pynvml.nvmlDeviceGetHandleByUUID(name)
    if _is_mig(handle):
        raise NvmlUnavailable("the board is in MIG mode, and the counter is of the whole board")
    return handle


def _is_known(uuid: str) -> bool:
    """Whether NVML has a board of that UUID: a MIG slice has one that is not a board's."""
    try:
        pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError:
        return False
    return True


def _best_source(handle: Any) -> EnergySource:
    try:
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        return "counter"
    except pynvml.NVMLError:
        pynvml.nvmlDeviceGetPowerUsage(handle)
        return "power"


def _is_mig(handle: Any) -> bool:
    try:
        current, _pending = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError:
        return False  # a board or driver that does not know MIG
    return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)


def _processes(handle: Any) -> int:
    """Compute processes of a board, clients of MPS included; 0 where NVML does not tell."""
    pids: set[int] = set()
    for ask in (pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetMPSComputeRunningProcesses):
        with contextlib.suppress(pynvml.NVMLError):
            pids |= {process.pid for process in ask(handle)}
    return len(pids)


def _shut_down() -> None:
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()

"""Energy of an NVIDIA GPU through NVML (nvidia-ml-py).

`counter`: nvmlDeviceGetTotalEnergyConsumption, millijoules since the driver was loaded (Volta or newer); it moves about
every 100 ms, so windows of a second or more are meant. `power`: where there is no counter, the board's power
(milliwatts) integrated between readings, by trapezoids; good to a few percent if it is read once a second.
Both are of the whole board, so a MIG slice, which shares one, is not measured at all.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

import pynvml

from controlplane.telemetry import EnergySource
from workers.energy.base import Reading


class NvmlUnavailable(RuntimeError):
    """No energy can be read from that device through NVML; the message says why."""


class CounterReader:
    """The energy counter of one board."""

    source: EnergySource = "counter"

    def __init__(self, handle: Any, detail: str) -> None:
        self._handle = handle
        self.detail = detail

    def read(self) -> Reading:
        try:
            return Reading(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) * 1000, self.source)
        except pynvml.NVMLError:
            return Reading(None, self.source)

    def close(self) -> None:
        _shut_down()


class PowerReader:
    """Power of one board, integrated over the time between readings; the first reading is 0."""

    source: EnergySource = "power"

    def __init__(self, handle: Any, detail: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._handle = handle
        self.detail = detail
        self._clock = clock
        self._energy_uj = 0
        self._last: tuple[float, int] | None = None  # seconds, milliwatts

    def read(self) -> Reading:
        try:
            now, power = self._clock(), pynvml.nvmlDeviceGetPowerUsage(self._handle)
        except pynvml.NVMLError:
            self._last = None
            return Reading(None, self.source)
        # After a failed reading nothing is added: both windows that touch it are None (energy_between).
        if self._last is not None:
            then, before = self._last
            self._energy_uj += round((now - then) * (before + power) / 2 * 1000)  # mW x s = mJ
        self._last = (now, power)
        return Reading(self._energy_uj, self.source)

    def close(self) -> None:
        _shut_down()


def open_nvml(device: str, visible: str | None = None) -> CounterReader | PowerReader:
    """The meter of torch device `cuda` or `cuda:N`. Raises NvmlUnavailable.

    visible: CUDA_VISIBLE_DEVICES, which renumbers devices for CUDA and not for NVML (None: as in the environment).
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as e:
        raise NvmlUnavailable(f"no NVIDIA driver: {e}") from e
    try:
        return _open(board(device, visible))
    except (pynvml.NVMLError, NvmlUnavailable) as e:
        _shut_down()
        raise NvmlUnavailable(f"NVML cannot measure {device}: {e}") from e


def board(device: str, visible: str | None) -> int | str:
    """NVML's name of a torch device: the board's index or its UUID. Raises NvmlUnavailable.

    Indices agree when CUDA_DEVICE_ORDER=PCI_BUS_ID or all boards are alike.
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


def _open(name: int | str) -> CounterReader | PowerReader:
    if isinstance(name, int):
        if name >= (count := pynvml.nvmlDeviceGetCount()):
            raise NvmlUnavailable(f"there is no board {name}, only {count}")
        handle = pynvml.nvmlDeviceGetHandleByIndex(name)
    else:
        handle = pynvml.nvmlDeviceGetHandleByUUID(name)
    if _is_mig(handle):
        raise NvmlUnavailable("the board is in MIG mode, and the counter is of the whole board")
    try:
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        return CounterReader(handle, f"NVML energy counter of board {name}")
    except pynvml.NVMLError:
        pynvml.nvmlDeviceGetPowerUsage(handle)
        return PowerReader(handle, f"NVML power of board {name}, integrated (it has no energy counter)")


def _is_mig(handle: Any) -> bool:
    try:
        current, _pending = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError:
        return False  # a board or driver that does not know MIG
    return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)


def _shut_down() -> None:
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()

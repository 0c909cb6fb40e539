"""Energy meters, and the choice among them."""

from __future__ import annotations

import logging

from workers.energy.base import EnergyMeter, EnergyReader, Reading, energy_between
from workers.energy.none import NoEnergyReader

__all__ = ["EnergyMeter", "EnergyReader", "NoEnergyReader", "Reading", "energy_between", "select_energy_reader"]

log = logging.getLogger(__name__)


def select_energy_reader(device: str) -> EnergyMeter:
    """The best meter for a torch device (`cpu`, `cuda`, `cuda:1`). Probes once, logs once, never raises.

    Where nothing can be measured the reader's source is `none` and every reading None.
    """
    reader = _probe(device)
    log.info("energy source %s: %s", reader.source, reader.detail)
    return EnergyMeter(reader)


def _probe(device: str) -> EnergyReader:
    if not device.startswith("cuda"):
        return NoEnergyReader(f"no energy meter for device {device}")
    try:
        from workers.energy.nvml import NvmlUnavailable, open_nvml
    except ImportError as e:
        return NoEnergyReader(f"nvidia-ml-py is not installed: {e}")
    try:
        return open_nvml(device)
    except NvmlUnavailable as e:
        return NoEnergyReader(str(e))
    except Exception as e:  # a broken driver must not stop a worker
        return NoEnergyReader(f"probing {device} failed: {type(e).__name__}: {e}")

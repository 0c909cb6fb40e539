"""Energy meters, and the choice among them."""

from __future__ import annotations

from functools import partial

from controlplane.settings import Settings
from workers.energy.base import EnergyReader, EnergyReading, Gap, Spent
from workers.energy.model import ModelReader, PowerModel, cpu_utilisation, gpu_utilisation
from workers.energy.none import NoEnergyReader
from workers.energy.rapl import RaplUnavailable, open_rapl
from workers.energy.sampler import EnergySampler

__all__ = [
    "EnergyReader",
    "EnergyReading",
    "EnergySampler",
    "Gap",
    "NoEnergyReader",
    "Spent",
    "energy_sampler",
    "open_reader",
]


def energy_sampler(settings: Settings, device: str, started_at: float, uuid: str | None = None) -> EnergySampler:
    """The energy meter of a worker on a torch device (`cpu`, `cuda`, `cuda:1`), not yet started.

    started_at: monotonic seconds as the first window opens. uuid: the GPU's, as NVML writes it.
    """
    return EnergySampler(
        partial(open_reader, settings, device, uuid), settings.tick_s, started_at, settings.energy_idle_w
    )


def open_reader(settings: Settings, device: str, uuid: str | None = None) -> EnergyReader:
    """The best meter there is: GPU counter, GPU power, RAPL, then the operator's model. Never raises.

    Where nothing can be measured and no model is configured, the reader's source is `none` and its detail says why.
    """
    measured = _measured(settings, device, uuid)
    idle_w, tdp_w = settings.energy_model_idle_w, settings.energy_model_tdp_w
    if measured.source != "none" or idle_w is None or tdp_w is None:
        return measured
    model, why = PowerModel(idle_w, tdp_w), f"not measured: {measured.detail}"
    if device.startswith("cuda"):
        return _gpu_model(model, device, uuid, why)
    return ModelReader(model, cpu_utilisation(settings.worker_threads), why)


def _measured(settings: Settings, device: str, uuid: str | None) -> EnergyReader:
    if not device.startswith("cuda"):
        try:
            return open_rapl(settings.energy_powercap, settings.energy_idle_w or 0.0, settings.replicas)
        except RaplUnavailable as e:
            return NoEnergyReader(str(e))
    try:
        from workers.energy.nvml import NvmlUnavailable, open_nvml
    except ImportError as e:
        return NoEnergyReader(f"nvidia-ml-py is not installed: {e}")
    try:
        return open_nvml(device, uuid)
    except NvmlUnavailable as e:
        return NoEnergyReader(str(e))
    except Exception as e:  # a broken driver must not stop a worker
        return NoEnergyReader(f"probing {device} failed: {type(e).__name__}: {e}")


def _gpu_model(model: PowerModel, device: str, uuid: str | None, why: str) -> EnergyReader:
    """By the board's utilisation, which it may tell even where it tells no energy; without it there is no estimate."""
    try:
        from workers.energy.nvml import opened

        with opened(device, uuid) as (handle, _):
            return ModelReader(model, gpu_utilisation(handle), why)
    except Exception as e:
        return NoEnergyReader(f"{why}; no estimate either, the board's utilisation is not known: {e}")

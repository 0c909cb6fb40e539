"""The NVML meter through the real nvidia-ml-py, on a small library that speaks NVML's ABI and answers by script."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).with_name("nvml.c")

READ = """
import json, sys
from workers.energy import select_energy_reader
meter = select_energy_reader(sys.argv[1])
windows = [meter.since_last() for _ in range(int(sys.argv[2]))]
meter.close()
print(json.dumps({"source": meter.source, "detail": meter.detail, "windows": windows}))
"""

INTEGRATE = """
import json, pynvml
from workers.energy.nvml import PowerReader
pynvml.nvmlInit()
clock = iter([10.0, 11.0, 13.0, 14.0])
reader = PowerReader(pynvml.nvmlDeviceGetHandleByIndex(0), "", clock.__next__)
print(json.dumps([reader.read().energy_uj for _ in range(4)]))
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a libnvidia-ml.so.1 built from nvml.c."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", SOURCE], check=True)
    return folder


def python(library: Path | None, script: str, *arguments: str, **answers: str) -> Any:
    """What the script prints, in a process that finds that NVML; answers: KADENCE_NVML_* and others by name."""
    hidden = ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    if library is not None:
        environment["LD_LIBRARY_PATH"] = str(library)
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**environment, **answers},
        cwd=Path(__file__).parents[3],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return json.loads(done.stdout)


def read(library: Path | None, windows: int, device: str = "cuda", **answers: str) -> Any:
    return python(library, READ, device, str(windows), **answers)


def test_the_counter_is_read_in_microjoules(library: Path) -> None:
    # The first answer is the probe's, the second the meter's start.
    found = read(library, 3, KADENCE_NVML_ENERGY="0,1000,1250,1250,4000")
    assert found["windows"] == [[250_000, "counter"], [0, "counter"], [2_750_000, "counter"]]


def test_a_counter_that_went_back_drops_its_window_only(library: Path) -> None:
    found = read(library, 3, KADENCE_NVML_ENERGY="0,1000,40,90,190")
    assert found["windows"] == [[None, "counter"], [50_000, "counter"], [100_000, "counter"]]


def test_a_board_that_is_lost_for_a_while_is_unknown_for_that_while(library: Path) -> None:
    found = read(library, 3, KADENCE_NVML_ENERGY="0,1000,lost,1500,1600")
    assert found["windows"] == [[None, "counter"], [None, "counter"], [100_000, "counter"]]


def test_a_board_without_a_counter_is_measured_by_its_power(library: Path) -> None:
    found = read(library, 1, KADENCE_NVML_POWER="100000")
    assert found["source"] == "power"
    assert found["windows"][0][0] >= 0


def test_power_is_integrated_by_trapezoids(library: Path) -> None:
    # 100 W and 200 W for 1 s: 150 J; 200 W for 2 s: 400 J; falling to 0 within 1 s: 100 J.
    found = python(library, INTEGRATE, KADENCE_NVML_POWER="100000,200000,200000,0")
    assert found == [0, 150_000_000, 550_000_000, 650_000_000]


def test_power_adds_nothing_for_a_stretch_it_did_not_see(library: Path) -> None:
    found = python(library, INTEGRATE, KADENCE_NVML_POWER="100000,lost,100000,100000")
    assert found == [0, None, 0, 100_000_000]


def test_a_board_that_supports_neither_is_not_measured(library: Path) -> None:
    found = read(library, 1)
    assert (found["source"], found["windows"]) == ("none", [[None, "none"]])
    assert "Not Supported" in found["detail"]


def test_a_board_in_mig_mode_is_not_measured(library: Path) -> None:
    found = read(library, 1, KADENCE_NVML_ENERGY="1", KADENCE_NVML_MIG="1")
    assert (found["source"], "MIG" in found["detail"]) == ("none", True)


def test_a_driver_that_is_not_loaded_is_no_meter(library: Path) -> None:
    found = read(library, 1, KADENCE_NVML_INIT="9")
    assert (found["source"], "no NVIDIA driver" in found["detail"]) == ("none", True)


def test_a_board_that_is_not_there_is_no_meter(library: Path) -> None:
    found = read(library, 1, "cuda:7", KADENCE_NVML_ENERGY="1")
    assert (found["source"], "there is no board 7, only 2" in found["detail"]) == ("none", True)


def test_the_visible_devices_choose_the_board(library: Path) -> None:
    found = read(library, 1, CUDA_VISIBLE_DEVICES="1", KADENCE_NVML_ENERGY="0,5,6")
    assert (found["windows"], found["detail"]) == ([[1_000, "counter"]], "NVML energy counter of board 1")


def test_a_visible_device_may_be_a_uuid(library: Path) -> None:
    uuid = "GPU-0a1b"
    found = read(library, 1, CUDA_VISIBLE_DEVICES=uuid, KADENCE_NVML_UUID=uuid, KADENCE_NVML_ENERGY="0,5,6")
    assert (found["source"], found["windows"]) == ("counter", [[1_000, "counter"]])


def test_without_an_nvidia_library_cuda_has_no_meter() -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has an NVIDIA driver")
    found = read(None, 1)
    assert (found["source"], found["windows"]) == ("none", [[None, "none"]])

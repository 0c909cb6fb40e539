"""The NVML meter through the real nvidia-ml-py, on a small library that speaks NVML's ABI and answers by script."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workers.energy.nvml import NvmlUnavailable, board

Nvml = Callable[..., Any]

LOOKS = """
from workers.energy.nvml import open_nvml
reader = open_nvml({device!r})
looks = [reader.spent(at) for at in {times}]
reader.close()
found = dict(source=reader.source, detail=reader.detail, uj=[s.energy_uj for s in looks],
             sources=[s.source for s in looks], gaps=[s.gap for s in looks], shared=[s.is_shared for s in looks],
             details=[s.detail for s in looks])
"""

OPEN = """
from controlplane.settings import Settings
from workers.energy import open_reader
reader = open_reader(Settings(**{settings}), {device!r}, {uuid!r})
looks = [reader.spent(at) for at in (0.0, 1.0, 3.0)]
reader.close()
found = dict(source=reader.source, detail=reader.detail, uj=[s.energy_uj for s in looks])
"""


def look(nvml: Nvml, *times: float, device: str = "cuda", **answers: str) -> Any:
    """What the reader says at each of those times, of which the first only begins. The probe takes the first answer."""
    return nvml(LOOKS.format(device=device, times=times), **answers)


def opened(
    nvml: Nvml,
    device: str = "cuda",
    settings: dict[str, float] | None = None,
    uuid: str | None = None,
    **answers: str,
) -> Any:
    """What a worker would be given."""
    return nvml(OPEN.format(device=device, settings=settings or {}, uuid=uuid), **answers)


def test_the_counter_is_read_in_microjoules(nvml: Nvml) -> None:
    found = look(nvml, 0, 1, 2, 3, energy="0,1000,1250,1250,4000")
    assert (found["uj"], found["source"]) == ([None, 250_000, 0, 2_750_000], "counter")


def test_a_counter_that_went_back_loses_its_stretch_only(nvml: Nvml) -> None:
    found = look(nvml, 0, 1, 2, 3, energy="0,1000,40,90,190", power="300000")
    assert (found["uj"], found["gaps"]) == ([None, None, 50_000, 100_000], ["begin", "reset", None, None])


def test_a_counter_that_leaps_to_nonsense_and_back_loses_its_stretches_only(nvml: Nvml) -> None:
    # The controller refuses a window of so many joules, and would lose its tokens with it.
    found = look(nvml, 0, 1, 2, 3, 4, energy=f"0,1000,{2**64 - 1},{2**64 - 1},1300,1400")
    assert (found["uj"], found["gaps"][1:]) == ([None, None, 0, None, 100_000], ["reset", None, "reset", None])


def test_a_power_that_no_board_draws_is_no_answer(nvml: Nvml) -> None:
    found = look(nvml, 0, 1, 2, 8, 9, power="100000,100000,4000000000,100000")
    assert (found["uj"], found["gaps"]) == (
        [None, None, None, None, 100_000_000],
        ["begin", "lost", "lost", "begin", None],
    )
    assert "4000000 W" in found["details"][1]


def test_a_look_that_raises_gives_nothing_of_its_stretch_to_the_next(nvml: Nvml) -> None:
    code = """
import workers.energy.nvml as nvml
from workers.energy.sampler import EnergySampler
now, real, broken = [0.0], nvml._processes, [False]
def processes(handle):
    if broken[0]:
        raise UnicodeDecodeError("utf-8", b"x", 0, 1, "a name that is none")
    return real(handle)
nvml._processes = processes
try:
    reader = nvml.open_nvml("cuda")
    sampler = EnergySampler(lambda: None, 1.0, 0.0, clock=lambda: now[0])
    sampler.begin(reader)
    found = []
    for second in range(1, 5):
        broken[0] = second == 2
        now[0] = float(second)
        sampler.sample(reader)
        found.append(sampler.read_energy(now[0], False).energy_uj)
finally:
    nvml._processes = real
"""
    assert nvml(code, energy="0,1000,2000,4000,8000,16000") == [1_000_000, None, None, 8_000_000]


def test_a_lost_board_is_unknown_until_it_is_back_and_looked_at_twice(nvml: Nvml) -> None:
    found = look(nvml, 0, 1, 2, 6, 7, energy="0,1000,lost,1500,1600")
    assert found["uj"] == [None, None, None, None, 100_000]
    assert found["gaps"] == ["begin", "lost", "lost", "begin", None]
    assert "GPU is lost" in found["details"][1]


def test_a_lost_board_is_not_asked_again_at_every_sample(nvml: Nvml) -> None:
    # Had the looks at 2 and 4 s opened it, the one at 7 s would not be the first.
    assert look(nvml, 0, 1, 2, 4, 7, energy="0,1000,lost,1500")["gaps"][-1] == "begin"


def test_a_reloaded_driver_is_opened_again(nvml: Nvml) -> None:
    found = look(nvml, 0, 1, 7, 13, 14, energy="0,1000,lost,20,80", init="0,9,0")
    assert (found["gaps"], found["uj"][-1]) == (["begin", "lost", "lost", "begin", None], 60_000)
    assert "Driver Not Loaded" in found["details"][2]


def test_a_board_that_comes_back_under_another_index_is_the_same_board(nvml: Nvml) -> None:
    # The other board's counter runs a thousand times as fast.
    assert look(nvml, 0, 1, 7, 8, energy="0,1000,lost,1500,1600", swap="1")["uj"][-1] == 100_000


def test_a_board_that_comes_back_in_mig_mode_is_not_measured(nvml: Nvml) -> None:
    found = look(nvml, 0, 1, 7, 8, energy="0,1000,lost,1500,1600", mig="0,1")
    assert (found["uj"], "MIG" in found["details"][-1]) == ([None] * 4, True)


def test_a_counter_that_fails_is_stood_in_for_by_power_and_nothing_is_counted_twice(nvml: Nvml) -> None:
    # 100 W throughout. The counter is back at the fourth look: that stretch still is power's, the next one its own.
    found = look(nvml, 0, 1, 2, 3, 4, energy="0,1000,lost,lost,301000,401000", power="100000")
    assert found["uj"] == [None, 100_000_000, 100_000_000, 100_000_000, 100_000_000]
    assert found["sources"][1:] == ["power", "power", "power", "counter"]


def test_a_board_without_a_counter_is_measured_by_its_power(nvml: Nvml) -> None:
    assert look(nvml, 0, power="100000")["source"] == "power"


def test_power_is_integrated_by_trapezoids(nvml: Nvml) -> None:
    # 100 W rising to 200 W within 1 s: 150 J; 200 W for 2 s: 400 J; falling to 0 within 1 s: 100 J.
    assert look(nvml, 10, 11, 13, 14, power="100000,100000,200000,200000,0")["uj"] == [
        None, 150_000_000, 400_000_000, 100_000_000,
    ]  # fmt: skip


def test_a_flat_idle_stretch_by_power_is_not_zero(nvml: Nvml) -> None:
    assert look(nvml, 0, 1, 2, power="70000")["uj"] == [None, 70_000_000, 70_000_000]


def test_power_adds_nothing_for_a_stretch_it_did_not_see(nvml: Nvml) -> None:
    assert look(nvml, 0, 1, 7, 8, power="1,100000,lost,100000")["uj"] == [None, None, None, 100_000_000]


def test_with_time_slicing_every_worker_gets_its_part_and_the_board_is_counted_once(nvml: Nvml) -> None:
    # NVIDIA/dcgm-exporter#307: with time-slicing only one of those who share a board got its figures.
    code = """
from workers.energy.nvml import open_nvml
one, other = open_nvml("cuda"), open_nvml("cuda")
looks = [(one.spent(at), other.spent(at)) for at in (0, 1)]
found = [s.energy_uj for s in looks[1]]
"""
    assert nvml(code, energy="0,0,1000,1000,2000,2000", processes="2") == [500_000, 500_000]


def test_a_process_that_came_within_a_stretch_counts_for_all_of_it(nvml: Nvml) -> None:
    found = look(nvml, 0, 1, 2, 3, 4, energy="0,1000,2000,3000,4000,5000", processes="1,1,2,1,1")
    assert found["uj"] == [None, 1_000_000, 500_000, 500_000, 1_000_000]
    assert found["shared"] == [False, False, True, True, False]


def test_clients_of_mps_are_processes_too(nvml: Nvml) -> None:
    assert look(nvml, 0, 1, energy="0,1000,2000", processes="1", mps="4")["uj"][1] == 250_000


def test_a_board_that_supports_neither_is_not_measured(nvml: Nvml) -> None:
    found = opened(nvml)
    assert (found["source"], found["uj"]) == ("none", [None] * 3)
    assert "Not Supported" in found["detail"]


def test_a_board_in_mig_mode_is_not_measured(nvml: Nvml) -> None:
    # NVIDIA/dcgm-exporter#307: the whole board's counter, once for each of its slices.
    found = opened(nvml, energy="1", mig="1")
    assert (found["source"], "MIG" in found["detail"]) == ("none", True)


def test_a_mig_slice_is_not_measured(nvml: Nvml) -> None:
    found = opened(nvml, energy="1", CUDA_VISIBLE_DEVICES="MIG-1")
    assert (found["source"], "MIG slice" in found["detail"]) == ("none", True)


def test_a_driver_that_is_not_loaded_is_no_meter(nvml: Nvml) -> None:
    found = opened(nvml, init="9")
    assert (found["source"], "no NVIDIA driver" in found["detail"]) == ("none", True)


def test_a_board_that_is_not_there_is_no_meter(nvml: Nvml) -> None:
    found = opened(nvml, "cuda:7", energy="1")
    assert (found["source"], "there is no board 7, only 2" in found["detail"]) == ("none", True)


@pytest.mark.parametrize("visible", ["1", "GPU-second"])
def test_the_visible_devices_choose_the_board(nvml: Nvml, visible: str) -> None:
    found = opened(nvml, energy="0,5,6,8", CUDA_VISIBLE_DEVICES=visible)
    assert found["uj"] == [None, 1_000_000, 2_000_000]


def test_cudas_own_uuid_of_the_device_is_believed_before_any_index(nvml: Nvml) -> None:
    found = opened(nvml, uuid="GPU-second", energy="0,5,6,8", CUDA_VISIBLE_DEVICES="0")
    assert (found["uj"], "GPU-second" in found["detail"]) == ([None, 1_000_000, 2_000_000], True)


def test_the_uuid_of_a_slice_is_not_taken_for_another_board(nvml: Nvml) -> None:
    found = opened(nvml, uuid="GPU-of-a-slice", energy="0,5", mig="1")
    assert (found["source"], "MIG mode" in found["detail"]) == ("none", True)


MODEL = {"energy_model_idle_w": 50, "energy_model_tdp_w": 250}


def test_an_unmeasured_board_is_estimated_only_where_a_model_is_configured(nvml: Nvml) -> None:
    # Half used: 150 W for 1 s, then for 2 s.
    found = opened(nvml, settings=MODEL, utilisation="50")
    assert (found["source"], found["uj"]) == ("model", [None, 150_000_000, 300_000_000])
    assert "Not Supported" in found["detail"]


def test_a_measured_board_is_not_estimated(nvml: Nvml) -> None:
    assert opened(nvml, settings=MODEL, utilisation="50", energy="0,1,2,3")["source"] == "counter"


def test_without_its_utilisation_a_board_is_not_estimated_either(nvml: Nvml) -> None:
    found = opened(nvml, settings=MODEL, init="9")
    assert (found["source"], "no estimate either" in found["detail"]) == ("none", True)


def test_a_board_that_stops_telling_its_utilisation_is_unknown_then(nvml: Nvml) -> None:
    assert opened(nvml, settings=MODEL, utilisation="50,unsupported,50")["uj"] == [None, None, 300_000_000]


def test_without_an_nvidia_library_cuda_has_no_meter(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"")
    code = """
from controlplane.settings import Settings
from workers.energy import open_reader
print(open_reader(Settings(), "cuda").detail)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        cwd=Path(__file__).parents[3],
        check=True,
        capture_output=True,
        text=True,
    )
    assert "no NVIDIA driver" in done.stdout


@pytest.mark.parametrize(
    ("device", "visible", "name"),
    [
        ("cuda", None, 0),
        ("cuda:1", "", 1),
        ("cuda:0", "3,1", 3),
        ("cuda:1", "3, 1", 1),
        ("cuda:0", "GPU-aa-bb", "GPU-aa-bb"),
    ],
)
def test_a_torch_device_is_a_board_behind_the_visible_devices(
    device: str, visible: str | None, name: int | str
) -> None:
    assert board(device, visible) == name


@pytest.mark.parametrize(("device", "visible", "says"), [("cuda:2", "0,1", "no device 2"), ("cuda", "MIG-1", "MIG")])
def test_a_device_without_a_board_of_its_own_is_refused(device: str, visible: str, says: str) -> None:
    with pytest.raises(NvmlUnavailable, match=says):
        board(device, visible)

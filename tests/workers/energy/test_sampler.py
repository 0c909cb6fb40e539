"""The sampling thread: nothing it does, or fails to do, reaches the engine's thread as more than a None."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from controlplane.telemetry import EnergySource
from workers.energy import EnergyReading, EnergySampler, NoEnergyReader, Spent

Nvml = Callable[..., Any]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Reader:
    """Says what it is told to."""

    source: EnergySource = "counter"
    detail = "a script"

    def __init__(self, *answers: Spent | Exception) -> None:
        self._answers = iter(answers)
        self.is_closed = False

    def spent(self, now: float) -> Spent:
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.is_closed = True


BEGIN = Spent(None, "counter", "begin")


def joules(value: float) -> Spent:
    return Spent(round(value * 1e6), "counter")


class Sampled:
    """A sampler whose thread is this test."""

    def __init__(self, reader: Reader, found_after_s: float = 0.0) -> None:
        self.clock = Clock()
        self.reader = reader
        self.sampler = EnergySampler(lambda: reader, 1.0, 0.0, clock=self.clock)
        self.clock.now += found_after_s
        self.sampler.begin(reader)

    def sample(self, after_s: float) -> None:
        self.clock.now += after_s
        self.sampler.sample(self.reader)

    def close(self, after_s: float = 0.1) -> EnergyReading:
        self.clock.now += after_s
        return self.sampler.read_energy(self.clock.now - 100, False)


def test_a_window_has_the_energy_of_its_stretches() -> None:
    sampled = Sampled(Reader(BEGIN, joules(30), joules(40)))
    sampled.sample(0.9)
    first = sampled.close()
    sampled.sample(0.9)
    assert (first.energy_uj, sampled.close().energy_uj) == (30_000_000, 40_000_000)


def test_a_meter_that_was_found_late_does_not_know_the_first_window() -> None:
    sampled = Sampled(Reader(BEGIN, joules(30), joules(40)), found_after_s=0.5)
    sampled.sample(0.4)
    first = sampled.close()
    sampled.sample(0.9)
    assert (first.energy_uj, sampled.close().energy_uj) == (None, 40_000_000)
    assert sampled.sampler.dropped == {"begin": 1}


def test_a_look_that_hung_is_a_gap_and_what_it_found_belongs_to_no_window() -> None:
    sampled = Sampled(Reader(BEGIN, joules(30), joules(4_000), joules(50)))
    sampled.sample(0.9)
    readings = [sampled.close()]
    sampled.sample(9.0)
    readings.append(sampled.close())
    sampled.sample(0.9)
    readings.append(sampled.close())
    assert [r.energy_uj for r in readings] == [30_000_000, None, 50_000_000]
    assert sampled.sampler.dropped == {"stalled": 1}


def test_a_reader_that_breaks_down_costs_one_window() -> None:
    sampled = Sampled(Reader(BEGIN, RuntimeError("no such call"), joules(50)))
    sampled.sample(0.9)
    readings = [sampled.close()]
    sampled.sample(0.9)
    readings.append(sampled.close())
    assert [r.energy_uj for r in readings] == [None, 50_000_000]
    assert sampled.sampler.dropped == {"lost": 1}


@pytest.fixture
def started() -> Iterator[Callable[..., EnergySampler]]:
    made: list[EnergySampler] = []

    def start(open_reader: Callable[[], Any], **options: Any) -> EnergySampler:
        sampler = EnergySampler(open_reader, 1.0, 0.0, **options)
        made.append(sampler)
        sampler.start()
        return sampler

    yield start
    for sampler in made:
        sampler.stop()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_where_nothing_can_be_measured_there_is_no_thread_and_no_source(
    started: Callable[..., EnergySampler],
) -> None:
    sampler = started(lambda: NoEnergyReader("no meter"))
    wait_until(lambda: not sampler._thread.is_alive())
    assert (sampler.read_energy(1.0, True), sampler.dropped) == (EnergyReading(None, "none"), {})


def test_the_thread_samples_and_closes_its_reader(started: Callable[..., EnergySampler]) -> None:
    looked: list[float] = []

    class Timed(Reader):
        def spent(self, now: float) -> Spent:
            looked.append(now)
            return joules(1) if looked[1:] else BEGIN

    reader = Timed()
    sampler = started(lambda: reader)
    wait_until(lambda: len(looked) == 2)
    sampler.stop()
    assert 0.74 <= looked[1] - looked[0] < 1.5
    assert reader.is_closed


def test_a_search_for_the_meter_that_hangs_stalls_nobody(started: Callable[..., EnergySampler]) -> None:
    release = threading.Event()

    def search() -> NoEnergyReader:
        release.wait(10)
        return NoEnergyReader("nothing after all")

    sampler = started(search)
    before = time.perf_counter()
    reading = sampler.read_energy(1.0, True)
    took = time.perf_counter() - before
    release.set()
    assert (reading, took < 0.05) == (EnergyReading(None, "none"), True)


def test_a_thread_that_dies_leaves_windows_without_energy(started: Callable[..., EnergySampler]) -> None:
    class Hasty(Clock):
        def __call__(self) -> float:
            self.now += 2.0
            return self.now

    clock, not_an_answer = Hasty(), None
    sampler = started(lambda: Reader(BEGIN, not_an_answer), clock=clock)  # type: ignore[arg-type]
    wait_until(lambda: not sampler._thread.is_alive())
    clock.now += 60
    assert sampler.read_energy(60.0, False) == EnergyReading(None, "counter")
    assert sampler.dropped == {"stalled": 1}


HANG = """
import threading, time
from workers.energy.nvml import open_nvml
from workers.energy.sampler import EnergySampler
now = [100.0]
sampler = EnergySampler(lambda: None, 1.0, 0.0, clock=lambda: now[0])
reader = open_nvml("cuda")
sampler.begin(reader)
thread = threading.Thread(target=sampler.sample, args=(reader,))
thread.start()
windows, longest = [], 0.0
for second in range(1, 6):
    now[0] += 1.0
    before = time.perf_counter()
    windows.append(sampler.read_energy(float(second), False))
    longest = max(longest, time.perf_counter() - before)
is_hung = thread.is_alive()
library.kadence_reset()
thread.join()
found = dict(is_hung=is_hung, longest=longest, windows=[[w.energy_uj, w.source] for w in windows],
             dropped=sampler.dropped)
"""


def test_a_call_that_hangs_in_the_driver_does_not_hold_the_engines_thread(nvml: Nvml) -> None:
    found = nvml(HANG, energy="0,1000,hang")
    assert found["is_hung"]
    assert found["longest"] < 0.05
    assert found["windows"] == [[None, "counter"]] * 5
    assert found["dropped"] == {"begin": 3, "stalled": 2}


WHOLE = """
import pynvml
from workers.energy.nvml import open_nvml
from workers.energy.sampler import EnergySampler
now = [100.0]
sampler = EnergySampler(lambda: None, 1.0, 0.0, clock=lambda: now[0])
reader = open_nvml("cuda")
sampler.begin(reader)
windows = []
for second in range(1, 9):
    now[0] = 100.0 + second - 0.1
    sampler.sample(reader)
    now[0] = 100.0 + second
    windows.append(sampler.read_energy(float(second), second == 1).energy_uj)
found = windows
"""


def test_the_windows_of_a_board_add_up_to_its_counter(nvml: Nvml) -> None:
    counter = [5, 1_000, 1_337, 2_001, 2_001, 9_999, 10_000, 12_345, 13_000, 20_000]
    windows = nvml(WHOLE, energy=",".join(map(str, counter)))
    assert sum(windows) == (counter[-1] - counter[1]) * 1000


SHOWN = """
from prometheus_client.parser import text_string_to_metric_families
from controlplane.telemetry import WindowId, WorkerWindow
from workers.backend import JournalCounts
from workers.energy.nvml import open_nvml
from workers.energy.sampler import EnergySampler
from workers.metrics import MetricsAggregator
from workers.worker_totals import WorkerTotals
from dataclasses import replace
now, totals, metrics = [100.0], WorkerTotals(), MetricsAggregator()
sampler = EnergySampler(lambda: None, 1.0, 0.0, clock=lambda: now[0])
reader = open_nvml("cuda")
sampler.begin(reader)
found = []
for second in range(1, 6):
    now[0] = 100.0 + second - 0.1
    sampler.sample(reader)
    now[0] += 0.1
    energy = sampler.read_energy(float(second), False)
    window = WorkerWindow(
        WindowId("w", 1, second), "tiny", "none", "gpu", second - 1.0, float(second), 0.0, energy.energy_uj,
        energy.source, 1, False, 0.0, 0, 0, 0, 1, (), idle_energy_uj=energy.idle_energy_uj)
    snapshot = replace(totals.add(window), energy_windows_dropped=sampler.dropped)
    metrics.observe([snapshot], [])
    text = metrics.render(JournalCounts()).decode()
    shown = {s.name: s.value for f in text_string_to_metric_families(text) for s in f.samples if "energy" in s.name}
    found.append([shown.get("kadence_energy_joules_total"), shown.get("kadence_energy_windows_dropped_total")])
"""


def test_a_metric_typed_counter_does_not_go_down_when_the_boards_own_counter_does(nvml: Nvml) -> None:
    # NVIDIA/dcgm-exporter#417. The board's counter falls from 3 kJ to 1 J in the third window.
    shown = nvml(SHOWN, energy="0,1000000,2000000,3000000,1000,2000,3000")
    assert shown == [[1000, None], [2000, None], [2000, 1], [2001, 1], [2002, 1]]

"""`kadence bench control`: ways to choose K on a simulated worker, beside one that knows everything."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import platform
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress

from benchmarks.control.ours_checks import ours_checks
from benchmarks.control.profile import Profile, ProfileError, load_profile, recorded_profiles, shipped_profiles
from benchmarks.control.report import csv_header, csv_lines, result, tables
from benchmarks.control.trace import Trace, run_trace
from benchmarks.decode_figures import BenchmarkError, append_lines

CPUINFO = Path("/proc/cpuinfo")
EXIT_USAGE = 2


def control(
    profile: Annotated[
        list[Path] | None, typer.Option(help="Simulated worker, YAML; more than once for several. [the shipped ones]")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Traces of each profile.")] = 20,
    first_seed: Annotated[int, typer.Option(min=0, help="Seed of the first trace; the others follow.")] = 0,
    steps: Annotated[int | None, typer.Option(min=100, help="Steps of a trace. [the profile's]")] = None,
    jobs: Annotated[int, typer.Option(min=0, help="Processes; 0 = one a core.")] = 0,
    change_seeds: Annotated[int, typer.Option(min=0, help="Seeds on which jumps of acceptance are tried too.")] = 3,
    output: Annotated[Path | None, typer.Option(help="CSV file to append a line to for each arm and trace.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Ways to choose K on a simulated worker, beside one that knows everything. Needs no model and no GPU."""
    conditions = machine()
    try:
        profiles = _profiles(profile or (), steps)
        if output is not None:
            _check_output(output, csv_header(conditions))
    except (ProfileError, BenchmarkError) as error:
        typer.echo("\n".join(f"kadence: error: {line}" for line in str(error).splitlines()), err=True)
        raise typer.Exit(EXIT_USAGE) from error
    simulated = [profile for profile in profiles if profile.kind == "simulated"]
    chosen = range(first_seed, first_seed + seeds)
    traces = run_all(profiles, chosen, change_seeds, jobs or os.cpu_count() or 1)
    if output is not None:
        append_lines(output, csv_lines(conditions, traces))
    found = result(conditions, profiles, traces, ours_checks(simulated, chosen[:change_seeds]))
    if as_json:
        typer.echo(json.dumps(found))
        return
    console = Console()
    for table in tables(found):
        # Into a file or a pipe there is no width to fit: keep every column whole.
        Console(width=None if console.is_terminal else 120).print(table)


def _profiles(paths: Sequence[Path], steps: int | None) -> tuple[Profile, ...]:
    profiles = tuple(load_profile(path) for path in paths) or shipped_profiles() + recorded_profiles()
    names = [profile.name for profile in profiles]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ProfileError(f"--profile: two profiles are named {', '.join(twice)}; give them names of their own")
    return profiles if steps is None else tuple(each.model_copy(update={"steps": steps}) for each in profiles)


def _check_output(path: Path, header: Sequence[str]) -> None:
    """Before minutes of work: whether its results will have a place. Raises BenchmarkError."""
    if not path.parent.is_dir():
        raise BenchmarkError(f"--output {path}: there is no folder {path.parent}")
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            there = next(csv.reader(file), None)
        if there is not None and there != list(header):
            raise BenchmarkError(f"--output {path}: has other columns; move it away, or name another file")


def run_all(profiles: Sequence[Profile], seeds: Sequence[int], change_seeds: int, jobs: int) -> list[Trace]:
    """Every profile on every seed, in order, whatever the number of processes."""
    tasks = [(profile, seed, i < change_seeds) for profile in profiles for i, seed in enumerate(seeds)]
    traces = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("traces", total=len(tasks))
        for trace in _run(tasks, min(jobs, len(tasks))):
            traces.append(trace)
            progress.advance(bar)
    return traces


def _run(tasks: Sequence[tuple[Profile, int, bool]], jobs: int) -> Iterator[Trace]:
    if jobs == 1:
        yield from (run_trace(*task) for task in tasks)
        return
    # Spawned, not forked: NumPy's threads do not survive a fork.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(run_trace, *zip(*tasks, strict=True))


def machine() -> dict[str, Any]:
    """What it ran on: the simulation does not depend on it, the times of a tick and a look-up do."""
    lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": named or platform.processor() or platform.machine(),
        "cores": os.cpu_count() or 1,
        "python": platform.python_version(),
        "numpy": np.__version__,
    }

"""The table of what every launch takes of every chip, kept in kernels_resources.csv.

    python -m benchmarks.kernels_resources            # compile every launch for every chip, compare with the table
    python -m benchmarks.kernels_resources --record   # and write the table
    python -m benchmarks.kernels_resources --record --stale   # only what has changed since

A row carries a key of all that went into the compiler. While the key stands the row is true, because the compiler gives
the same code for the same input: so the test suite compiles what has no such row, and one launch of every kernel
besides; this command compiles everything.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import triton
import typer

from benchmarks.kernels_compile import CHIPS, Failure, Resources, all_launches, compile_all, key_of
from kernels.launch import Launch

TABLE = Path(__file__).with_name("kernels_resources.csv")
COLUMNS = tuple(field.name for field in fields(Resources))
COMPARED = ("registers", "shared_bytes", "spills", "scalar_spills", "wide_loads")
RECORD = "python -m benchmarks.kernels_resources --record --stale"

PIECEMEAL: Mapping[str, str] = MappingProxyType(
    {
        "filter_select_kernel": "the few candidates of a row, less than 16 bytes for each lane of the widest warp",
        "gumbel_noise_kernel": "nothing but a seed and a position a row; it writes",
        "write_kv_kernel": "16 rows of 64 half-precision numbers, 8 bytes for each lane of four wide warps",
    }
)
"""Kernels that have nothing to load 16 bytes at a time, though their arguments are aligned, and what they load."""

Pair = tuple[str, str]
"""Name of a launch, name of a chip."""


def all_pairs() -> list[Pair]:
    """Every launch on every chip."""
    return [(name, target) for name in all_launches() for target in CHIPS]


def one_of_every_kernel() -> list[Pair]:
    """The first launch of every kernel, on every chip."""
    first: dict[str, str] = {}
    for name, launch in all_launches().items():
        first.setdefault(launch.kernel.__name__, name)
    return [(name, target) for name in first.values() for target in CHIPS]


def unproven(table: Mapping[Pair, Resources]) -> list[Pair]:
    """What has no row for the source and options of today; a row of another Triton is left at that."""
    launches = all_launches()

    def is_proven(pair: Pair) -> bool:
        row = table.get(pair)
        return row is not None and (row.triton != triton.__version__ or row.key == key_of(launches[pair[0]], pair[1]))

    return [pair for pair in all_pairs() if not is_proven(pair)]


def violations(measured: Iterable[Resources]) -> list[str]:
    """A line for every launch that spills, takes more shared memory than there is, or reads in small pieces."""
    launches, lines = all_launches(), []
    for row in measured:
        place = f"{row.launch} on {row.target}"
        if row.spills:
            lines.append(f"{place} spills registers ({row.spills}); take smaller blocks or more warps")
        if row.shared_bytes > CHIPS[row.target].shared_limit:
            lines.append(f"{place} takes {row.shared_bytes} of {CHIPS[row.target].shared_limit} bytes of shared memory")
        if not row.wide_loads and launches[row.launch].divisible_by_16 and not _is_piecemeal(launches[row.launch]):
            lines.append(f"{place} never loads 16 bytes at once, though its arguments are aligned (see PIECEMEAL)")
    return lines


def changes(table: Mapping[Pair, Resources], measured: Iterable[Resources]) -> list[str]:
    """A line for every number that is not the recorded one; other versions of Triton are not compared."""
    lines = []
    for row in measured:
        recorded = table.get((row.launch, row.target))
        if recorded is None:
            lines.append(f"{row.launch} on {row.target} is not recorded")
        elif recorded.triton == row.triton:
            for name in COMPARED:
                was, now = getattr(recorded, name), getattr(row, name)
                if was != now:
                    lines.append(f"{row.launch} on {row.target}: {name} was {was}, is {now}")
    return lines


def unknown_rows(table: Mapping[Pair, Resources]) -> list[Pair]:
    """Rows of launches that are no more."""
    return sorted(set(table) - set(all_pairs()))


def read_table(path: Path = TABLE) -> dict[Pair, Resources]:
    """The recorded table; empty where there is none."""
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        rows = [_parsed(row) for row in csv.DictReader(file)]
    return {(row.launch, row.target): row for row in rows}


def write_table(rows: Sequence[Resources], path: Path = TABLE) -> None:
    """Write the table, sorted, so that a change is a small difference."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in sorted(rows, key=lambda row: (row.launch, row.target)))


def _parsed(row: Mapping[str, str]) -> Resources:
    return Resources(
        launch=row["launch"],
        target=row["target"],
        registers=int(row["registers"]),
        shared_bytes=int(row["shared_bytes"]),
        spills=int(row["spills"]),
        scalar_spills=int(row["scalar_spills"]),
        wide_loads=row["wide_loads"] == "True",
        triton=row["triton"],
        key=row["key"],
    )


def _is_piecemeal(launch: Launch) -> bool:
    return launch.kernel.__name__ in PIECEMEAL


def main(
    record: Annotated[bool, typer.Option("--record", help="Write the table instead of comparing with it.")] = False,
    only: Annotated[str, typer.Option(help="Only launches whose name begins so.")] = "",
    stale: Annotated[bool, typer.Option("--stale", help="Only launches whose row is not of today's source.")] = False,
    processes: Annotated[int, typer.Option(min=1, help="Compilers at a time.")] = 2,
) -> None:
    """Compile every launch of every operation for every chip; exit code 1 if one breaks a limit or has changed."""
    table, known = read_table(), all_pairs()
    pairs = [pair for pair in (unproven(table) if stale else known) if pair[0].startswith(only)]
    with tempfile.TemporaryDirectory() as cache:
        measured, failures = compile_all(pairs, Path(cache), processes)
    faults = [_refusal(failure) for failure in failures] + violations(measured)
    if record:
        kept = {pair: row for pair, row in table.items() if pair in known and pair not in pairs}
        write_table([*kept.values(), *measured])
    else:
        faults += changes(table, measured)
    for line in faults:
        typer.echo(line, err=True)
    typer.echo(f"{len(measured)} of {len(pairs)} compiled with Triton {triton.__version__}, {len(faults)} faults")
    if faults:
        if not record:
            typer.echo(f"if a change is meant: {RECORD}", err=True)
        raise typer.Exit(1)


def _refusal(failure: Failure) -> str:
    return f"{failure.launch} on {failure.target} does not compile: {failure.message}"


if __name__ == "__main__":
    typer.run(main)

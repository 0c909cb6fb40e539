"""The decode benchmark's figures as they are kept and shown: lines of a CSV, the object of `--json`, tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.decode_checks import Check
from benchmarks.decode_figures import BASELINE, PLAIN, Difference, Row, Spread, append_lines

COLUMNS = (
    "tokens/s", "min-max", "to transformers", "min-max", "to K = 0", "min-max", "acceptance length", "mean K",
    "repeated 8-grams", "text as transformers'",
)  # fmt: skip


def flat(row: Row) -> dict[str, Any]:
    """A row with its spreads as columns, for a CSV."""
    columns: dict[str, Any] = {}
    for name, value in asdict(row).items():
        if name in ("tokens_per_s", "ratio", "ratio_to_k0"):
            columns |= {f"{name}_{part}": value and round(value[part], 3) for part in ("min", "median", "max")}
        else:
            columns[name] = round(value, 4) if isinstance(value, float) else value
    return columns


def append_csv(path: Path, conditions: Mapping[str, Any], rows: Iterable[Row]) -> None:
    """Append `rows` with their conditions. Raises BenchmarkError where the file has other columns."""
    append_lines(path, [{**conditions, **flat(row)} for row in rows])


def result(
    conditions: dict[str, Any], rows: Sequence[Row], checks: Sequence[Check], unequal: Sequence[Difference]
) -> dict[str, Any]:
    """The object that `--json` prints; without speed where texts differ."""
    cells = {(found.arm, found.pair.domain, found.pair.temperature) for found in unequal}
    shown = []
    for row in rows:
        values = asdict(row)
        ratios = {BASELINE: values.pop("ratio"), PLAIN: values.pop("ratio_to_k0")}
        is_equal = (row.arm, row.domain, row.temperature) not in cells
        values |= {
            "cohort": values.pop("domain"),
            "concurrency": 1,
            "ratio_to": {} if unequal else {arm: ratio for arm, ratio in ratios.items() if ratio is not None},
            "greedy_equal": None if row.temperature else is_equal,
            "seeded_equal": is_equal if row.temperature else None,
        }
        if unequal:
            values["tokens_per_s"] = None
        shown.append(values)
    return {
        "machine": conditions,
        "greedy_equal": not any(temperature == 0 for _, _, temperature in cells),
        "seeded_equal": not any(temperature > 0 for _, _, temperature in cells),
        "differences": [str(found) for found in unequal],
        "checks": [] if unequal else [asdict(check) for check in checks],
        "rows": shown,
    }


def print_tables(conditions: Mapping[str, Any], rows: Sequence[Row], checks: Sequence[Check]) -> None:
    """A table for each temperature, and a line for each check."""
    console = Console()
    if not console.is_terminal:
        # Into a file or a pipe there is no width to fit: keep every column whole.
        console = Console(width=200)
    console.print(", ".join(f"{name} {value}" for name, value in conditions.items() if value != ""))
    for temperature in dict.fromkeys(row.temperature for row in rows):
        table = Table(title=_how(temperature))
        table.add_column("domain")
        table.add_column("arm")
        for name in COLUMNS:
            table.add_column(name, justify="right")
        for row in rows:
            if row.temperature == temperature:
                table.add_row(row.domain, row.arm, *_cells(row))
        console.print(table)
    for check in checks:
        console.print(_said(check), highlight=False, soft_wrap=True)


def _cells(row: Row) -> list[str]:
    speed, equal = row.tokens_per_s, row.equal_to_transformers
    return [
        f"{speed.median:.1f}",
        f"{speed.min:.1f}-{speed.max:.1f}",
        *_ratio(row.ratio),
        *_ratio(row.ratio_to_k0),
        "" if row.acceptance_length is None else f"{row.acceptance_length:.2f}",
        "" if row.mean_k is None else f"{row.mean_k:.1f}",
        "" if row.repeated_8grams is None else f"{row.repeated_8grams:.1%}",
        "" if equal is None or row.arm == BASELINE else f"{equal:.0%}",
    ]


def _ratio(ratio: Spread | None) -> list[str]:
    return ["", ""] if ratio is None else [f"{ratio.median:.2f}", f"{ratio.min:.2f}-{ratio.max:.2f}"]


def _said(check: Check) -> str:
    ratio, where = check.ratio, "" if check.cohort is None else f"{check.cohort}, "
    verdict = "holds" if check.holds else "DOES NOT HOLD"
    return (
        f"{check.arm}, {where}{_how(check.temperature)}: {ratio.median:.3f} ({ratio.min:.3f}-{ratio.max:.3f}) of "
        f"{PLAIN}, {check.least:.2f} or more: {verdict}"
    )


def _how(temperature: float) -> str:
    return f"T = {temperature:g}, seeded" if temperature else "greedy"

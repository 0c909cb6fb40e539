"""The fused operations against their definitions, and then against PyTorch: `kadence bench kernels`.

First every case is answered by the fused operation and by its definition on the device. Only if all agree is anything
timed: the fused operation, the plainest batched PyTorch that does its work, and torch.compile of that, taking turns.
A case's fraction of copy is the bytes that any implementation must move, over its time, over the speed of a large copy
on the same device.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
import warnings
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

if TYPE_CHECKING:
    from benchmarks.kernels_cases import Case, Prepared, Size

NO_ACCELERATOR = (
    "no CUDA or ROCm device is here, so nothing can be timed; --device cpu checks the operations in the interpreter"
)


@dataclass(frozen=True, slots=True)
class Row:
    """One case. Times in microseconds, medians; None where nothing was timed.

    speedup_*: paired, round by round. fraction_of_copy: minimal_bytes / us over the copy speed of the device.
    """

    op: str
    shape: str
    backend: str
    correct: bool
    minimal_bytes: int
    us: float | None = None
    eager_us: float | None = None
    compiled_us: float | None = None
    fraction_of_copy: float | None = None
    speedup_over_eager: float | None = None
    speedup_over_eager_min: float | None = None
    speedup_over_eager_max: float | None = None
    speedup_over_compiled: float | None = None


def kernels(
    op: Annotated[str | None, typer.Option(help="Only this operation, such as verify.")] = None,
    device: Annotated[str, typer.Option(help="auto (an accelerator), or cpu: check only, tiny, interpreted.")] = "auto",
    rounds: Annotated[int, typer.Option(min=1, help="Times that every implementation takes its turn.")] = 30,
    compile_s: Annotated[float, typer.Option(min=0, help="Seconds after which torch.compile is not begun again.")] = 90,
    output: Annotated[Path | None, typer.Option(help="Rows are appended to this CSV.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Check the fused operations against their definitions, then time them against PyTorch on this device."""
    if device not in ("auto", "cpu"):
        _stop(2, f"--device {device}: use auto or cpu")
    if importlib.util.find_spec("triton") is None:
        _stop(2, "Triton is not installed, so there is no fused operation; it is published for Linux only")
    if device == "cpu":
        use_interpreter()
    import torch

    from benchmarks.kernels_cases import cases

    if device == "auto" and not torch.cuda.is_available():
        _stop(2, NO_ACCELERATOR)
    size: Size = "tiny" if device == "cpu" else "full"
    try:
        chosen = cases(size, op)
    except ValueError as error:
        _stop(2, str(error))
    place = torch.device("cpu" if device == "cpu" else "cuda")
    conditions = {"date": datetime.now(UTC).date().isoformat(), **machine(place)}
    rows, faults = check(chosen, place)
    copy_speed: float | None = None
    if not faults and place.type == "cuda":
        from benchmarks.kernels_timing import copy_bytes_per_s

        copy_speed = copy_bytes_per_s()
        ends = time.monotonic() + compile_s
        rows = [
            timed_row(row, case, place, rounds, case.is_aim and time.monotonic() < ends, copy_speed)
            for row, case in _bar(rows, chosen)
        ]
    copied = {"copy_gb_per_s": None if copy_speed is None else round(copy_speed / 1e9, 1)}
    if output is not None and not faults:
        from benchmarks.decode_figures import append_lines

        try:
            append_lines(output, [{**conditions, **copied, **asdict(row)} for row in rows])
        except (ValueError, OSError) as error:
            _stop(1, str(error))
    if as_json:
        found = {"correct": not faults, "differences": faults, "rows": [asdict(row) for row in rows]}
        typer.echo(json.dumps({"machine": conditions, **copied, **found}))
    elif not faults:
        print_table({**conditions, **copied}, rows)
    if faults:
        _stop(1, "\n".join([*faults, "the fused operations must answer as their definitions do: nothing was timed"]))


def use_interpreter() -> None:
    """Make Triton interpret kernels in this process. Exits with 2 where it is too late for that."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        if "triton" in sys.modules:
            _stop(2, "Triton is loaded already; set TRITON_INTERPRET=1 before the program starts")
        os.environ["TRITON_INTERPRET"] = "1"
    from kernels.interpreter import correct_interpreter

    correct_interpreter()


def check(chosen: Sequence[Case], device: Any) -> tuple[list[Row], list[str]]:
    """A row for every case, without times, and a line for every output that is not the definition's."""
    from benchmarks.kernels_cases import differences

    rows, faults = [], []
    for case in chosen:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # NumPy's, of the interpreter
                prepared = case.build(device)
                wrong = differences(prepared)
            minimal_bytes = prepared.minimal_bytes
        except Exception as error:  # a kernel that does not run is a wrong answer, and the others are still of interest
            wrong, minimal_bytes = [f"{type(error).__name__}: {error}"], 0
        faults += [f"{case.op}, {case.shape}: {line}" for line in wrong]
        rows.append(Row(case.op, case.shape, "fused", not wrong, minimal_bytes))
    return rows, faults


def timed_row(row: Row, case: Case, device: Any, rounds: int, compile: bool, copy_speed: float) -> Row:
    """The row with its times."""
    from benchmarks.kernels_timing import paired_ratio, time_in_turns

    prepared = case.build(device)
    calls = {"fused": prepared.timed, "eager": prepared.eager}
    if compile and prepared.can_compile and (compiled := _compiled(prepared, case)) is not None:
        calls["compiled"] = compiled
    times = time_in_turns(calls, rounds)
    us, over_eager = median(times["fused"]), paired_ratio(times["eager"], times["fused"])
    return replace(
        row,
        us=round(us, 2),
        eager_us=round(median(times["eager"]), 2),
        compiled_us=round(median(times["compiled"]), 2) if "compiled" in times else None,
        fraction_of_copy=round(row.minimal_bytes / (us * 1e-6) / copy_speed, 4),
        speedup_over_eager=round(over_eager.median, 3),
        speedup_over_eager_min=round(over_eager.min, 3),
        speedup_over_eager_max=round(over_eager.max, 3),
        speedup_over_compiled=(
            round(paired_ratio(times["compiled"], times["fused"]).median, 3) if "compiled" in times else None
        ),
    )


def machine(device: Any) -> dict[str, Any]:
    """What the figures were measured on."""
    import torch
    import triton

    chip, driver = "cpu (interpreted)", ""
    if device.type == "cuda":
        chip, driver = torch.cuda.get_device_name(), nvidia_driver()
    return {
        "chip": chip,
        "driver": driver,
        "runtime": torch.version.hip or torch.version.cuda or "",
        "torch": torch.__version__,
        "triton": triton.__version__,
    }


def nvidia_driver() -> str:
    """Version of NVIDIA's driver; empty where there is none."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # the library is absent, or finds no driver: the column stays empty
        return ""


def print_table(conditions: dict[str, Any], rows: Sequence[Row]) -> None:
    table = Table(title=", ".join(f"{name} {value}" for name, value in conditions.items() if value not in ("", None)))
    table.add_column("operation")
    table.add_column("shape")
    table.add_column("as defined")
    for name in ("us", "eager us", "compiled us", "of copy", "over eager"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.op,
            row.shape,
            "yes" if row.correct else "no",
            _shown(row.us, ".1f"),
            _shown(row.eager_us, ".1f"),
            _shown(row.compiled_us, ".1f"),
            _shown(row.fraction_of_copy, ".0%"),
            _shown(row.speedup_over_eager, ".1f"),
        )
    console = Console()
    # Into a file or a pipe there is no width to fit: keep every column whole.
    Console(width=None if console.is_terminal else 160).print(table)


def _compiled(prepared: Prepared, case: Case) -> Any:
    """torch.compile of the eager twin; None, said on stderr, where it cannot be compiled."""
    import torch

    torch.compiler.reset()
    compiled = torch.compile(prepared.eager)
    try:
        compiled()
    except Exception as error:  # the compiler's own failures, which say nothing about ours
        typer.echo(f"{case.op}, {case.shape}: torch.compile failed: {str(error).splitlines()[0]}", err=True)
        return None
    return compiled


def _shown(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _bar(rows: Sequence[Row], chosen: Sequence[Case]) -> Iterable[tuple[Row, Case]]:
    with _progress(len(rows)) as advance:
        for row, case in zip(rows, chosen, strict=True):
            yield row, case
            advance()


@contextmanager
def _progress(total: int) -> Any:
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as bars:
        task = bars.add_task("timing", total=total)
        yield lambda: bars.advance(task)


def _stop(code: Literal[1, 2], message: str) -> NoReturn:
    typer.echo("\n".join(f"kadence: error: {line}" for line in message.splitlines()), err=True)
    raise typer.Exit(code)


if __name__ == "__main__":
    typer.run(kernels)

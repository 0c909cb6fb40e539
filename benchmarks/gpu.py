"""Everything that a GPU must show, in one command of less than eight minutes.

    python -m benchmarks.gpu --output FOLDER      # or with the folder in $OUT

Each part runs in a process of its own with a time limit of its own; a part that fails or hangs does not keep the next
from running. FOLDER gets summary.json, a log, and what each part writes. The exit code is 0 only if every part did what
it should. `--device cpu` runs the same parts small, in Triton's interpreter, to show that the command itself works.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, NoReturn

import typer

LIMIT_S = 480
DTYPES = ("float32", "bfloat16", "float16")
ROOT = Path(__file__).resolve().parents[1]
LOG = "gpu.log"
SUMMARY = "summary.json"


@dataclass(frozen=True, slots=True)
class Part:
    """A command with its limit in seconds. check: says what is wrong with what it left, though it exited with 0."""

    name: str
    command: tuple[str, ...]
    limit_s: float
    environment: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[], str | None] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a part. fault: empty if all is well."""

    name: str
    ok: bool
    seconds: float
    exit_code: int | None
    fault: str


def parts(output: Path, device: str) -> tuple[Part, ...]:
    """All parts, in the order in which they run; limits add up to less than LIMIT_S."""
    python, junit = sys.executable, output / "tests.xml"
    is_cpu = device == "cpu"
    interpreted = {"TRITON_INTERPRET": "1"} if is_cpu else {}
    kernels = (
        python, "-m", "benchmarks.kernels", "--json", "--output", str(output / "kernels.csv"), "--rounds", "20",
        "--compile-s", "40",
    )  # fmt: skip
    decode = (python, "-m", "benchmarks.gpu_decode", "--device", device, "--output", str(output / "decode.csv"))
    small = ("--sequences", "2", "--max-tokens", "10", "--rounds", "1") if is_cpu else ()
    tests = (python, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", f"--junitxml={junit}")
    folders = ("tests/kernels", "tests/benchmarks/test_kernels.py", "tests/workers/engine/test_step_graphs_gpu.py")
    steps = (python, "-m", "benchmarks.gpu_steps", "--device", device, "--output", str(output / "steps.csv"))
    few = ("--sequences", "2", "--rounds", "1") if is_cpu else ()
    return (
        Part("environment", (python, "-m", "benchmarks.gpu_environment", "--device", device), 20),
        Part("tests", (*tests, *folders), 150, check=None if is_cpu else lambda: untested(junit)),
        # Steps and decoding before the kernels' timing: what must be right comes before what should be fast.
        *(Part(f"steps-{dtype}", (*steps, "--dtype", dtype, *few), 25) for dtype in DTYPES),
        *(Part(f"decode-{dtype}", (*decode, "--dtype", dtype, *small), 35, interpreted) for dtype in DTYPES),
        Part("kernels", (*kernels, "--device", "cpu" if is_cpu else "auto"), 115, interpreted),
    )


def run_part(part: Part, output: Path) -> Outcome:
    """Run one part: its stdout to NAME.out, its stderr to the log. Ends it, and all it started, at its limit."""
    started = time.monotonic()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **part.environment}
    with (output / f"{part.name}.out").open("w") as out, (output / LOG).open("a") as log:
        log.write(f"== {part.name}: {' '.join(part.command)}\n")
        log.flush()
        try:
            process = subprocess.Popen(
                part.command, stdout=out, stderr=log, cwd=ROOT, env=environment, start_new_session=True
            )
        except OSError as error:
            return Outcome(part.name, False, 0.0, None, f"could not be started: {error}")
        try:
            exit_code: int | None = process.wait(part.limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            exit_code = None
    seconds = round(time.monotonic() - started, 1)
    fault = f"ran past its {part.limit_s:g} s" if exit_code is None else f"exit code {exit_code}" if exit_code else ""
    if not fault and part.check is not None:
        fault = part.check() or ""
    return Outcome(part.name, not fault, seconds, exit_code, fault)


def run_all(chosen: Sequence[Part], output: Path) -> bool:
    """Run parts one after the other, whatever becomes of each; writes the summary after each. True if all are well."""
    output.mkdir(parents=True, exist_ok=True)
    (output / LOG).write_text("")
    outcomes: list[Outcome] = []
    for part in chosen:
        outcome = run_part(part, output)
        outcomes.append(outcome)
        typer.echo(f"{outcome.name}: {'ok' if outcome.ok else outcome.fault} ({outcome.seconds} s)", err=True)
        summary = {
            "ok": len(outcomes) == len(chosen) and all(done.ok for done in outcomes),
            "environment": _environment(output),
            "parts": [asdict(done) for done in outcomes],
        }
        (output / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n")
    return all(outcome.ok for outcome in outcomes)


def untested(junit: Path) -> str | None:
    """On a GPU every test must have run: what is wrong with a report in which one did not."""
    try:
        suite = ElementTree.parse(junit).getroot().find("testsuite")
    except (OSError, ElementTree.ParseError) as error:
        return f"no report of the tests: {error}"
    if suite is None or not int(suite.get("tests", "0")):
        return "no test was run"
    skipped = int(suite.get("skipped", "0"))
    return f"{skipped} of {suite.get('tests')} tests were skipped" if skipped else None


def main(
    output: Annotated[Path | None, typer.Option(help="Folder for results; $OUT if not given.")] = None,
    device: Annotated[str, typer.Option(help="cuda (ROCm too), or cpu: small, in Triton's interpreter.")] = "cuda",
    only: Annotated[list[str] | None, typer.Option(help="Only these parts; may be repeated.")] = None,
) -> None:
    """Test and measure on the GPU of this machine; exit code 0 only if everything was right."""
    if device not in ("cuda", "cpu"):
        _stop(f"--device {device}: use cuda or cpu")
    if output is None and not os.environ.get("OUT"):
        _stop("--output is not given and OUT is not set: say where results go")
    folder = (output or Path(os.environ["OUT"])).absolute()
    known = parts(folder, device)
    names = [part.name for part in known]
    for name in only or ():
        if name not in names:
            _stop(f"--only {name}: no such part; there are {', '.join(names)}")
    chosen = [part for part in known if not only or part.name in only]
    if not run_all(chosen, folder):
        raise typer.Exit(1)


def _environment(output: Path) -> object:
    try:
        return json.loads((output / "environment.out").read_text())
    except (OSError, ValueError):
        return None


def _stop(message: str) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(2)


if __name__ == "__main__":
    typer.run(main)

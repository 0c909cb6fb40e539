"""`kadence bench savings`: whether the savings experiment is right about savings that are known.

Every estimator is the one in production (controlplane.finops), on a simulated fleet (savings_world.py).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from math import log
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
import typer
from rich.console import Console
from rich.table import Table
from scipy.special import stdtrit
from scipy.stats import beta

from benchmarks.savings_world import Design, shared_batch, simulate
from controlplane.finops.confidence_sequence import MIN_PAIRS, half_width, p_values
from controlplane.finops.cuped import Adjusted, adjusted
from controlplane.finops.savings import ALPHA, EXPECTED

Floats = npt.NDArray[np.float64]
SAVING = 0.15
TRUE = log(1 - SAVING)
FIXED_PAIRS = 48


class Finding(NamedTuple):
    """One figure. low, high: 95 % of Clopper and Pearson where it is a share of runs. wanted: what it should be."""

    study: str
    estimator: str
    figure: str
    value: float
    low: float | None
    high: float | None
    runs: int
    wanted: str
    is_met: bool | None


def savings(
    runs: Annotated[int, typer.Option(min=100, help="Simulated experiments of each study.")] = 1000,
    pairs: Annotated[
        int, typer.Option(min=60, help="Pairs of windows, with a look after each from the 10th on.")
    ] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Of the simulation.")] = 0,
    output: Annotated[Path | None, typer.Option(help="CSV file to write.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """False alarms, coverage and carry-over of the savings experiment. Exit code 1: a figure is not as it must be."""
    found = [*studies(runs, pairs, seed)]
    if output is not None:
        _write(output, found, seed)
    is_good = all(each.is_met is not False for each in found)
    if as_json:
        typer.echo(json.dumps({"ok": is_good, "findings": [each._asdict() for each in found]}))
    else:
        console = Console()
        Console(width=None if console.is_terminal else 160).print(_table(found))
    raise typer.Exit(0 if is_good else 1)


def studies(runs: int, pairs: int, seed: int) -> Iterator[Finding]:
    """All of them. The same seed gives the same figures."""
    yield from no_saving(runs, pairs, seed)
    yield from known_saving(runs, pairs, seed + 1)
    yield from carry_over(runs, seed + 2)
    yield from requests_of_one_batch(seed + 3)


def no_saving(runs: int, pairs: int, seed: int) -> Iterator[Finding]:
    """A/A: nothing is saved; how many of the runs ever claim something, looked at after every pair."""
    world = simulate(runs, Design(pairs), 0.0, seed)
    for name, found in (("plain", adjusted(world.d)), ("load adjusted", adjusted(world.d, world.x))):
        yield _share("A/A, peeking", f"sequence, {name}", "false alarms", _ever_out(found, 0.0), "at most 5 %", 0, 0.05)
        p = p_values(found.estimate, found.spread, EXPECTED, found.free)[:, -1] <= ALPHA
        yield _share("A/A, peeking", f"mSPRT, {name}", "false alarms", p, "at most 5 %", 0, 0.05)
    n = np.arange(1, pairs + 1)
    out = np.abs(found.estimate) > _t(found) * found.spread / np.sqrt(n)
    yield _share("A/A, peeking", "t interval, load adjusted", "false alarms", out[:, MIN_PAIRS - 1 :].any(axis=1))


def known_saving(runs: int, pairs: int, seed: int) -> Iterator[Finding]:
    """A/B: 15 % is saved; how often the intervals hold it, at one planned look and at all of them."""
    study, world = "A/B, 15 % saved", simulate(runs, Design(pairs), SAVING, seed)
    at = FIXED_PAIRS - 1
    for name, found in (("plain", adjusted(world.d)), ("load adjusted", adjusted(world.d, world.x))):
        half = _t(found)[..., at] * found.spread[:, at] / FIXED_PAIRS**0.5
        holds = np.abs(found.estimate[:, at] - TRUE) <= half
        where = f"t interval, {name}"
        yield _share(study, where, f"coverage after {FIXED_PAIRS} pairs", holds, "93 to 97 %", 0.93, 0.97)
        yield _value(study, where, "mean estimate", 1 - float(np.exp(found.estimate[:, at]).mean()), runs)
        yield _value(study, where, "sd of the estimate", float(np.std(1 - np.exp(found.estimate[:, at]))), runs)
        sequence, always = f"sequence, {name}", ~_ever_out(found, TRUE)
        yield _share(study, sequence, "coverage at every look", always, "at least 95 %", 0.95, 1.0)
        width = half_width(FIXED_PAIRS, found.spread[:, at], ALPHA, free=found.free[..., at]) / half
        yield _value(study, sequence, "width against t", float(np.median(width)), runs)
        yield _value(study, sequence, "pairs until 0 is out, median", float(np.median(_first_clear(found))), runs)
    flat = world.minutes[:, :FIXED_PAIRS].reshape(runs, -1)
    half = 1.96 * flat.std(axis=1, ddof=1) / flat.shape[1] ** 0.5
    naive = np.abs(flat.mean(axis=1) - TRUE) <= half
    yield _share(study, "minutes taken as independent", f"coverage after {FIXED_PAIRS} pairs", naive)


def carry_over(runs: int, seed: int) -> Iterator[Finding]:
    """The arm before still shows for 3 minutes on average: with and without a burn-in, and with longer windows."""
    designs = (
        ("15 min, no burn-in", Design(FIXED_PAIRS, 15, 0, 3.0), False),
        ("15 min, 10 min burn-in", Design(FIXED_PAIRS, 15, 10, 3.0), False),
        ("60 min, 10 min burn-in", Design(FIXED_PAIRS, 60, 10, 3.0), True),
    )
    for i, (name, design, is_judged) in enumerate(designs):
        world = simulate(runs, design, SAVING, seed + 10 * i)
        found = adjusted(world.d, world.x)
        mean, spread = found.estimate[:, -1], found.spread[:, -1]
        holds = np.abs(mean - TRUE) <= _t(found)[..., -1] * spread / FIXED_PAIRS**0.5
        limits = ("93 to 97 %", 0.93, 0.97) if is_judged else ("", None, None)
        yield _value("carry-over of 3 min", name, "mean estimate", 1 - float(np.exp(mean).mean()), runs)
        yield _share("carry-over of 3 min", name, "coverage", holds, *limits)


def requests_of_one_batch(seed: int) -> Iterator[Finding]:
    """Requests treated and not treated in one batch share every forward pass."""
    found, study = shared_batch(seed=seed), "requests of one batch"
    yield _value(study, "request A/B", "gain it reports", found.in_batch_gain, 1)
    yield _value(study, "all against none", "true gain", found.true_gain, 1)
    yield _value(study, "untreated requests", "slowed by the others' drafts", found.control_slowdown, 1)


def _t(found: Adjusted) -> Floats:
    """Quantile of Student's t with the degrees of freedom that each pair leaves."""
    return np.asarray(stdtrit(np.maximum(found.free, 1.0), 1 - ALPHA / 2), dtype=np.float64)


def _ever_out(found: Adjusted, truth: float) -> npt.NDArray[np.bool_]:
    """[runs]: whether the confidence sequence leaves `truth` out at any look."""
    n = np.arange(1, found.estimate.shape[1] + 1)
    out = np.abs(found.estimate - truth) > half_width(n, found.spread, ALPHA, free=found.free)
    return np.asarray(out[:, MIN_PAIRS - 1 :].any(axis=1))


def _first_clear(found: Adjusted) -> Floats:
    """[runs]: the first look at which 0 is out; infinite where there is none."""
    n = np.arange(1, found.estimate.shape[1] + 1)
    out = (np.abs(found.estimate) > half_width(n, found.spread, ALPHA, free=found.free)) & (n >= MIN_PAIRS)
    return np.where(out.any(axis=1), 1.0 + np.argmax(out, axis=1), np.inf)


def _share(
    study: str, estimator: str, figure: str, hits: npt.NDArray[np.bool_] | np.bool_,
    wanted: str = "", least: float | None = None, most: float | None = None,
) -> Finding:  # fmt: skip
    n, k = int(np.size(hits)), int(np.sum(hits))
    low = float(beta.ppf(0.025, k, n - k + 1)) if k else 0.0
    high = float(beta.ppf(0.975, k + 1, n - k)) if k < n else 1.0
    is_met = None if least is None or most is None else bool(least <= k / n <= most)
    return Finding(study, estimator, figure, k / n, low, high, n, wanted, is_met)


def _value(study: str, estimator: str, figure: str, value: float, runs: int) -> Finding:
    return Finding(study, estimator, figure, value, None, None, runs, "", None)


def _table(found: list[Finding]) -> Table:
    table = Table(title="The savings experiment, where the saving is known", title_justify="left")
    for name in ("study", "estimator", "figure", "value", "95 %", "wanted", ""):
        table.add_column(name)
    for each in found:
        interval = "" if each.low is None or each.high is None else f"{each.low:.3f} to {each.high:.3f}"
        verdict = "" if each.is_met is None else "met" if each.is_met else "MISSED"
        table.add_row(each.study, each.estimator, each.figure, f"{each.value:.4g}", interval, each.wanted, verdict)
    return table


def _write(path: Path, found: list[Finding], seed: int) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["date", "seed", *Finding._fields])
        day = datetime.now(UTC).strftime("%Y-%m-%d")
        for each in found:
            cells = [f"{cell:.6g}" if isinstance(cell, float) else "" if cell is None else cell for cell in each]
            writer.writerow([day, seed, *cells])

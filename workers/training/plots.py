"""Curves of training and figures of an evaluation as PNG. Needs matplotlib: `pip install 'kadence[train]'`."""

from __future__ import annotations

import csv
import importlib.util
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from workers.training.evaluate import ALL, Acceptance

MISSING = "curves are in CSV only; for PNG: pip install 'kadence[train]'"
COLOURS = {"code": "#0072B2", "json": "#D55E00", "contract": "#009E73", "fiction": "#CC79A7", ALL: "#000000"}
"""Okabe and Ito's, that colour-blind readers tell apart."""
DASHES = {"greedy": "-"}


def can_plot() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def plot_training(folder: Path) -> list[Path]:
    """loss.png and acceptance.png beside loss.csv and acceptance.csv, those that are there."""
    made = []
    losses = _series(folder / "loss.csv", ("position",), "step", "loss")
    if losses:
        axes, figure = _axes("optimiser step", "loss (nats)")
        for (position,), points in losses.items():
            axes.plot(*zip(*points, strict=True), label=f"position {int(position) + 1}")
        made.append(_save(figure, axes, folder / "loss.png"))
    rates = _series(folder / "acceptance.csv", ("domain", "mode", "position"), "step", "acceptance")
    firsts = {key: points for key, points in rates.items() if key[2] == "0"}
    if firsts:
        axes, figure = _axes("optimiser step", "acceptance of the first draft token")
        for (domain, mode, _), points in firsts.items():
            axes.plot(
                *zip(*points, strict=True), DASHES.get(mode, "--"), color=_colour(domain), label=f"{domain} {mode}"
            )
        axes.set_ylim(0, 1)
        made.append(_save(figure, axes, folder / "acceptance.png"))
    return made


def plot_evaluation(path: Path, acceptance: Mapping[str, Mapping[str, Acceptance]]) -> Path:
    """Conditional acceptance by position, a line for each domain and mode."""
    axes, figure = _axes("position in the draft", "acceptance, given those before")
    for domain, modes in acceptance.items():
        for mode, sums in sorted(modes.items()):
            values = sums.by_position
            dashes = DASHES.get(mode, "--")
            axes.plot(range(1, len(values) + 1), values, dashes, color=_colour(domain), label=f"{domain} {mode}")
    axes.set_ylim(0, 1)
    return _save(figure, axes, path)


def _series(path: Path, keys: Iterable[str], x: str, y: str) -> dict[tuple[str, ...], list[tuple[float, float]]]:
    if not path.exists():
        return {}
    found: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found[tuple(row[key] for key in keys)].append((float(row[x]), float(row[y])))
    return found


def _colour(domain: str) -> str | None:
    return COLOURS.get(domain)


def _axes(x: str, y: str) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # no pyplot: it keeps figures and looks for a screen

    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    return axes, figure


def _save(figure: Any, axes: Any, path: Path) -> Path:
    axes.legend(fontsize="small")
    figure.savefig(path)
    return path

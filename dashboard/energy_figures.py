"""Energy and carbon as a reader sees them: each figure with what measured it, and "not measured" never as a 0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import pandas as pd

from controlplane.finops.carbon import NO_ZONE, Carbon, facility_uj
from controlplane.store.cost_rows import CostReport, CostRow
from controlplane.store.energy import PowerPoint
from dashboard import format as fmt
from dashboard.cost_tables import all_rows

SOURCES: Mapping[str, str] = {
    "counter": "NVML energy counter",
    "power": "NVML power, integrated",
    "rapl": "RAPL, the process's part",
    "model": "model, an estimate",
    "none": fmt.NOT_MEASURED,
}
"""The words of `energy_source` for a reader (docs/energy.md)."""
SHORT: Mapping[str, str] = {"counter": "NVML", "power": "NVML power", "rapl": "RAPL", "model": "model"}

UJ_PER_KWH = Decimal(3_600_000_000_000)


@dataclass(frozen=True, slots=True)
class Figure:
    """A card: label, value, and beside it what measured it. help: what it is of."""

    label: str
    value: str
    source: str
    help: str


def source_text(energy_source: str) -> str:
    """`counter+none` in words; a word that is not known stays as it is."""
    return " + ".join(SOURCES.get(part, part) for part in energy_source.split("+"))


def short_source(energy_source: str) -> str:
    """The same for the narrow place beside a figure; "in part" where some of the time was not measured."""
    names = [part for part in energy_source.split("+") if part != "none"]
    if not names:
        return fmt.NOT_MEASURED
    text = " + ".join(SHORT.get(name, name) for name in names)
    return f"{text}, in part" if "none" in energy_source.split("+") else text


def watts(value: float | None) -> str:
    return fmt.NOT_MEASURED if value is None else f"{fmt.number(value)} W"


def kilowatt_hours(energy_uj: int | None) -> str:
    return fmt.NOT_MEASURED if energy_uj is None else f"{fmt.number(Decimal(energy_uj) / UJ_PER_KWH)} kWh"


def grams(energy_uj: int | None, carbon: Carbon | None) -> str:
    """Grams of CO2 equivalent; "no zone" where none is configured, which is not the same as not measured."""
    if carbon is None:
        return "no zone"
    found = carbon.grams(energy_uj)
    return fmt.NOT_MEASURED if found is None else f"{fmt.number(found)} g"


def key_figures(row: CostRow, carbon: Carbon | None) -> list[Figure]:
    """The cards of what is shown; row: the report's total or the sum of the rows that a filter took."""
    source = short_source(row.energy_source)
    whole = "Idle energy is in it." if row.has_idle else "Idle energy is not in it."
    basis = "no carbon_zone is set" if carbon is None else f"{source}, {carbon.intensity.zone} grid"
    return [
        Figure("Energy", fmt.energy(row.energy_uj), source, f"{kilowatt_hours(row.energy_uj)}. {whole}"),
        Figure("Energy per token", fmt.energy_per_token(row), source, f"Per emitted token. {whole}"),
        Figure(
            "Without idle",
            fmt.joules_per_token(row.active_j_per_token, row.energy_uj),
            source,
            "Per emitted token, of the work alone: what batching and speculation change.",
        ),
        Figure(
            "Idle energy", fmt.energy(row.idle_uj), source, "Drawn by machines without work, or by a cohort's part."
        ),
        Figure(
            "Wasted",
            fmt.energy(row.wasted_uj),
            source,
            "Spent on draft tokens that were not kept: the price of guessing.",
        ),
        Figure("Carbon", grams(row.energy_uj, carbon), basis, "CO2 equivalent of the whole site's energy for it."),
    ]


COHORT_COLUMNS = ("Cohort", "Energy", "Per token", "Without idle", "With its idle", "Wasted", "Carbon", "Measured by")


def cohort_table(report: CostReport, carbon: Carbon | None) -> pd.DataFrame:
    """The rows of `kadence cost report --by cohort` as energy: cohorts, what a filter left out, idle, total."""
    return pd.DataFrame(
        [
            (
                row.key,
                fmt.energy(row.energy_uj),
                fmt.energy_per_token(row),
                fmt.joules_per_token(row.active_j_per_token, row.energy_uj),
                fmt.joules_per_token(row.loaded_j_per_token, row.energy_uj),
                fmt.NOTHING if row is report.idle else fmt.energy(row.wasted_uj),
                grams(row.energy_uj, carbon),
                source_text(row.energy_source),
            )
            for row in all_rows(report)
        ],
        columns=list(COHORT_COLUMNS),
    )


MACHINE_COLUMNS = (
    "Machine",
    "Device",
    "Measured by",
    "Mean power",
    "At rest",
    "Energy",
    "Idle energy",
    "Measured time",
)


def machine_table(points: Iterable[PowerPoint]) -> pd.DataFrame:
    """A line for each machine and source of the range."""
    by_machine: dict[tuple[str, str, str], list[PowerPoint]] = {}
    for point in points:
        by_machine.setdefault((point.machine, point.sku, point.source), []).append(point)
    return pd.DataFrame(
        [(machine, sku, source_text(source), *_machine(found)) for (machine, sku, source), found in by_machine.items()],
        columns=list(MACHINE_COLUMNS),
    )


def _machine(points: Sequence[PowerPoint]) -> tuple[str, ...]:
    whole = PowerPoint(
        at=0.0,
        machine="",
        sku="",
        source="",
        energy_uj=measured_sum(p.energy_uj for p in points),
        idle_uj=measured_sum(p.idle_uj for p in points),
        ns=sum(p.ns for p in points),
        measured_ns=None if any(p.measured_ns is None for p in points) else sum(p.measured_ns or 0 for p in points),
    )
    at_rest = [p.resting_uj for p in points if p.measured_ns]
    if whole.measured_ns and None not in at_rest:
        resting = watts(1000 * sum(uj or 0 for uj in at_rest) / whole.measured_ns)
    else:
        resting = "not known"
    share = "not told apart" if whole.measured_ns is None else fmt.share(whole.measured_ns, whole.ns)
    return watts(whole.watts), resting, fmt.energy(whole.energy_uj), fmt.energy(whole.idle_uj), share


def measured_sum(amounts: Iterable[int | None]) -> int | None:
    """Of what was measured; None where nothing was."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None


def carbon_table(row: CostRow, carbon: Carbon) -> pd.DataFrame:
    """What a carbon figure rests on, step by step."""
    intensity = carbon.intensity
    steps = [
        ("Energy of the machines", fmt.energy(row.energy_uj), source_text(row.energy_source)),
        ("PUE", f"{carbon.pue:f}", "the setting pue: energy of the whole site over that of the machines"),
        ("Energy of the site", fmt.energy(facility_uj(row.energy_uj, carbon.pue)), "the two above, multiplied"),
        (
            "Grid intensity",
            f"{intensity.grams_per_kwh:f} g per kWh",
            f"{intensity.zone}, mean of {intensity.year}: {intensity.source}",
        ),
        ("Carbon", grams(row.energy_uj, carbon), "CO2 equivalent of operation"),
        ("Embodied carbon", "not counted", "making the machines is in no figure here"),
    ]
    return pd.DataFrame(steps, columns=["Step", "Value", "From"])


def carbon_missing(zone: str, problem: str | None) -> str:
    """Why there is no carbon figure, and what to do."""
    if zone == NO_ZONE:
        return "Carbon is not counted: set carbon_zone (DEU, USA, ... or world), and pue for the site's overhead."
    return f"Carbon is not counted: {problem or f'{zone} has no figure for this time'}."


def unmeasured_names(report: CostReport) -> list[str]:
    """Cohorts without any measured window: they have no bar, and theirs is not 0."""
    return [row.key for row in report.rows if row.energy_uj is None]

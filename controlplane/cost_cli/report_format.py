"""A cost report as one JSON object and as a table."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from rich.table import Table

from controlplane.cost_cli.amounts import money
from controlplane.finops.carbon import Carbon, facility_uj
from controlplane.finops.pricing import NANO
from controlplane.store.queries import CostReport, CostRow, TimeRange
from controlplane.store.time_range import iso

Reports = Mapping[str, CostReport]
"""Basis -> the report under it; several have the same usage, and so the same rows."""


def report_json(reports: Reports, main: str, by: str, range: TimeRange, carbon: Carbon | None = None) -> dict[str, Any]:
    """The report as design.md section 6 fixes it; money and grams as decimal strings, unknown as null.

    main: the basis that the contract's keys are of; with several, every row has all of them under `by_basis`. carbon:
    what the range's energy is counted with; None = no zone is configured, or it has no figure.
    """
    result = reports[main]
    several = len(reports) > 1

    def row_json(row: CostRow) -> dict[str, Any]:
        return {**usage_json(row), **_carbon_json(row, carbon)}

    rows = [{by: row.key, **row_json(row), **_by_basis(reports, i, several)} for i, row in enumerate(result.rows)]
    answer = {
        "range": {"start": iso(range.start), "end": iso(range.end)},
        "by": by,
        "currency": result.currency,
        "basis": result.basis,
        "idle_rule": result.idle_rule,
        "rows": rows,
        "rest": None if result.rest is None else row_json(result.rest),
        "idle": row_json(result.idle),
        "total": row_json(result.total),
        "machine_s": round(result.machine_s, 6),
        "idle_s": round(result.idle_s, 6),
        "utilisation": result.utilisation,
        "idle_share": result.idle_share,
        "carbon": None if carbon is None else _intensity_json(carbon),
        "unpriced": list(result.unpriced),
        "warnings": list(result.warnings),
    }
    if several:
        answer["bases"] = {basis: _basis_json(report) for basis, report in reports.items()}
    return answer


def usage_json(row: CostRow) -> dict[str, Any]:
    """A row's figures without its key."""
    return {
        "input_tokens": row.input_tokens,
        "emitted_tokens": row.emitted_tokens,
        "requests": row.requests,
        **_money_json(row),
        "energy_j": _joules(row.energy_uj),
        "energy_source": row.energy_source,
        "j_per_token": row.j_per_token,
        "active_j_per_token": row.active_j_per_token,
        "loaded_j_per_token": row.loaded_j_per_token,
        "wasted_j": _joules(row.wasted_uj),
        "idle_j": _joules(row.idle_uj),
        "busy_s": row.machine_ns / 1e9,
        "idle_s": None if row.idle_ns is None else row.idle_ns / 1e9,
        "utilisation": row.utilisation,
        "steps": row.steps,
        "spec_steps": row.spec_steps,
        "acceptance_length": row.acceptance_length,
        "draft_tokens": row.draft_tokens,
        "accepted_tokens": row.accepted_tokens,
        "mean_planned_k": row.planned_k_steps / row.steps if row.steps else None,
    }


def _carbon_json(row: CostRow, carbon: Carbon | None) -> dict[str, Any]:
    """Of the machines' energy (energy_j), and what the whole site drew for it."""
    if carbon is None:
        return {"carbon_g": None, "facility_j": None}
    return {
        "carbon_g": _decimal(carbon.grams(row.energy_uj)),
        "facility_j": _joules(facility_uj(row.energy_uj, carbon.pue)),
    }


def _intensity_json(carbon: Carbon) -> dict[str, Any]:
    intensity = carbon.intensity
    return {
        "zone": intensity.zone,
        "grams_per_kwh": f"{intensity.grams_per_kwh:f}",
        "year": intensity.year,
        "source": intensity.source,
        "pue": f"{carbon.pue:f}",
    }


def _money_json(row: CostRow) -> dict[str, Any]:
    return {
        "cost": money(row.cost_nano),
        "cost_per_million_tokens": _decimal(row.cost_per_million_tokens),
        "wasted_cost": money(row.wasted_cost_nano),
        "input_cost": money(row.input_cost_nano),
        "output_cost": money(row.output_cost_nano),
        "idle_cost": money(row.idle_cost_nano),
        "cost_per_million_input_tokens": _decimal(row.cost_per_million_input_tokens),
        "cost_per_million_output_tokens": _decimal(row.cost_per_million_output_tokens),
        "loaded_cost": money(row.loaded_cost_nano),
        "loaded_cost_per_million_tokens": _decimal(row.loaded_cost_per_million_tokens),
        "tokens_per_unit": _decimal(row.tokens_per_unit),
    }


def _by_basis(reports: Reports, i: int, several: bool) -> dict[str, Any]:
    return {"by_basis": {basis: _money_json(each.rows[i]) for basis, each in reports.items()}} if several else {}


def _basis_json(report: CostReport) -> dict[str, Any]:
    rest = None if report.rest is None else _money_json(report.rest)
    return {
        "rest": rest,
        "idle": _money_json(report.idle),
        "total": _money_json(report.total),
        "unpriced": list(report.unpriced),
    }


def _decimal(amount: Decimal | None) -> str | None:
    return None if amount is None else f"{amount:f}"


def _joules(microjoules: int | None) -> float | None:
    return None if microjoules is None else microjoules / 1e6


def report_table(reports: Reports, main: str, by: str, range: TimeRange, carbon: Carbon | None = None) -> Table:
    """The report for a person: one basis with all its figures, or several with cost and cost per million of each."""
    result = reports[main]
    shown = result.basis if len(reports) == 1 else ", ".join(reports)
    table = Table(
        title=f"Cost by {by}, {iso(range.start)} to {iso(range.end)} ({result.currency or 'no prices'}, {shown})",
        caption=_caption(result, carbon),
    )
    is_measured = result.total.energy_uj is not None
    table.add_column(by)
    columns = ["requests", "input", "emitted"]
    if len(reports) == 1:
        columns += ["cost", "per 1M", "loaded 1M", "input 1M", "wasted"]
    else:
        columns += [name for basis in reports for name in (basis, f"{basis} 1M")]
    for name in (*columns, *(("energy J", "J/token") if is_measured else ())):
        table.add_column(name, justify="right", no_wrap=True)
    for rows in zip(*(each.rows for each in reports.values()), strict=True):
        table.add_row(*_cells(list(rows), is_measured))
    table.add_section()
    if result.rest is not None:
        table.add_row(*_cells([each.rest for each in reports.values() if each.rest], is_measured))
    table.add_row(*_cells([each.idle for each in reports.values()], is_measured), style="dim")
    table.add_row(*_cells([each.total for each in reports.values()], is_measured), style="bold")
    return table


def _caption(result: CostReport, carbon: Carbon | None) -> str:
    parts = [
        "input, emitted: tokens. 1M: cost of a million emitted tokens, or input ones; loaded: with its part of idle",
        "rows + rest + idle = total" if result.rest is not None else "rows + idle = total",
    ]
    if result.idle_rule != "none":
        parts.append(f"idle is spread over the rows ({result.idle_rule})")
    if result.idle_share is not None:
        parts.append(f"the machines were idle {result.idle_share:.1%} of the time")
    if result.total.energy_uj is None:
        parts.append("Energy: not measured")
    elif carbon is not None:
        grams, from_where = carbon.grams(result.total.energy_uj), carbon.intensity
        parts.append(f"{grams:,.3f} g of CO2 ({from_where.zone} {from_where.year}, PUE {carbon.pue:f})")
    return ". ".join(parts)


def _cells(rows: list[CostRow], with_energy: bool) -> list[str]:
    """One line: the row under each basis; usage is the same in all."""
    row = rows[0]
    is_idle = row.key == "idle"
    usage = ["" if is_idle else f"{count:,}" for count in (row.requests, row.input_tokens, row.emitted_tokens)]
    if len(rows) == 1:
        costs = [
            _cost(row),
            _per_million(row.cost_per_million_tokens),
            _per_million(row.loaded_cost_per_million_tokens),
            _per_million(row.cost_per_million_input_tokens),
            "" if is_idle or row.wasted_cost_nano is None else f"{Decimal(row.wasted_cost_nano) / NANO:.6f}",
        ]
    else:
        costs = [text for each in rows for text in (_cost(each), _per_million(each.cost_per_million_tokens))]
    per_token = row.j_per_token
    energy = [
        "none" if row.energy_uj is None else f"{row.energy_uj / 1e6:,.1f}",
        "" if per_token is None else f"{per_token:.3f}",
    ]
    return [row.key, *usage, *costs, *(energy if with_energy else ())]


def _cost(row: CostRow) -> str:
    return "unpriced" if row.cost_nano is None else f"{Decimal(row.cost_nano) / NANO:.6f}"


def _per_million(amount: Decimal | None) -> str:
    return "" if amount is None else f"{amount:.4f}"

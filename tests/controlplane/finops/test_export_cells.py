"""What an export collects beside its rows."""

from __future__ import annotations

from decimal import Decimal

from controlplane.finops.export_cells import CELL_FIELDS, UnpricedUses, cell_row, machine_hours, ratio
from controlplane.store.cost_rows import CostCell


def cell(hour: int, sku: str = "gpu", direction: str = "output", tokens: int = 5, cost: int | None = None) -> CostCell:
    work = (tokens, 4, 10, 6, 2, 1)
    return CostCell(hour, sku, "m", "=json", "a", direction, 36 * 10**11, 9, cost, cost, None, None, "none", *work)  # type: ignore[arg-type]


def test_cells_come_by_machine_hour() -> None:
    cells = [cell(1), cell(1), cell(1, "other"), cell(2)]
    assert [(g[0].hour, g[0].sku, len(g)) for g in machine_hours(cells)] == [
        (1, "gpu", 2),
        (1, "other", 1),
        (2, "gpu", 1),
    ]


def test_unpriced_use_is_told_in_stretches_of_hours_by_sku() -> None:
    uses = UnpricedUses()
    for group in ([cell(1), cell(1, direction="input", tokens=7)], [cell(1, "other")], [cell(2)], [cell(9)]):
        uses.add(group)
    found = [(u.sku, u.first, u.last, u.cells, u.input_tokens, u.emitted_tokens) for u in uses]
    assert found == [("gpu", 1, 2, 3, 7, 10), ("gpu", 9, 9, 1, 0, 5), ("other", 1, 1, 1, 0, 5)]


def test_a_line_about_unpriced_use_says_when_how_much_and_why() -> None:
    uses = UnpricedUses()
    uses.add([cell(497_222)])
    assert [use.line("no price") for use in uses] == [
        "unpriced: gpu, 2026-09-21T14:00Z to 2026-09-21T15:00Z: 1.000 machine hours, 0 input and 5 emitted tokens; "
        "no price"
    ]
    assert not UnpricedUses()


def test_a_cell_without_a_price_is_a_row_without_a_cost() -> None:
    row = dict(zip([f.name for f in CELL_FIELDS], cell_row(cell(1), None, "spot", lambda uj, at: None), strict=True))
    assert (row["cost"], row["energy_j"], row["mean_k"], row["machine_s"]) == (None, None, Decimal("2.5"), 3600)


def test_a_ratio_of_nothing_is_unknown() -> None:
    assert (ratio(1, 0, 3), ratio(1, 3, 3), ratio(2, 3, 3)) == (None, Decimal("0.333"), Decimal("0.667"))

"""Cost by hour, day and month, by tenant and direction, and which windows were pruned.

The windows that are already there are rolled up as they were attributed when they were written: cohorts + idle = the
window. Prefill's part of a cohort is told by its positions. Tenants are those of the requests that finished in the
hour, by their positions; where none did, nobody.

Revision: 0004.
"""

from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

EPOCH = date(1970, 1, 1)
KEY = ("sku", "model", "cohort", "tenant", "direction", "energy_source")
EXACT = ("ns", "wasted_ns", "uj", "wasted_uj", "steps", "planned_k_steps", "draft_tokens", "accepted_tokens")
AMOUNTS = (*EXACT[:4], "tokens", "measured_tokens", *EXACT[4:], "requests")
NULLABLE = ("uj", "wasted_uj")


def upgrade() -> None:
    for unit in ("hour", "day", "month"):
        op.create_table(
            f"cost_{unit}",
            sa.Column(unit, sa.BigInteger(), autoincrement=False, nullable=False),
            *(sa.Column(name, sa.Text(), nullable=False) for name in KEY),
            *(sa.Column(name, sa.BigInteger(), nullable=name in NULLABLE) for name in AMOUNTS),
            sa.PrimaryKeyConstraint(unit, *KEY, name=op.f(f"pk_cost_{unit}")),
            sqlite_with_rowid=False,
        )
    op.create_table(
        "machine_hour",
        sa.Column("hour", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("sku", sa.Text(), nullable=False),
        sa.Column("ns", sa.BigInteger(), nullable=False),
        sa.Column("windows", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("hour", "sku", name=op.f("pk_machine_hour")),
    )
    op.create_table(
        "pruned_window",
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("first", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("worker", "epoch", "first", name=op.f("pk_pruned_window")),
    )
    # Added in place: rebuilding a table of windows would cascade to their cohorts on SQLite.
    op.add_column("window", sa.Column("idle_energy_uj", sa.BigInteger(), nullable=True))
    op.add_column("window_cohort", sa.Column("input_ns", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("window_cohort", sa.Column("input_uj", sa.BigInteger(), nullable=True))
    op.add_column("window_cohort", sa.Column("input_tokens", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("window_cohort", sa.Column("tenants", sa.JSON(), nullable=True))
    op.add_column("window_cohort", sa.Column("uses", sa.JSON(), nullable=True))
    connection = op.get_bind()
    _tell_prefill_apart(connection)
    _roll_up_hours(connection)
    for hour in _hours_of_requests(connection):
        _name_tenants(connection, hour)
    connection.execute(
        sa.text(
            f"INSERT INTO cost_day (day, {', '.join((*KEY, *AMOUNTS))})"
            f" SELECT hour / 24, {', '.join(KEY)}, {', '.join(f'SUM({name})' for name in AMOUNTS)}"
            f" FROM cost_hour GROUP BY hour / 24, {', '.join(KEY)}"
        )
    )

    _roll_up_months(connection)


def downgrade() -> None:
    op.drop_column("window_cohort", "uses")
    op.drop_column("window_cohort", "tenants")
    op.drop_column("window_cohort", "input_tokens")
    op.drop_column("window_cohort", "input_uj")
    op.drop_column("window_cohort", "input_ns")
    op.drop_column("window", "idle_energy_uj")
    op.drop_table("pruned_window")
    op.drop_table("machine_hour")
    op.drop_table("cost_month")
    op.drop_table("cost_day")
    op.drop_table("cost_hour")


def _tell_prefill_apart(connection: sa.Connection) -> None:
    """Prefill's part of a cohort's time and energy by its positions, rounded down; the rest is output."""
    positions = "(prefill_positions + verify_positions + draft_positions)"
    part = {  # a * b / c without the product, which may not fit
        name: f"{name} / {positions} * prefill_positions + {name} % {positions} * prefill_positions / {positions}"
        for name in ("attributed_ns", "attributed_uj")
    }
    connection.execute(
        sa.text(
            f"UPDATE window_cohort SET input_ns = {part['attributed_ns']}, input_uj = {part['attributed_uj']}"
            f" WHERE {positions} > 0"
        )
    )
    connection.execute(sa.text(f"UPDATE window_cohort SET input_uj = 0 WHERE {positions} = 0 AND attributed_uj >= 0"))


def _roll_up_hours(connection: sa.Connection) -> None:
    """cost_hour without tenants and machine_hour, from the windows."""
    joined = 'FROM window_cohort c JOIN "window" w USING (worker, epoch, sequence)'
    group = "GROUP BY w.hour, w.device, w.model, c.cohort, w.energy_source"
    into = f"INSERT INTO cost_hour (hour, {', '.join((*KEY, *AMOUNTS))})"
    measured = "SUM(CASE WHEN c.attributed_uj IS NULL THEN 0 ELSE c.emitted_tokens END)"
    none = ", ".join("0" for _ in AMOUNTS[6:])
    statements = (
        f"{into} SELECT w.hour, w.device, w.model, c.cohort, '', 'input', w.energy_source, SUM(c.input_ns), 0,"
        f" SUM(c.input_uj), SUM(c.input_uj) * 0, 0, 0, {none}"
        f" {joined} WHERE c.prefill_positions > 0 {group}",
        f"{into} SELECT w.hour, w.device, w.model, c.cohort, '', 'output', w.energy_source,"
        " SUM(c.attributed_ns - c.input_ns), SUM(c.wasted_ns), SUM(c.attributed_uj - c.input_uj), SUM(c.wasted_uj),"
        f" SUM(c.emitted_tokens), {measured}, SUM(c.spec_steps + c.plain_steps), SUM(c.planned_k_steps),"
        f" SUM(c.draft_tokens), SUM(c.accepted_tokens), SUM(c.requests_finished + c.requests_failed) {joined} {group}",
        f"{into} SELECT hour, device, model, '', '', 'idle', energy_source, SUM(idle_ns), 0, SUM(idle_uj),"
        f' SUM(idle_uj) * 0, 0, 0, {none} FROM "window" GROUP BY hour, device, model, energy_source',
        "INSERT INTO machine_hour (hour, sku, ns, windows) SELECT hours.hour, hours.sku, hours.ns, counted.windows FROM"
        " (SELECT hour, sku, SUM(ns) AS ns FROM cost_hour GROUP BY hour, sku) hours JOIN"
        ' (SELECT hour, device, COUNT(*) AS windows FROM "window" GROUP BY hour, device) counted'
        " ON counted.hour = hours.hour AND counted.device = hours.sku",
    )
    for statement in statements:
        connection.execute(sa.text(statement))


def _roll_up_months(connection: sa.Connection) -> None:
    """cost_month from cost_day, one calendar month at a time."""
    first, last = connection.execute(sa.text("SELECT MIN(day), MAX(day) FROM cost_day")).one()
    if first is None:
        return
    statement = sa.text(
        f"INSERT INTO cost_month (month, {', '.join((*KEY, *AMOUNTS))})"
        f" SELECT CAST(:month AS BIGINT), {', '.join(KEY)}, {', '.join(f'SUM({name})' for name in AMOUNTS)}"
        f" FROM cost_day WHERE day >= :begin AND day < :end GROUP BY {', '.join(KEY)}"
    )
    found = [EPOCH + timedelta(days=int(day)) for day in (first, last)]
    months = [(day.year - EPOCH.year) * 12 + day.month - 1 for day in found]
    for month in range(months[0], months[1] + 1):
        begin, end = ((date(EPOCH.year + n // 12, n % 12 + 1, 1) - EPOCH).days for n in (month, month + 1))
        connection.execute(statement, {"month": month, "begin": begin, "end": end})


def _hours_of_requests(connection: sa.Connection) -> list[int]:
    found = connection.execute(sa.text("SELECT DISTINCT hour FROM request WHERE tenant IS NOT NULL ORDER BY hour"))
    return [int(hour) for (hour,) in found]


def _name_tenants(connection: sa.Connection, hour: int) -> None:
    """What nobody is named for in that hour, over the tenants of the cohort's and model's finished requests."""
    requests = sa.text(
        "SELECT cohort, model, COALESCE(tenant, '') AS tenant, COUNT(*) AS requests,"
        " SUM(prompt_tokens) AS prompt_tokens, SUM(completion_tokens) AS completion_tokens,"
        " SUM(prefill_positions) AS input, SUM(verify_positions + draft_positions) AS output FROM request"
        " WHERE hour = :hour GROUP BY cohort, model, COALESCE(tenant, '') ORDER BY cohort, model, COALESCE(tenant, '')"
    )
    tenants: dict[tuple[str, str], list[Any]] = {}
    for row in connection.execute(requests, {"hour": hour}):
        tenants.setdefault((row.cohort, row.model), []).append(row)
    cells: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    found = sa.text("SELECT * FROM cost_hour WHERE hour = :hour AND direction <> 'idle'")
    for cell in connection.execute(found, {"hour": hour}).mappings():
        cells.setdefault((cell["cohort"], cell["model"], cell["direction"]), []).append(dict(cell))
    for cohort, model in tenants:  # a prompt of an hour before still counts in the one in which its request finished
        if (cohort, model, "output") in cells and (cohort, model, "input") not in cells:
            like = cells[cohort, model, "output"][0]
            nothing = {name: None if like[name] is None else 0 for name in AMOUNTS}
            cells[cohort, model, "input"] = [{**like, **nothing, "direction": "input"}]
    split_up = []
    for (cohort, model, direction), rows in cells.items():
        if (cohort, model) in tenants:
            split_up += _over_tenants(rows, direction, tenants[cohort, model])
    if not split_up:
        return
    where = " AND ".join(f"{name} = :{name}" for name in ("hour", *KEY))
    connection.execute(sa.text(f"DELETE FROM cost_hour WHERE {where}"), [{**row, "tenant": ""} for row in split_up])
    names = ("hour", *KEY, *AMOUNTS)
    into = f"INSERT INTO cost_hour ({', '.join(names)}) VALUES ({', '.join(f':{name}' for name in names)})"
    connection.execute(sa.text(into), split_up)


def _over_tenants(rows: list[dict[str, Any]], direction: str, tenants: Sequence[Any]) -> list[dict[str, Any]]:
    """The rows of one cohort, model and direction, each taken apart: sums stay, but for prompt tokens, added here."""
    of_row = [int(row["ns"]) for row in rows]
    prompts = [_split(int(tenant.prompt_tokens), of_row) for tenant in tenants]
    out = []
    for i, row in enumerate(rows):
        positions = [int(getattr(tenant, direction)) for tenant in tenants]
        parts = {name: None if row[name] is None else _split(row[name], positions) for name in EXACT}
        parts["requests"] = _split(row["requests"], [int(tenant.requests) for tenant in tenants])
        if direction == "input":
            parts["tokens"] = [of_rows[i] for of_rows in prompts]
            parts["measured_tokens"] = [0 if row["uj"] is None else of_rows[i] for of_rows in prompts]
        else:
            completions = [int(tenant.completion_tokens) for tenant in tenants]
            parts |= {name: _split(row[name], completions) for name in ("tokens", "measured_tokens")}
        for n, tenant in enumerate(tenants):
            amounts = {name: None if part is None else part[n] for name, part in parts.items()}
            out.append({**row, **amounts, "tenant": tenant.tenant})
    return out


def _split(total: int, weights: Sequence[int]) -> list[int]:
    """Parts in proportion by largest remainder, ties to the first; even parts where all weights are zero."""
    whole = sum(weights)
    if not whole:
        weights, whole = [1] * len(weights), len(weights)
    parts = [total * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: -(total * weights[i] % whole))
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    return parts

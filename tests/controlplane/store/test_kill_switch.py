"""When the kill switch was pulled and let go, from the plans on record."""

from __future__ import annotations

from dataclasses import replace

import sqlalchemy as sa

from controlplane.decision.plan import Plan
from controlplane.store.kill_switch import SwitchChange, kill_switch_log
from controlplane.store.time_range import TimeRange
from controlplane.store.write import write_items

AT = 1_790_000_000.0
PLAN = Plan(1, 1, AT, AT + 10, {}, {}, "")


def test_only_plans_that_changed_the_switch_are_in_the_log(ledger: sa.Engine) -> None:
    modes = ("off", "off", "zero", "zero", "off")
    plans = [replace(PLAN, version=i, issued_at=AT + i, kill_switch=mode) for i, mode in enumerate(modes, 1)]
    with ledger.begin() as connection:
        write_items(connection, plans)
    assert kill_switch_log(ledger, TimeRange(AT, AT + 100)) == [
        SwitchChange(AT + 5, 5, "zero", "off"),
        SwitchChange(AT + 3, 3, "off", "zero"),
    ]
    assert kill_switch_log(ledger, TimeRange(AT + 4, AT + 100)) == [SwitchChange(AT + 5, 5, "zero", "off")]

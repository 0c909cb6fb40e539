"""K of each cohort and the decision behind it, as the Overview says them."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest

from controlplane.store.queries import DecisionRow, PlanRow
from dashboard.overview_why import why_frame

UTC = ZoneInfo("UTC")
PLAN = PlanRow(
    version=1, epoch=1, issued_at=0.0, expires_at=9.0, k={"code": [2, 2], "json": [2, 4]}, fallback={},
    policy_revision="r", kill_switch="off",
)  # fmt: skip


def decision(old_k: int, new_k: int, reason: str) -> DecisionRow:
    return DecisionRow(
        at=1.0, cohort="code", load_bucket=1, old_k=old_k, new_k=new_k, reason=reason, sentence="so", samples=0,
        accept_at=(), plan_version=1, policy_revision="r",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("newest", "k"),
    [
        (decision(2, 0, "experiment"), "0, control window"),
        (decision(0, 2, "experiment"), "2"),
        (decision(2, 0, "lowered"), "2"),
    ],
)
def test_in_a_control_window_k_is_what_is_used_and_not_what_the_plan_goes_on_from(newest, k):
    frame = why_frame(PLAN, [newest], ["code"], UTC)
    assert frame["K"].tolist() == [k]


def test_a_cohort_that_nothing_changed_says_so():
    frame = why_frame(PLAN, [], ["json"], UTC)
    assert frame.iloc[0].tolist()[:3] == ["json", "2 to 4 by load", "nothing changed it in this range"]

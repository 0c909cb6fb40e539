"""Which policies an hour ran under."""

from __future__ import annotations

import pytest

from controlplane.finops.policy_hours import revisions_in

APPLIED = [(2.5 * 3600, "b"), (1.25 * 3600, "a"), (2.75 * 3600, "c"), (4 * 3600, "d"), (6.5 * 3600, "d")]


@pytest.mark.parametrize(
    ("hour", "revisions"),
    [(0, None), (1, "a"), (2, "a+b+c"), (3, "c"), (4, "d"), (5, "d"), (6, "d"), (7, "d")],
    ids=["before the first", "in its hour", "two changes", "none", "on the hour", "after", "again", "later"],
)
def test_an_hour_has_the_policies_in_force_in_it_in_order(hour: int, revisions: str | None) -> None:
    assert revisions_in(APPLIED)(hour) == revisions


def test_without_any_policy_none_is_named() -> None:
    assert revisions_in([])(5) is None

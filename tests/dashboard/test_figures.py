"""Figures from sums over points."""

from __future__ import annotations

import pytest

from controlplane.store.queries import CohortPoint, CostReport, CostRow, DecisionRow
from dashboard import figures


def point(at: float, cohort: str, tokens: int, first_at: float, last_at: float, **changes: int) -> CohortPoint:
    counts = {"spec_steps": 10, "plain_steps": 0, "accepted_tokens": 15, "draft_tokens": 40, **changes}
    return CohortPoint(
        at=at,
        cohort=cohort,
        emitted_tokens=tokens,
        seconds=last_at - first_at,
        tokens_per_s=tokens / (last_at - first_at),
        acceptance_length=2.5,
        mean_k=4.0,
        planned_k=4.0,
        first_at=first_at,
        last_at=last_at,
        **counts,
    )


def test_cohorts_that_worked_at_the_same_time_share_the_seconds():
    assert figures.tokens_per_second([point(0, "a", 300, 0, 10), point(0, "b", 200, 5, 10)]) == 50


def test_cohorts_that_worked_one_after_the_other_do_not():
    assert figures.tokens_per_second([point(0, "a", 300, 0, 5), point(0, "b", 200, 5, 10)]) == 50


def test_time_without_work_does_not_slow_the_rate():
    assert figures.tokens_per_second([point(0, "a", 100, 0, 5), point(600, "a", 100, 600, 605)]) == 20


def test_a_rate_of_nothing_is_not_known():
    assert figures.tokens_per_second([]) is None


def test_acceptance_length_is_a_ratio_of_sums_and_no_average_of_averages():
    points = [point(0, "a", 1, 0, 1, spec_steps=1, accepted_tokens=4), point(1, "a", 1, 1, 2, spec_steps=9)]
    assert figures.acceptance_length(points) == pytest.approx(1 + 19 / 10)


def test_without_a_spec_step_there_is_no_acceptance_length():
    assert figures.acceptance_length([point(0, "a", 1, 0, 1, spec_steps=0, plain_steps=5)]) is None


def test_a_cohort_that_is_not_in_the_report_has_an_empty_row():
    report = CostReport((), CostRow("idle"), CostRow("total"), "USD", "on_demand", 0.0)
    assert figures.chosen_row(report, "nobody").emitted_tokens == 0


@pytest.mark.parametrize(
    ("cohort", "sentence", "text"),
    [
        (
            "code",
            "code 2 -> 4 at load 1: position 2 accepted 71 % (floor 50 %)",
            "position 2 accepted 71 % (floor 50 %)",
        ),
        ("a: b", "a: b stays at 2 at load 3-4: the policy fixes it", "the policy fixes it"),
        ("code", "an operator said so: no reason", "an operator said so: no reason"),
        ("code", "code stays", "code stays"),
    ],
)
def test_a_table_says_why_without_repeating_its_other_columns(cohort, sentence, text):
    row = DecisionRow(0.0, cohort, 0, 2, 4, "floor", sentence, 60, (), 1, "0123456789ab")
    assert figures.why(row) == text

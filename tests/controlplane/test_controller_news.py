"""What the controller journals: every move, and a hold once for each reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from controlplane.controller import Controller
from controlplane.policy import parse_policy
from controlplane.telemetry import CohortWindow, Report, StepCell, StepCount, WindowId, WorkerWindow

POLICY = """
version: 1
cohorts:
  - name: default
    match: {}
    speculation: {tuner: threshold, acceptance_floor: 50%, ladder: [0, 1, 2, 4], start: 2, fallback: 0}
    guard: {hold: 60s, min_samples: 20}
"""


@dataclass(slots=True)
class Recorded:
    decisions: list[Any] = field(default_factory=list)

    def record(self, reports: Any, decisions: Any, plan: Any, now: float) -> None:
        self.decisions += decisions

    def policy_applied(self, *args: Any) -> None:
        pass


def window(sequence: int, accepted: int) -> WorkerWindow:
    cohort = CohortWindow("default", (StepCell(0, 2, (StepCount(2, accepted, False, 10),), 0.5),))
    return WorkerWindow(
        *(WindowId("w", 1, sequence), "m", "ngram", "cpu", float(sequence), sequence + 1.0, 0.5, None, "none"),
        *(1, False, 0.0, 1, 0, 1, 2, (cohort,)),
    )


def journalled(ticks: int, accepted: int) -> tuple[list[Any], int]:
    journal = Recorded()
    controller = Controller(parse_policy(POLICY), journal, epoch=1)
    for i in range(ticks):
        controller.observe(Report(window(i, accepted)))
        controller.tick(i + 1.0)
    return journal.decisions, sum(controller.decided.values())


def test_a_hold_with_the_same_reason_is_journalled_once() -> None:
    decisions, _ = journalled(30, accepted=2)
    told = [(d.new_k, d.reason) for d in decisions if d.new_k == d.old_k]
    assert len(told) == len(set(told)) > 0


def test_every_decision_is_counted_even_where_it_is_not_news() -> None:
    decisions, counted = journalled(30, accepted=2)
    assert counted == 30 > len(decisions)


def test_a_move_is_always_journalled() -> None:
    decisions, _ = journalled(200, accepted=2)
    moves = [d for d in decisions if d.new_k != d.old_k]
    assert [(d.old_k, d.new_k) for d in moves] == [(2, 4)]

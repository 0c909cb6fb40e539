"""The history of policies: applied, tried on a part, and what became of that."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa

from controlplane.policy import Policy, parse_policy
from controlplane.rollout import Rollout, StageOrder, begin, end
from controlplane.store.journal import SqlJournal
from controlplane.store.policies import close_rollouts, find_policies, last_of_file, policy_history, rollouts

AT = 1_790_000_000.0


def policy(start: int) -> Policy:
    return parse_policy(
        "version: 1\ncohorts:\n  - name: default\n    match: {}\n"
        f"    speculation: {{tuner: fixed, ladder: [0, 2, 4, 6], start: {start}, fallback: 0}}\n"
    )


def rollout(start: int, at: float) -> Rollout:
    workers = {"a": at, "b": at}
    order = StageOrder(0.5, min_windows=30, max_s=99)
    return begin(policy(start), policy(0), order, workers=workers, by="ann", why="deeper", now=at)


@pytest.fixture
def filled(ledger: sa.Engine) -> sa.Engine:
    """Applied, tried and given up, tried and promoted, and one that is under way."""
    journal = SqlJournal(ledger)
    journal.policy_applied(policy(0), "kadence", "start", AT)
    worse, better, now = rollout(6, AT + 10), rollout(4, AT + 30), rollout(2, AT + 50)
    for each in (
        worse,
        better,
        now,
        end(worse, "rolled_back", "slower", AT + 20),
        end(better, "promoted", "x", AT + 40),
    ):
        journal.rollout_changed(each)
    journal.policy_applied(policy(4), "ann", "promoted", AT + 40)
    journal.rollout_changed(replace(worse, stage="promoted", ended_at=AT + 99))  # too late
    journal.close()
    return ledger


def test_the_history_has_what_was_applied_and_what_became_of_rollouts(filled: sa.Engine) -> None:
    assert [(entry.what, entry.applied_at - AT, entry.why) for entry in policy_history(filled)] == [
        ("staged", 50, "deeper"),
        ("applied", 40, "promoted"),
        ("staged", 30, "deeper"),
        ("rolled_back", 20, "slower"),
        ("staged", 10, "deeper"),
        ("applied", 0, "start"),
    ]
    assert len(policy_history(filled, limit=2)) == 2


def test_a_rollout_is_one_row_from_its_beginning_to_its_end(filled: sa.Engine) -> None:
    found = rollouts(filled)
    assert [(each.stage, each.ended_at and each.ended_at - AT) for each in found] == [
        ("staged", None),
        ("promoted", 40),
        ("rolled_back", 20),
    ]
    assert (found[0].unit, found[0].share, found[0].min_windows, found[0].max_s) == ("replicas", 0.5, 30, 99)


def test_rollouts_that_a_lost_controller_left_are_closed(filled: sa.Engine) -> None:
    assert close_rollouts(filled, "the controller restarted", AT + 60) == 1
    assert rollouts(filled)[0].sentence == "the controller restarted"
    assert close_rollouts(filled, "again", AT + 70) == 0


def test_a_policy_that_was_only_tried_can_be_found(filled: sa.Engine) -> None:
    tried = policy(6)
    assert find_policies(filled, tried.revision[:8]) == {tried.revision: tried.text}
    assert find_policies(filled, "%") == {}


def test_the_last_policy_of_the_file_is_told_from_what_was_applied(filled: sa.Engine) -> None:
    assert last_of_file(filled, "policy file") == policy(0).revision
    journal = SqlJournal(filled)
    journal.policy_applied(policy(6), "policy file", "changed", AT + 100)
    journal.policy_applied(policy(2), "bob", "by hand", AT + 110)
    journal.close()
    assert last_of_file(filled, "policy file") == policy(6).revision

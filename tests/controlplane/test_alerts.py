"""From a canary's check to an alert, and from an alert to a drafter that must not draft."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.alerts import Alert, AlertBook, CanaryCheck

CHECK = CanaryCheck("r1", "w1", "json", "ngram@1", 100.0, "greedy", 40, 0, 0, 0.0, 0.0, None, 90, 0.2)
WRONG = replace(CHECK, mismatches=3, worst_gap=7.5, tolerance=1.1, first_mismatch=12)
NEAR = replace(CHECK, near_ties=2, worst_gap=0.1, tolerance=1.1)


@pytest.mark.parametrize(("check", "verdict"), [(CHECK, "same"), (NEAR, "near_tie"), (WRONG, "mismatch")])
def test_the_verdict_is_the_worst_that_was_found(check, verdict) -> None:
    assert check.verdict == verdict


@pytest.mark.parametrize("check", [CHECK, NEAR], ids=["same", "near_tie"])
def test_text_that_is_right_up_to_rounding_raises_nothing(check) -> None:
    assert AlertBook().take(check) == (AlertBook(), None)


def test_a_mismatch_raises_a_critical_alert_and_blocks_its_drafter() -> None:
    book, alert = AlertBook().take(WRONG)
    assert (alert.name, alert.severity, alert.state, alert.count) == ("canary:ngram@1", "critical", "active", 1)
    assert book.blocked_drafters == ("ngram@1",)


def test_the_sentence_says_where_and_how_far_off() -> None:
    _, alert = AlertBook().take(WRONG)
    assert alert.detail == (
        "text of json drafted by ngram@1 is not the target's: 3 of 40 tokens differ in request r1, from token 12 on; "
        "the worst missed the best by 7.5 logits (rounding explains 1.1)"
    )


def test_a_token_that_was_not_allowed_has_no_distance() -> None:
    assert "was not even allowed" in replace(WRONG, worst_gap=None).sentence()


def test_more_of_the_same_counts_in_any_order() -> None:
    later, earlier = replace(WRONG, request_id="r2", at=130.0), replace(WRONG, request_id="r3", at=90.0)
    book, _ = AlertBook().take(WRONG)
    book, _ = book.take(later)
    book, alert = book.take(earlier)
    assert (alert.count, alert.first_seen, alert.last_seen) == (3, 100.0, 130.0)
    assert len(book.active) == 1


def test_each_version_of_a_drafter_has_an_alert_of_its_own() -> None:
    book, _ = AlertBook().take(WRONG)
    book, _ = book.take(replace(WRONG, drafter="draft_model@0123456789ab"))
    assert book.blocked_drafters == ("draft_model@0123456789ab", "ngram@1")


def test_a_cleared_alert_blocks_no_more_and_says_who_and_why() -> None:
    book, _ = AlertBook().take(WRONG)
    book, ended = book.clear("canary:ngram@1", by="ops", why="fixed", now=200.0)
    assert (book.blocked_drafters, ended.state, ended.cleared_at) == ((), "cleared", 200.0)
    assert (ended.cleared_by, ended.why, ended.first_seen) == ("ops", "fixed", 100.0)


def test_what_comes_back_after_that_is_a_new_alert() -> None:
    book, _ = AlertBook().take(WRONG)
    book, _ = book.clear("canary:ngram@1", by="ops", why="", now=200.0)
    _, alert = book.take(replace(WRONG, at=300.0))
    assert (alert.first_seen, alert.count) == (300.0, 1)


def test_clearing_what_is_not_active_names_what_is() -> None:
    book, _ = AlertBook().take(WRONG)
    with pytest.raises(ValueError, match=r"no active alert is named 'canary:x@1' \(active: canary:ngram@1\)"):
        book.clear("canary:x@1", by="ops", why="", now=0.0)


def test_a_book_of_stored_alerts_has_the_active_ones() -> None:
    book, active = AlertBook().take(WRONG)
    _, ended = book.clear(active.name, by="ops", why="", now=1.0)
    assert AlertBook.of([replace(ended, subject="old@1"), active]) == book


@pytest.mark.parametrize(
    ("field", "value"),
    [("at", float("nan")), ("seconds", -1.0), ("worst_gap", float("inf")), ("positions", 2), ("mismatches", -1)],
)
def test_a_check_that_cannot_be_true_names_the_field(field, value) -> None:
    assert CHECK.problem is None
    assert WRONG.problem is None
    assert replace(WRONG, **{field: value}).problem in (f"bad {field}", "bad positions")


def test_an_alert_that_somebody_else_found_blocks_no_drafter() -> None:
    over = Alert("budget", "code/80%/2026-11", "warning", 1.0, 1.0, 1, "80 % spent")
    book = AlertBook().with_alert(over)
    assert (list(book.active), book.blocked_drafters) == (["budget:code/80%/2026-11"], ())

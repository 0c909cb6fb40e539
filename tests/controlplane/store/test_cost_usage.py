"""What a stored window says it used, also one that was stored by an older version."""

from __future__ import annotations

from controlplane.store.cost_usage import told_uses
from controlplane.store.rollup import Amounts

INPUT = Amounts(5, tokens=30)
DRAFTED = Amounts(10, tokens=40, steps=10, planned_k_steps=20, draft_tokens=20, accepted_tokens=12, requests=1)
PLAIN = Amounts(10, tokens=90, steps=90)
OLDER = [["a", "input", *INPUT[:-1]], ["a", "output", *DRAFTED[:-1]], ["b", "output", *PLAIN[:-1]]]


def test_an_older_windows_steps_with_a_draft_are_with_those_that_drafted() -> None:
    assert told_uses(OLDER, 6) == [
        ("a", "input", INPUT),
        ("a", "output", DRAFTED._replace(spec_steps=6)),
        ("b", "output", PLAIN),
    ]


def test_what_a_window_says_itself_stays() -> None:
    told = DRAFTED._replace(spec_steps=4)
    assert told_uses([["a", "output", *told]], 6) == [("a", "output", told)]


def test_of_a_sum_with_a_part_that_is_not_known_the_whole_is_not_known() -> None:
    known, unknown = DRAFTED._replace(spec_steps=4), DRAFTED._replace(spec_steps=None)
    assert known.plus(known).spec_steps == 8
    assert known.plus(unknown).spec_steps is None
    assert unknown.plus(known).steps == 20

"""Covering and overlapping of patterns, against brute force over short texts."""

from fnmatch import fnmatchcase
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.policy import Match
from controlplane.policy.overlap import covers, overlaps

TEXTS = ["".join(letters) for n in range(5) for letters in product("ab]!", repeat=n)]
globs = st.lists(st.sampled_from(["a", "b", "*", "?", "[ab]", "[!a]", "[", "]", "!"]), max_size=4).map("".join)


def allowed(glob: str) -> set[str]:
    return {text for text in TEXTS if fnmatchcase(text, glob)}


@settings(max_examples=300, deadline=None)
@given(globs, globs)
def test_covering_is_never_claimed_wrongly(wide: str, narrow: str) -> None:
    if covers(Match(user=(wide,)), Match(user=(narrow,))):
        assert allowed(narrow) <= allowed(wide)


@settings(max_examples=300, deadline=None)
@given(globs, globs)
def test_an_overlap_is_never_missed(one: str, other: str) -> None:
    if allowed(one) & allowed(other):
        assert overlaps(Match(user=(one,)), Match(user=(other,)))


@given(globs)
def test_a_pattern_covers_itself_and_is_covered_by_the_star(glob: str) -> None:
    assert covers(Match(user=(glob,)), Match(user=(glob,)))
    assert covers(Match(user=("*",)), Match(user=(glob,)))


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        ("/v1/*", "/v1/chat/*", True),
        ("a?c", "a*c", False),
        ("[ab]", "a", True),
        ("?", "*", False),
        ("*b*", "abc", True),
    ],
)
def test_covering_of_usual_patterns(wide: str, narrow: str, expected: bool) -> None:
    assert covers(Match(route=(wide,)), Match(route=(narrow,))) is expected

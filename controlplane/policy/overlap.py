"""Which requests two cohorts both match: one matching all of another's makes it unreachable, some is an overlap.

`covers` never says yes wrongly, `overlaps` never says no wrongly: an error has to be certain, a warning may be careful.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache

from controlplane.policy.model import Match

_ALWAYS_PRESENT = ("*",)  # a request always has a route and a model, so "no constraint" and "*" say the same


def covers(wide: Match, narrow: Match) -> bool:
    """Whether every request that `narrow` matches is surely matched by `wide`."""
    return (
        _literals_cover(wide.api_key, narrow.api_key)
        and _literals_cover(wide.service_tier, narrow.service_tier)
        and _globs_cover(wide.route or _ALWAYS_PRESENT, narrow.route or _ALWAYS_PRESENT)
        and _globs_cover(wide.model or _ALWAYS_PRESENT, narrow.model or _ALWAYS_PRESENT)
        and _globs_cover(wide.user, narrow.user)
        and all(_globs_cover(allowed, narrow.headers.get(name, ())) for name, allowed in wide.headers.items())
        and all(_globs_cover(allowed, narrow.metadata.get(name, ())) for name, allowed in wide.metadata.items())
    )


def overlaps(one: Match, other: Match) -> bool:
    """Whether a request could match both."""
    return (
        _share(one.api_key, other.api_key, str.__eq__)
        and _share(one.service_tier, other.service_tier, str.__eq__)
        and _share(one.route, other.route, _globs_meet)
        and _share(one.model, other.model, _globs_meet)
        and _share(one.user, other.user, _globs_meet)
        and _mappings_meet(one.headers, other.headers)
        and _mappings_meet(one.metadata, other.metadata)
    )


def _literals_cover(wide: tuple[str, ...], narrow: tuple[str, ...]) -> bool:
    return not wide or (bool(narrow) and set(narrow) <= set(wide))


def _globs_cover(wide: tuple[str, ...], narrow: tuple[str, ...]) -> bool:
    return not wide or (bool(narrow) and all(any(_glob_covers(w, n) for w in wide) for n in narrow))


def _share(one: tuple[str, ...], other: tuple[str, ...], meet: Callable[[str, str], bool]) -> bool:
    return not one or not other or any(meet(a, b) for a in one for b in other)


def _mappings_meet(one: Mapping[str, tuple[str, ...]], other: Mapping[str, tuple[str, ...]]) -> bool:
    return all(_share(one[name], other[name], _globs_meet) for name in one.keys() & other.keys())


@lru_cache(maxsize=4096)
def _tokens(glob: str) -> tuple[str, ...]:
    """Characters, `*`, `?` and whole `[...]` classes; an unclosed `[` is a character."""
    tokens, i = [], 0
    while i < len(glob):
        end = glob.find("]", i + 3 if glob[i + 1 : i + 2] == "!" else i + 2) if glob[i] == "[" else -1
        tokens.append(glob[i : end + 1] if end > 0 else glob[i])
        i += len(tokens[-1])
    return tuple(tokens)


@lru_cache(maxsize=4096)
def _glob_covers(wide: str, narrow: str) -> bool:
    """Whether all that `narrow` allows is surely allowed by `wide` (language inclusion, token by token)."""
    if _is_literal(narrow):
        return wide == narrow if _is_literal(wide) else fnmatchcase(narrow, wide)
    return _walk(_tokens(wide), _tokens(narrow), _token_covers, both_stars=False)


@lru_cache(maxsize=4096)
def _globs_meet(one: str, other: str) -> bool:
    """Whether some text may be allowed by both."""
    if _is_literal(one):
        return one == other if _is_literal(other) else fnmatchcase(one, other)
    return _walk(_tokens(one), _tokens(other), _tokens_meet, both_stars=True)


def _is_literal(glob: str) -> bool:
    """Nearly every pattern of a large policy: compared at once, since all pairs of cohorts are looked at."""
    return not any(mark in glob for mark in "*?[")


def _walk(a: tuple[str, ...], b: tuple[str, ...], fits: Callable[[str, str], bool], *, both_stars: bool) -> bool:
    """Reach both ends: a star of `a` (and of `b`, when `both_stars`) swallows any run of the other's tokens."""
    row = [False] * (len(b) + 1)
    row[0] = True
    for i in range(len(a) + 1):
        previous, row = row, [False] * (len(b) + 1)
        for j in range(len(b) + 1):
            if i == 0 and j == 0:
                row[j] = True
                continue
            reached = False
            if i and a[i - 1] == "*":
                reached = previous[j] or (j > 0 and row[j - 1])
            if not reached and both_stars and j and b[j - 1] == "*":
                reached = row[j - 1] or (i > 0 and previous[j])
            if not reached and i and j and a[i - 1] != "*" and b[j - 1] != "*":
                reached = previous[j - 1] and fits(a[i - 1], b[j - 1])
            row[j] = reached
    return row[-1]


def _token_covers(wide: str, narrow: str) -> bool:
    if wide == "?" or wide == narrow:
        return True
    return len(wide) > 1 and len(narrow) == 1 and narrow != "?" and fnmatchcase(narrow, wide)


def _tokens_meet(one: str, other: str) -> bool:
    if "?" in (one, other) or (len(one) > 1 and len(other) > 1):
        return True
    if len(one) > 1:
        return fnmatchcase(other, one)
    return fnmatchcase(one, other) if len(other) > 1 else one == other

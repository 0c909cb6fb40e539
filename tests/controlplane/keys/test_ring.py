"""Looking keys up: who is let in, until when, and that a wrong secret costs what a right one does."""

from __future__ import annotations

import hmac
from dataclasses import replace

import pytest

from controlplane.keys import ring as ring_module
from controlplane.keys.ring import ApiKey, KeyLimits, KeyRing, look_up
from controlplane.keys.secret import RANDOM_BYTES, make

NEW = make(bytes(RANDOM_BYTES))
OTHER = make(bytes(31) + b"\1" + bytes(9))  # the same public id, another secret
STRANGER = make(bytes(range(RANDOM_BYTES)))
KEY = ApiKey(NEW.id, "team", NEW.digest, tenant="team", expires_at=100.0)


@pytest.mark.parametrize(
    ("changes", "now", "found"),
    [
        ({}, 99.9, None),
        ({}, 100.0, "expired"),
        ({"expires_at": None}, 1e12, None),
        ({"ends_at": 50.0}, 49.9, None),
        ({"ends_at": 50.0}, 50.0, "rotated"),
        ({"ends_at": 50.0, "is_revoked": True}, 50.0, "revoked"),
        ({"ends_at": 50.0, "is_revoked": True}, 49.9, "revoked"),  # a clock that was set back, or is another machine's
        ({"ends_at": 150.0}, 120.0, "expired"),
    ],
)
def test_a_key_opens_until_it_ends(changes: dict[str, object], now: float, found: str | None) -> None:
    key = replace(KEY, **changes)
    assert look_up(KeyRing((key,)), NEW.text, now) == (found or key)


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        ("unused", "malformed"),
        ("", "malformed"),
        ("é" * 40, "malformed"),
        (OTHER.text, "unknown"),
        (STRANGER.text, "unknown"),
    ],
)
def test_anything_else_opens_nothing(token: str, reason: str) -> None:
    assert OTHER.id == NEW.id
    assert look_up(KeyRing((KEY,)), token, 0.0) == reason


@pytest.mark.parametrize("token", ["unused", NEW.text, OTHER.text, STRANGER.text])
def test_every_token_costs_one_comparison_in_constant_time(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """How long an answer takes must not say whether an id is there, nor how much of a secret is right."""
    compared, compare = [], hmac.compare_digest

    def watched(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return compare(one, other)

    monkeypatch.setattr(ring_module.hmac, "compare_digest", watched)
    look_up(KeyRing((KEY,)), token, 0.0)
    assert compared == [(32, 32)]


def test_both_secrets_of_a_key_are_valid_during_a_rotation() -> None:
    both = KeyRing((replace(KEY, ends_at=50.0), replace(KEY, id=STRANGER.id, digest=STRANGER.digest)))
    found = [look_up(both, text, 49.0) for text in (NEW.text, STRANGER.text)]
    assert [key.name for key in found if isinstance(key, ApiKey)] == ["team", "team"]


def test_a_key_is_never_shown_with_its_digest() -> None:
    assert NEW.digest.hex() not in repr(KeyRing((KEY,)))
    assert repr(NEW.digest) not in repr(KeyRing((KEY,)))


def test_the_parts_of_endpoints_are_together_no_more_than_the_limit() -> None:
    limits = KeyLimits(100, 1001, 7)
    part = limits.part(3)
    assert (part.requests_per_minute, part.tokens_per_minute, part.max_concurrent) == (33, 333, 2)
    assert limits.part(1) == limits
    assert KeyLimits().part(3) == KeyLimits()

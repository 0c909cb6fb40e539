"""The text of keys: their shape, their check, and that no bit of the randomness is lost."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.keys.secret import RANDOM_BYTES, digest, is_meant_as_key, make, public_id

RANDOM = bytes(range(RANDOM_BYTES))
entropy = st.binary(min_size=RANDOM_BYTES, max_size=RANDOM_BYTES)


@settings(deadline=None, max_examples=50)
@given(entropy, st.booleans())
def test_a_key_carries_its_public_id_and_is_one_word(random: bytes, is_admin: bool) -> None:
    key = make(random, is_admin=is_admin)
    assert public_id(key.text) == key.id
    assert key.text.startswith(f"{'kda' if is_admin else 'kd'}-{key.id}-")
    assert key.text.replace("-", "").isalnum()
    assert key.digest == digest(key.text) == hashlib.sha256(key.text.encode()).digest()


@settings(deadline=None, max_examples=50)
@given(entropy, st.integers(0, 255))
def test_every_bit_of_the_secret_is_in_the_text(random: bytes, bit: int) -> None:
    changed = (int.from_bytes(random[:32]) ^ (1 << bit)).to_bytes(32)
    assert make(random).text != make(changed + random[32:]).text
    assert make(random).id == make(changed + random[32:]).id


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 65), st.characters(codec="ascii", categories=["L", "N"]))
def test_a_mistyped_character_is_seen(at: int, typed: str) -> None:
    text = make(RANDOM).text
    wrong = text[:at] + typed + text[at + 1 :]
    assert (public_id(wrong) is None) is (wrong != text)


@pytest.mark.parametrize(
    "text", ["", "kd", "unused", "sk-abc", "kd--", make(RANDOM).text + "\n", " " + make(RANDOM).text]
)
def test_what_is_no_key_has_no_id(text: str) -> None:
    assert public_id(text) is None


def test_the_kind_of_a_key_is_under_its_check() -> None:
    assert public_id(make(RANDOM).text.replace("kd-", "kda-", 1)) is None


def test_a_mistyped_key_is_still_meant_as_one() -> None:
    assert [is_meant_as_key(text) for text in ("kd-x", "kda-x", "unused", "kdx")] == [True, True, False, False]


@pytest.mark.parametrize("length", [0, 32, 42])
def test_a_key_of_too_little_randomness_is_not_made(length: int) -> None:
    with pytest.raises(ValueError, match="41 random bytes"):
        make(bytes(length))

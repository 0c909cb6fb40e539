"""The text of a key: made once, shown once, stored as a digest.

`kd-<id>-<secret><check>`, `kda-` for an admin key, all in base 62 so that a double click selects it: the id (12
characters) is public and finds the key; the secret (43) is 256 random bits; the check (6) is the CRC-32 of all before
it, so that a scanner for leaked keys, or a person who mistyped, needs no database.

What is stored is the plain SHA-256 of the whole text. Salt, pepper and slow functions (bcrypt, argon2) protect secrets
that people choose, from lists of likely ones; of 2^256 equally likely ones nobody can try a noticeable share, however
fast the function is, and a slow one on every request would be a way to stop the server.
"""

from __future__ import annotations

import hashlib
import re
import string
import zlib
from typing import NamedTuple

RANDOM_BYTES = 41
"""That `make` takes: 32 for the secret, 9 for the id."""
INFERENCE_PREFIX, ADMIN_PREFIX = "kd", "kda"

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_ID_LENGTH, _SECRET_LENGTH, _CHECK_LENGTH = 12, 43, 6
_SHAPE = re.compile(rf"(kda?)-([0-9A-Za-z]{{{_ID_LENGTH}}})-[0-9A-Za-z]{{{_SECRET_LENGTH + _CHECK_LENGTH}}}")


class NewKey(NamedTuple):
    """A key's public id, its text (the only time anybody sees it), and the digest to keep (32 bytes)."""

    id: str
    text: str
    digest: bytes


def make(random: bytes, *, is_admin: bool = False) -> NewKey:
    """A key of RANDOM_BYTES bytes that nobody can guess. Raises ValueError for another number of them."""
    if len(random) != RANDOM_BYTES:
        raise ValueError(f"a key takes {RANDOM_BYTES} random bytes, not {len(random)}")
    id = _base62(int.from_bytes(random[32:]) % 62**_ID_LENGTH, _ID_LENGTH)
    secret = _base62(int.from_bytes(random[:32]), _SECRET_LENGTH)
    text = f"{ADMIN_PREFIX if is_admin else INFERENCE_PREFIX}-{id}-{secret}"
    text += _check(text)
    return NewKey(id, text, digest(text))


def digest(text: str) -> bytes:
    """SHA-256 of a key's text, 32 bytes."""
    return hashlib.sha256(text.encode()).digest()


def public_id(text: str) -> str | None:
    """The id in a key's text; None for what is no key of ours, or was mistyped."""
    shape = _SHAPE.fullmatch(text)
    is_whole = shape is not None and _check(text[:-_CHECK_LENGTH]) == text[-_CHECK_LENGTH:]
    return shape[2] if shape is not None and is_whole else None


def is_meant_as_key(text: str) -> bool:
    """Whether somebody who sends this takes it for one of our keys, whole or not."""
    return text.startswith((f"{INFERENCE_PREFIX}-", f"{ADMIN_PREFIX}-"))


def _check(text: str) -> str:
    return _base62(zlib.crc32(text.encode()), _CHECK_LENGTH)


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))

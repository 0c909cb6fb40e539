"""All keys on record as one frozen value: what an endpoint looks keys up in, with no database on a request's path."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import Literal

from controlplane.keys.secret import digest, public_id

Rejection = Literal["malformed", "unknown", "expired", "rotated", "revoked"]
"""Why a token opens nothing: no key's text; no such key, or its secret is another; over; replaced; taken back."""

_NOBODYS = bytes(32)


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """What one key may use: requests and tokens a minute, requests at once. None is no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent: int | None = None

    def part(self, of: int) -> KeyLimits:
        """Of each limit the part of one of `of` endpoints, at least 1: together never more than the limit, where that
        is not less than their number.
        """
        limits = (self.requests_per_minute, self.tokens_per_minute, self.max_concurrent)
        return KeyLimits(*(None if limit is None else max(limit // of, 1) for limit in limits))


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One secret of a key; while a rotation's grace lasts, a name has two. Times in unix seconds.

    id: public, a part of the text. digest: SHA-256 of the text. name: what the policy's `match.api_key` compares.
    tenant: whose budget and bill it is; None for an admin key. cohort: where its requests go whatever they say; None
    leaves it to the policy. ends_at: when it was revoked, or the grace of its rotation ends; None while neither.
    """

    id: str
    name: str
    digest: bytes = field(repr=False)
    is_admin: bool = False
    tenant: str | None = None
    cohort: str | None = None
    limits: KeyLimits = KeyLimits()
    note: str = ""
    created_at: float = 0.0
    created_by: str = ""
    expires_at: float | None = None
    ends_at: float | None = None
    is_revoked: bool = False

    def rejection(self, now: float) -> Rejection | None:
        """Why it opens nothing at `now`; None while it does. Revoked, it never does, whatever the clock says here or
        said where it was revoked.
        """
        if self.is_revoked:
            return "revoked"
        if self.ends_at is not None and now >= self.ends_at:
            return "rotated"
        return "expired" if self.expires_at is not None and now >= self.expires_at else None


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The keys that are on record, without those that ended long ago.

    has_inference, has_admin: whether a key of that kind was ever made, also one that has ended: a system that had keys
    does not fall open when the last one is revoked. revision: differs where anything differs.
    """

    keys: tuple[ApiKey, ...] = ()
    has_inference: bool = False
    has_admin: bool = False
    revision: str = ""
    by_id: dict[str, ApiKey] = field(init=False, repr=False, compare=False)
    names: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_id", {key.id: key for key in self.keys})
        object.__setattr__(self, "names", frozenset(key.name for key in self.keys if not key.is_admin))


def look_up(ring: KeyRing, token: str, now: float) -> ApiKey | Rejection:
    """The key whose text `token` is, or why it opens nothing.

    Only the public id decides which key is looked at, and every token costs one digest and one comparison in constant
    time: how long it takes says nothing of a secret, nor of which ids there are.
    """
    id = public_id(token)
    key = ring.by_id.get(id) if id is not None else None
    is_same = hmac.compare_digest(digest(token), key.digest if key is not None else _NOBODYS)
    if id is None:
        return "malformed"
    if key is None or not is_same:
        return "unknown"
    return key.rejection(now) or key

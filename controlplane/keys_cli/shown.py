"""A key as JSON and as a line: all that is known of it but its digest."""

from __future__ import annotations

from typing import Any

from controlplane.keys.ring import ApiKey
from controlplane.store.time_range import iso


def key_json(key: ApiKey, now: float) -> dict[str, Any]:
    """A key for programs, without its digest."""
    return {
        "name": key.name,
        "id": key.id,
        "kind": "admin" if key.is_admin else "inference",
        "state": key.rejection(now) or "valid",
        "tenant": key.tenant,
        "cohort": key.cohort,
        "requests_per_minute": key.limits.requests_per_minute,
        "tokens_per_minute": key.limits.tokens_per_minute,
        "max_concurrent": key.limits.max_concurrent,
        "note": key.note,
        "created_at": key.created_at,
        "created_by": key.created_by,
        "expires_at": key.expires_at,
        "ends_at": key.ends_at,
    }


def key_line(key: ApiKey, now: float) -> str:
    """A key for a person, in one line."""
    said: list[str] = [key.rejection(now) or "valid"]
    if key.is_admin:
        said.append("admin")
    if key.tenant not in (None, key.name):
        said.append(f"tenant {key.tenant}")
    if key.cohort is not None:
        said.append(f"cohort {key.cohort}")
    limits = (
        (key.limits.requests_per_minute, "requests/min"),
        (key.limits.tokens_per_minute, "tokens/min"),
        (key.limits.max_concurrent, "at once"),
    )
    said += [f"{limit} {what}" for limit, what in limits if limit is not None]
    if key.expires_at is not None:
        said.append(f"{'expired' if now >= key.expires_at else 'expires'} {iso(key.expires_at)}")
    if key.ends_at is not None:
        said.append(f"{'ended' if now >= key.ends_at else 'ends'} {iso(key.ends_at)}")
    return f"{key.name}  {key.id}  {', '.join(said)}"

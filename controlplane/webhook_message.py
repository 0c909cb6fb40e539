"""A signed message to another system: what is sent and how the receiver can tell that it is ours. Pure.

Header x-kadence-signature is `v1=` and the hexadecimal HMAC-SHA256 of `<x-kadence-timestamp>.<body>` under the shared
secret. A message may come more than once, always with the same x-kadence-id: the receiver drops what it has seen.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

OLDEST_S = 300.0
"""A receiver should refuse a timestamp that is further off than this."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message. id: the same for every try. secret_env: the environment variable that holds the secret.

    body: JSON text. created_at: unix seconds.
    """

    id: str
    url: str
    secret_env: str
    body: str
    created_at: float

    @property
    def problem(self) -> str | None:
        """Why it cannot be sent anywhere; None where it can."""
        try:
            parts = urlsplit(self.url)
        except ValueError:
            return "the URL cannot be read"
        if parts.scheme not in ("http", "https"):
            return f"{parts.scheme or 'no'} scheme: only http:// and https:// are sent to"
        return None if parts.hostname else "the URL names no host"

    @property
    def host(self) -> str:
        """Where it goes, for a log: the path and query of a URL are often a secret themselves."""
        try:
            return urlsplit(self.url).hostname or "?"
        except ValueError:
            return "?"

    def headers(self, secret: str, now: float) -> dict[str, str]:
        """For one try at `now` (unix seconds)."""
        timestamp = str(int(now))
        return {
            "content-type": "application/json",
            "user-agent": "kadence",
            "x-kadence-id": self.id,
            "x-kadence-timestamp": timestamp,
            "x-kadence-signature": f"v1={signature(secret, timestamp, self.body)}",
        }


def signature(secret: str, timestamp: str, body: str) -> str:
    """Hexadecimal HMAC-SHA256 of `timestamp.body`."""
    return hmac.new(secret.encode(), f"{timestamp}.{body}".encode(), hashlib.sha256).hexdigest()


def is_signed(headers: Mapping[str, str], body: str, secret: str, now: float) -> bool:
    """What a receiver checks: header names in lower case; the timestamp within OLDEST_S of `now`."""
    timestamp = headers.get("x-kadence-timestamp", "")
    if not timestamp.isdigit() or abs(now - int(timestamp)) > OLDEST_S:
        return False
    return hmac.compare_digest(headers.get("x-kadence-signature", ""), f"v1={signature(secret, timestamp, body)}")


def message(id_of: tuple[object, ...], url: str, secret_env: str, body: Mapping[str, object], at: float) -> Message:
    """A message whose id follows from `id_of` and the URL, so that saying it twice is saying it once."""
    told = json.dumps([*id_of, url], separators=(",", ":"))
    id = hashlib.sha256(told.encode()).hexdigest()[:32]
    return Message(id, url, secret_env, json.dumps({"id": id, **body}, separators=(",", ":"), sort_keys=True), at)

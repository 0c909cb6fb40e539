"""Who may look: everyone on this machine, whoever knows the password, or whoever a trusted proxy names.

    python -m dashboard.access        asks for a password and prints the hash for `dashboard_password`

The decision is a function of the settings, the address at the other end of the connection and the request's headers.
Streamlit's server is started so that it takes no forwarded address for that of the connection (launch.py).
"""

from __future__ import annotations

import getpass
import hashlib
import hmac
import ipaddress
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from enum import Enum

import streamlit as st

from controlplane.settings import Settings, is_loopback_host

LOOPBACK = "127.0.0.1"
TRIES, TRIES_S = 5, 60.0
"""Wrong passwords from one address in so many seconds; after that none is looked at until the oldest is that old."""

MAX_ADDRESSES = 10_000
_ADMITTED = "_admitted"


class Access(Enum):
    """OPEN: shown. LOGIN: a password is asked. REFUSED: there is no way in from here."""

    OPEN = "open"
    LOGIN = "login"
    REFUSED = "refused"


def access_of(settings: Settings, peer: str, headers: Mapping[str, str]) -> Access:
    """peer: address at the other end of the connection. headers: of the request, names in any case."""
    if _is_named_by_proxy(settings, peer, headers):
        return Access.OPEN
    if settings.dashboard_password is not None:
        return Access.LOGIN
    if settings.dashboard_proxy_header:
        return Access.REFUSED
    return Access.OPEN if is_loopback_host(peer) else Access.REFUSED


def is_password(given: str, wanted: str) -> bool:
    """Whether `given` is the password. wanted: the password, or hash_password of it. In constant time."""
    if wanted.startswith("scrypt:"):
        _, salt, digest = wanted.split(":")
        return hmac.compare_digest(_scrypt(given, bytes.fromhex(salt)), bytes.fromhex(digest))
    return hmac.compare_digest(*(hashlib.sha256(text.encode()).digest() for text in (given, wanted)))


def hash_password(password: str) -> str:
    """`scrypt:<salt>:<hash>`, another one each time."""
    salt = secrets.token_bytes(16)
    return f"scrypt:{salt.hex()}:{_scrypt(password, salt).hex()}"


class Attempts:
    """Wrong passwords by address. Seconds are those of a clock that only goes forward."""

    def __init__(self, tries: int = TRIES, within_s: float = TRIES_S) -> None:
        self._tries, self._within_s = tries, within_s
        self._wrong: dict[str, deque[float]] = {}
        self._lock = threading.Lock()

    def wait_s(self, address: str, now: float) -> float:
        """Seconds until a password from there is looked at again; 0: now."""
        with self._lock:
            wrong = self._recent(address, now)
            return 0.0 if len(wrong) < self._tries else wrong[0] + self._within_s - now

    def was_wrong(self, address: str, now: float) -> None:
        with self._lock:
            self._recent(address, now).append(now)
            while len(self._wrong) > MAX_ADDRESSES:
                del self._wrong[next(iter(self._wrong))]

    def _recent(self, address: str, now: float) -> deque[float]:
        wrong = self._wrong.setdefault(address, deque(maxlen=self._tries))
        while wrong and now - wrong[0] >= self._within_s:
            wrong.popleft()
        return wrong


_attempts = Attempts()


def is_admitted(settings: Settings) -> bool:
    """Whether this session may see anything; draws nothing."""
    return bool(st.session_state.get(_ADMITTED)) or _asked_of(settings) is Access.OPEN


def admit(settings: Settings) -> bool:
    """As is_admitted; where not, draws the way in, or says that there is none."""
    if is_admitted(settings):
        return True
    if _asked_of(settings) is Access.REFUSED:
        st.error("This dashboard is not open to your address. Go through its proxy.", icon=":material/lock:")
        return False
    with st.form("login", width=360):
        given = st.text_input("Password", type="password", autocomplete="current-password")
        sent = st.form_submit_button("Open", icon=":material/lock_open:")
    if not sent:
        return False
    now = time.monotonic()
    wait_s = _attempts.wait_s(_peer(), now)
    if wait_s > 0:
        st.error(f"Too many wrong passwords. Try again in {wait_s:.0f} s.", icon=":material/lock_clock:")
        return False
    wanted = settings.dashboard_password
    if wanted is None or not is_password(given, wanted.get_secret_value()):
        _attempts.was_wrong(_peer(), now)
        st.error("That is not the password.", icon=":material/lock:")
        return False
    st.session_state[_ADMITTED] = True
    st.rerun()


def _asked_of(settings: Settings) -> Access:
    return access_of(settings, _peer(), dict(st.context.headers))


def _peer() -> str:
    """The address at the other end; Streamlit names none for this machine."""
    address = st.context.ip_address
    return address if isinstance(address, str) else LOOPBACK


def _is_named_by_proxy(settings: Settings, peer: str, headers: Mapping[str, str]) -> bool:
    header = (settings.dashboard_proxy_header or "").lower()
    if not header or not any(name.lower() == header and value.strip() for name, value in headers.items()):
        return False
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    networks = filter(None, (part.strip() for part in (settings.dashboard_proxies or "").split(",")))
    return any(address in ipaddress.ip_network(each, strict=False) for each in networks)


def _scrypt(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=2**14, r=8, p=1, dklen=32)


def main() -> None:
    password = getpass.getpass("Password: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    print(hash_password(password))


if __name__ == "__main__":
    main()

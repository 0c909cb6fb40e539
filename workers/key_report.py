"""Whether API keys are in force, in words: for `kadence up` and `kadence doctor`."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from controlplane.keys.ring import KeyRing
from controlplane.settings import Settings
from controlplane.store.api_keys import read_ring
from controlplane.store.queries import database_state, open_ledger

MAKE_ONE = "kadence keys create NAME"


@dataclass(frozen=True, slots=True)
class KeyReport:
    """said: one line. are_in_force: for inference, also of clients on this machine. valid: names of keys that infer.
    lost: those of them that are bound to a cohort which is not there.
    """

    said: str
    are_in_force: bool
    valid: tuple[str, ...]
    lost: tuple[str, ...] = ()


def report_keys(settings: Settings, cohorts: Collection[str] = ()) -> KeyReport:
    """Of the configured database; cohorts: the policy's. Raises what the database raises."""
    ring, now = KeyRing(), time.time()
    if database_state(settings.database_url) == "ok":
        engine = open_ledger(settings.database_url)
        try:
            ring = read_ring(engine, now)
        finally:
            engine.dispose()
    keys = [key for key in ring.keys if not key.is_admin and key.rejection(now) is None]
    valid = tuple(sorted({key.name for key in keys}))
    lost = tuple(sorted({key.name for key in keys if key.cohort is not None and key.cohort not in cohorts}))
    there = f"{len(valid)} valid" if valid else "none valid" if ring.has_inference else "none yet"
    demanded = settings.keys_demanded
    if not (ring.has_inference if demanded is None else demanded):
        return KeyReport(f"{there}; clients on this machine need none, others do", False, valid, lost)
    why = f"require_keys is {settings.require_keys}"
    if demanded is None:
        why = "keys were made"
    elif settings.require_keys == "auto":
        why = f"{settings.host} is not loopback"
    return KeyReport(f"{there}; every client needs one, since {why}", True, valid, lost)

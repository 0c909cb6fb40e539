"""Keys in both databases: one owner a name, an end for what is rotated or revoked, and a record of who did it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from controlplane.key_watch import KeyWatch
from controlplane.keys.ring import ApiKey, KeyLimits, look_up
from controlplane.keys.secret import NewKey, make
from controlplane.store.api_keys import (
    ENDED_LONG_AGO_S,
    ApiKeyError,
    add_key,
    all_keys,
    change_key,
    key_events,
    last_event,
    read_ring,
    revoke_key,
    rotate_key,
)
from controlplane.store.engine import open_database

NOW = 1_790_000_000.0
ONE, TWO, THREE = (make(bytes(31) + bytes([i]) + bytes(8) + bytes([i])) for i in (1, 2, 3))


def key(new: NewKey, name: str = "team", at: float = NOW, is_admin: bool = False, **changes: object) -> ApiKey:
    values: dict[str, object] = {"tenant": name, "cohort": "code", "limits": KeyLimits(1, 2, 3), "note": "n", **changes}
    return ApiKey(new.id, name, new.digest, is_admin, created_at=at, created_by="ada", **values)


def test_a_key_is_read_back_as_it_was_made(ledger: sa.Engine) -> None:
    add_key(ledger, key(ONE, expires_at=NOW + 5), "new team")
    assert all_keys(ledger) == [key(ONE, expires_at=NOW + 5)]
    ring = read_ring(ledger, NOW)
    assert (look_up(ring, ONE.text, NOW), ring.has_inference, ring.has_admin) == (ring.keys[0], True, False)


def test_no_secret_is_in_the_database(sqlite_ledger_url: str) -> None:
    engine = open_database(sqlite_ledger_url)
    add_key(engine, key(ONE), "")
    engine.dispose()
    path = Path(sqlite_ledger_url.removeprefix("sqlite:///"))
    content = b"".join(each.read_bytes() for each in path.parent.glob(f"{path.name}*"))
    assert ONE.id.encode() in content
    assert ONE.text.rpartition("-")[2].encode() not in content


def test_a_name_is_given_once(ledger: sa.Engine) -> None:
    add_key(ledger, key(ONE), "")
    with pytest.raises(ApiKeyError, match=r"there is a key named 'team'; kadence keys rotate team"):
        add_key(ledger, key(TWO), "")
    revoke_key(ledger, "team", "ada", "", NOW)
    add_key(ledger, key(TWO), "")
    assert [each.is_revoked for each in all_keys(ledger, "team")].count(False) == 1


def test_two_that_want_a_name_at_once_do_not_both_get_it(ledger: sa.Engine) -> None:
    refused = []

    def want(new: NewKey) -> None:
        try:
            add_key(ledger, key(new), "")
        except ApiKeyError:
            refused.append(new)

    threads = [threading.Thread(target=want, args=(new,)) for new in (ONE, TWO)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(refused), len(all_keys(ledger))) == (1, 1)


def test_old_and_new_are_valid_during_the_grace(ledger: sa.Engine) -> None:
    add_key(ledger, key(ONE, expires_at=NOW + 1000), "")
    new = rotate_key(ledger, key(TWO, at=NOW + 100, tenant=None, cohort=None, limits=KeyLimits()), 60.0, "monthly")
    assert (new.tenant, new.cohort, new.limits, new.expires_at) == ("team", "code", KeyLimits(1, 2, 3), NOW + 1100)
    ring = read_ring(ledger, NOW + 100)
    assert [isinstance(look_up(ring, each.text, NOW + 159), ApiKey) for each in (ONE, TWO)] == [True, True]
    assert look_up(ring, ONE.text, NOW + 160) == "rotated"


def test_a_second_rotation_does_not_lengthen_the_first_ones_grace(ledger: sa.Engine) -> None:
    add_key(ledger, key(ONE), "")
    rotate_key(ledger, key(TWO, at=NOW + 1), 10.0, "")
    rotate_key(ledger, key(THREE, at=NOW + 2), 3600.0, "")
    ends = {each.id: each.ends_at for each in all_keys(ledger)}
    assert ends == {ONE.id: NOW + 11, TWO.id: NOW + 3602, THREE.id: None}


def test_revoking_ends_every_secret_of_a_name_at_once(ledger: sa.Engine) -> None:
    add_key(ledger, key(ONE), "")
    rotate_key(ledger, key(TWO, at=NOW + 1), 3600.0, "")
    revoke_key(ledger, "team", "bob", "leaked", NOW + 5)
    ring = read_ring(ledger, NOW + 5)
    assert [look_up(ring, each.text, NOW + 5) for each in (ONE, TWO)] == ["revoked", "revoked"]


def test_what_had_ended_before_keeps_its_end(ledger: sa.Engine) -> None:
    add_key(ledger, key(ONE), "")
    rotate_key(ledger, key(TWO, at=NOW + 1), 0.0, "")
    revoke_key(ledger, "team", "bob", "", NOW + 50)
    assert {each.id: each.ends_at for each in all_keys(ledger)} == {ONE.id: NOW + 1, TWO.id: NOW + 50}


def test_a_change_is_of_what_was_not_revoked_and_is_seen(ledger: sa.Engine) -> None:
    add_key(ledger, key(ONE), "")
    revoke_key(ledger, "team", "ada", "", NOW)
    add_key(ledger, key(TWO), "")
    before = last_event(ledger)
    changed = change_key(ledger, "team", {"max_concurrent": 9, "cohort": None}, "ada", "", NOW)
    assert (changed.limits.max_concurrent, changed.cohort) == (9, None)
    assert {each.id: each.limits.max_concurrent for each in all_keys(ledger)} == {ONE.id: 3, TWO.id: 9}
    assert last_event(ledger) > before


@pytest.mark.parametrize("is_admin", [False, True])
def test_a_rotation_does_not_change_what_a_key_opens(ledger: sa.Engine, is_admin: bool) -> None:
    add_key(ledger, key(ONE, is_admin=is_admin), "")
    with pytest.raises(ApiKeyError, match="cannot become"):
        rotate_key(ledger, key(TWO, is_admin=not is_admin), 0.0, "")


def test_what_is_not_there_cannot_be_changed(ledger: sa.Engine) -> None:
    with pytest.raises(ApiKeyError, match="no key named 'team'"):
        rotate_key(ledger, key(ONE), 0.0, "")
    with pytest.raises(ApiKeyError, match="no key named 'team'"):
        revoke_key(ledger, "team", "ada", "", NOW)
    assert last_event(ledger) == 0


def test_who_did_what_is_on_record(ledger: sa.Engine) -> None:
    add_key(ledger, key(ONE), "new team")
    rotate_key(ledger, key(TWO, at=NOW + 1), 0.0, "monthly")
    revoke_key(ledger, "team", "bob", "leaked", NOW + 2)
    said = [(each.what, each.key_id, each.done_by, each.why, each.at) for each in key_events(ledger, "team")]
    assert said == [
        ("revoked", TWO.id, "bob", "leaked", NOW + 2),
        ("rotated", TWO.id, "ada", "monthly", NOW + 1),
        ("created", ONE.id, "ada", "new team", NOW),
    ]


def test_a_system_that_had_keys_stays_one_that_has(ledger: sa.Engine) -> None:
    add_key(ledger, key(ONE), "")
    revoke_key(ledger, "team", "bob", "", NOW)
    ring = read_ring(ledger, NOW + ENDED_LONG_AGO_S + 1)
    assert (ring.keys, ring.has_inference) == ((), True)


def test_the_watch_sees_each_change_and_keeps_what_it_knows(ledger: sa.Engine, tmp_path: Path) -> None:
    watch = KeyWatch(ledger)
    watch.look()
    assert watch.ring is not None
    revisions = [watch.ring.revision]
    add_key(ledger, key(ONE), "")
    for change in (lambda: rotate_key(ledger, key(TWO, at=NOW + 1), 60.0, ""), lambda: None):
        watch.look()
        revisions.append(watch.ring.revision)
        change()
    watch.look()
    revisions.append(watch.ring.revision)
    assert len(set(revisions)) == 3  # the last change was none
    lost = KeyWatch(open_database(f"sqlite:///{tmp_path}/nowhere/none.db"))
    lost.ring = watch.ring
    lost.look()
    assert lost.ring == watch.ring


def test_an_error_without_a_word_does_not_end_the_watch(ledger: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first line is looked for; a watch that ended would never hear of a revoked key."""
    watch = KeyWatch(ledger)
    watch.look()

    def fail(_: sa.Engine) -> int:
        raise TimeoutError

    with monkeypatch.context() as away:
        away.setattr("controlplane.key_watch.last_event", fail)
        watch.look()
    add_key(ledger, key(ONE), "")
    watch.look()
    assert watch.ring is not None
    assert "team" in watch.ring.names

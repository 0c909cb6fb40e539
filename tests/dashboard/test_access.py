"""Who may look at the dashboard."""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

from controlplane.settings import Settings, SettingsError, load_settings
from dashboard import access
from dashboard.access import Access, Attempts, access_of, hash_password, is_password
from dashboard.exposure import exposure_problem
from dashboard.launch import DashboardError, check_can_start, dashboard_command
from dashboard.serve import APP

PASSWORD = "correct horse"
PROXIED = {"dashboard_proxy_header": "X-Forwarded-User", "dashboard_proxies": "10.0.0.0/24, ::1"}
NAMED = {"x-forwarded-user": "ann"}


def settings(**changes: object) -> Settings:
    return load_settings(**changes)


@pytest.mark.parametrize(
    ("changes", "peer", "headers", "expected"),
    [
        ({}, "127.0.0.1", {}, Access.OPEN),
        ({}, "::1", {}, Access.OPEN),
        ({}, "192.168.1.5", {}, Access.REFUSED),
        ({"dashboard_password": PASSWORD}, "127.0.0.1", {}, Access.LOGIN),
        ({"dashboard_password": PASSWORD}, "192.168.1.5", NAMED, Access.LOGIN),
        (PROXIED, "10.0.0.7", NAMED, Access.OPEN),
        (PROXIED, "::ffff:10.0.0.7", NAMED, Access.OPEN),
        (PROXIED, "10.0.0.7", {}, Access.REFUSED),
        (PROXIED, "10.0.0.7", {"x-forwarded-user": "  "}, Access.REFUSED),
        (PROXIED, "10.0.1.7", NAMED, Access.REFUSED),
        (PROXIED, "127.0.0.1", {}, Access.REFUSED),
        (PROXIED, "no address", NAMED, Access.REFUSED),
        ({**PROXIED, "dashboard_password": PASSWORD}, "10.0.1.7", NAMED, Access.LOGIN),
    ],
)
def test_who_may_look(changes, peer, headers, expected):
    assert access_of(settings(**changes), peer, headers) is expected


@pytest.mark.parametrize("wanted", [PASSWORD, hash_password(PASSWORD)])
def test_only_the_password_is_the_password(wanted):
    assert is_password(PASSWORD, wanted)
    assert not is_password("correct horsf", wanted)
    assert not is_password("", wanted)


def test_a_hash_is_another_one_each_time_and_a_setting_that_is_taken():
    first, second = hash_password(PASSWORD), hash_password(PASSWORD)
    assert first != second
    assert settings(dashboard_password=first).dashboard_password is not None


def test_a_sixth_wrong_password_within_a_minute_is_not_looked_at():
    attempts = Attempts(tries=5, within_s=60)
    for second in range(5):
        assert attempts.wait_s("a", second) == 0
        attempts.was_wrong("a", second)
    assert attempts.wait_s("a", 10) == 50
    assert attempts.wait_s("another", 10) == 0
    assert attempts.wait_s("a", 60) == 0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"dashboard_password": "short"}, "8 characters or more"),
        ({"dashboard_password": "scrypt:00:11"}, "is not a hash"),
        ({"dashboard_proxies": "10.0.0.7"}, "dashboard_proxy_header is missing"),
        ({"dashboard_proxy_header": "X-User"}, "dashboard_proxies is missing"),
        ({**PROXIED, "dashboard_proxies": "the proxy"}, "addresses or networks"),
    ],
)
def test_a_login_that_cannot_work_is_refused_with_the_fix(changes, says):
    with pytest.raises(SettingsError, match=says):
        settings(**changes)


def test_a_password_is_not_repeated_where_settings_are_shown():
    assert PASSWORD not in repr(settings(dashboard_password=PASSWORD))
    with pytest.raises(SettingsError) as refused:
        settings(dashboard_password="hunter2")
    assert "hunter2" not in str(refused.value)


def test_beyond_loopback_it_starts_with_a_login_alone():
    with pytest.raises(DashboardError, match="KADENCE_DASHBOARD_PASSWORD"):
        check_can_start(settings(dashboard_host="0.0.0.0"))
    assert exposure_problem(settings(dashboard_password=PASSWORD), "0.0.0.0") is None
    assert exposure_problem(settings(**PROXIED), "0.0.0.0") is None


def test_the_servers_address_of_a_client_is_that_of_the_connection():
    assert dashboard_command(settings()).env["FORWARDED_ALLOW_IPS"] == "none"


@pytest.fixture
def locked(filled, monkeypatch):
    monkeypatch.setenv("KADENCE_DASHBOARD_PASSWORD", PASSWORD)
    monkeypatch.setattr(access, "_attempts", Attempts())
    return filled


def log_in(app: AppTest, password: str) -> AppTest:
    app.text_input[0].set_value(password)
    return app.button[0].click().run()


@pytest.mark.usefixtures("locked")
def test_nothing_is_shown_before_the_password():
    app = AppTest.from_file(str(APP), default_timeout=20).run()
    log_in(app, "wrong horse")
    assert [box.value for box in app.error] == ["That is not the password."]
    assert not app.metric
    assert not app.selectbox
    log_in(app, PASSWORD)
    assert app.metric


@pytest.mark.usefixtures("locked")
def test_after_five_wrong_passwords_the_right_one_has_to_wait():
    app = AppTest.from_file(str(APP), default_timeout=20).run()
    for _ in range(5):
        log_in(app, "wrong horse")
    log_in(app, PASSWORD)
    assert "Too many wrong passwords" in app.error[0].value
    assert not app.metric


@pytest.mark.usefixtures("locked")
def test_the_file_of_a_page_shows_nothing_by_itself():
    app = AppTest.from_file(str(APP.parent / "pages" / "overview.py"), default_timeout=20).run()
    assert not app.exception
    assert not app.main.children


@pytest.mark.usefixtures("filled")
def test_a_stranger_is_refused_where_there_is_no_login(monkeypatch):
    monkeypatch.setattr(access, "_peer", lambda: "203.0.113.9")
    app = AppTest.from_file(str(APP), default_timeout=20).run()
    assert "not open to your address" in app.error[0].value
    assert not app.metric

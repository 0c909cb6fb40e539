"""Numbers as a reader sees them."""

from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest

from controlplane.store.queries import CostRow
from dashboard import format as fmt


def test_an_unknown_cost_is_unpriced_and_a_known_zero_is_not():
    assert fmt.cost_per_million(CostRow("a", emitted_tokens=1000, cost_nano=None), "USD") == "unpriced"
    assert fmt.cost(None, "USD") == "unpriced"
    assert fmt.cost(0, "USD") == "$0.00"


def test_an_unknown_energy_is_not_measured_and_a_known_zero_is_not():
    assert fmt.energy_per_token(CostRow("a", emitted_tokens=1000)) == "not measured"
    assert fmt.energy(None) == "not measured"
    assert fmt.energy_per_token(CostRow("a", emitted_tokens=1000, energy_uj=0, measured_tokens=1000)) == "0 J"


def test_a_cost_without_tokens_has_no_unit_cost():
    assert fmt.cost_per_million(CostRow("a", cost_nano=5_000_000), "USD") == fmt.NOTHING


def test_unit_cost_is_the_cost_of_a_million_tokens():
    # 0.0432 USD for 36,000 tokens = 1.20 USD per million
    assert fmt.cost_per_million(CostRow("a", emitted_tokens=36_000, cost_nano=43_200_000), "USD") == "$1.200"


@pytest.mark.parametrize(
    ("currency", "text"), [("USD", "$1.500"), ("EUR", "€1.500"), ("JPY", "¥1.500"), ("CHF", "CHF 1.500")]
)
def test_money_names_its_currency(currency, text):
    assert fmt.money(Decimal("1.5"), currency) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [("1234567.891", "$1,234,567.89"), ("0.000012345", "$0.00001234"), ("-2.5", "-$2.500"), ("999.999", "$1,000.00")],
)
def test_money_keeps_four_figures_and_no_exponent(amount, text):
    assert fmt.money(Decimal(amount), "USD") == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.0, "0"), (12345.678, "12,346"), (0.5, "0.5000"), (72.34567, "72.35"), (1e-7, "0.0000001000")],
)
def test_a_number_keeps_four_significant_figures(value, text):
    assert fmt.number(value) == text


def test_joules_per_token_come_from_microjoules():
    row = CostRow("a", emitted_tokens=50_000, energy_uj=4_500_000_000, measured_tokens=36_000)
    assert fmt.energy_per_token(row) == "0.1250 J"


def test_a_share_of_something_unknown_is_a_dash():
    assert fmt.share(None, 10) == fmt.NOTHING
    assert fmt.share(1, 0) == fmt.NOTHING
    assert fmt.share(1, 3) == "33.3 %"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0 s"),
        (0.4, "0 s"),
        (59.9, "59 s"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (187_200, "2 d 4 h"),
        (86_405, "1 d"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds, text):
    assert fmt.duration(seconds) == text


def test_a_moment_is_told_in_the_readers_zone():
    assert fmt.moment(1_767_225_600, ZoneInfo("UTC")) == "2026-01-01 00:00:00"
    assert fmt.moment(1_767_225_600, ZoneInfo("Asia/Kolkata")) == "2026-01-01 05:30:00"


@pytest.mark.parametrize("name", [None, "", "Mars/Olympus", "../etc/passwd", "/etc/localtime"])
def test_an_unknown_time_zone_is_utc(name):
    assert str(fmt.zone(name)) == "UTC"


def test_a_shown_database_url_has_no_password():
    shown = fmt.without_password("postgresql://kadence:hunter2@db:5432/ledger?sslmode=require")
    assert shown == "postgresql://kadence:***@db:5432/ledger?sslmode=require"


def test_a_url_without_a_password_is_shown_as_it_is():
    assert fmt.without_password("sqlite:////var/lib/kadence.db") == "sqlite:////var/lib/kadence.db"


def test_a_time_for_a_command_is_utc():
    assert fmt.iso(1_767_225_600.7) == "2026-01-01T00:00:00Z"

"""Numbers as a reader sees them: an unknown price is "unpriced", an unknown energy "not measured", neither is 0."""

from __future__ import annotations

from datetime import datetime, tzinfo
from decimal import Decimal
from urllib.parse import urlsplit, urlunsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from controlplane.store.queries import CostRow

UNPRICED = "unpriced"
NOT_MEASURED = "not measured"
NOTHING = "–"

NANO = Decimal(10) ** 9
MICRO = Decimal(10) ** 6
SYMBOLS = {"USD": "$", "EUR": "€", "GBP": "£", "JPY": "¥"}


def number(value: Decimal | float | int, digits: int = 4) -> str:
    """`value` to `digits` significant figures, thousands separated, never in exponent form; whole parts stay whole."""
    exact = value if isinstance(value, Decimal) else Decimal(repr(value))
    if exact == 0:
        return "0"
    places = max(digits - 1 - exact.adjusted(), 0)
    return f"{round(exact, places):,f}"


def money(amount: Decimal | float | None, currency: str | None) -> str:
    """An amount in units of `currency`; "unpriced" when it is not known."""
    if amount is None:
        return UNPRICED
    amount = amount if isinstance(amount, Decimal) else Decimal(repr(amount))
    symbol = SYMBOLS.get(currency or "")
    sign, size = ("-" if amount < 0 else ""), abs(amount)
    text = f"{size:,.2f}" if size >= 100 or size == 0 else number(size)
    return f"{sign}{symbol}{text}" if symbol else f"{sign}{currency or ''} {text}".strip()


def cost(cost_nano: int | None, currency: str | None) -> str:
    """A cost given in nano-units of the currency."""
    return money(None if cost_nano is None else Decimal(cost_nano) / NANO, currency)


def cost_per_million(row: CostRow, currency: str | None) -> str:
    """Unit cost: currency per million emitted tokens. A dash where no token was emitted."""
    return per_million(row.cost_nano, row.cost_per_million_tokens, currency)


def per_million(cost_nano: int | None, exact: Decimal | None, currency: str | None) -> str:
    """A unit cost; unpriced where the cost is, a dash where there was no token."""
    if cost_nano is None:
        return UNPRICED
    return NOTHING if exact is None else money(exact, currency)


def energy_per_token(row: CostRow) -> str:
    """Joules per emitted token, over the windows that were measured. A dash where they emitted none."""
    return joules_per_token(row.j_per_token, row.energy_uj)


def joules_per_token(joules: float | None, energy_uj: int | None) -> str:
    """Joules by emitted token: not measured, or a dash where no token was."""
    if energy_uj is None:
        return NOT_MEASURED
    return NOTHING if joules is None else f"{number(joules)} J"


def energy(energy_uj: int | None) -> str:
    """Joules, from microjoules."""
    return NOT_MEASURED if energy_uj is None else f"{number(Decimal(energy_uj) / MICRO)} J"


def share(part: float | None, whole: float | None) -> str:
    """`part` of `whole` in percent; a dash where either is not known or the whole is nothing."""
    if part is None or whole is None or whole <= 0:
        return NOTHING
    return f"{100 * part / whole:.1f} %"


def rate(per_second: float | None) -> str:
    """Tokens per second."""
    return NOTHING if per_second is None else number(per_second)


def ratio(value: float | None) -> str:
    """Acceptance length or mean K: two decimals."""
    return NOTHING if value is None else f"{value:.2f}"


def count(value: int) -> str:
    return f"{value:,d}"


def duration(seconds: float) -> str:
    """A length of time in its two largest units: "4 s", "3 min 20 s", "2 d 4 h"."""
    whole = max(int(seconds), 0)
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    for i, (name, size) in enumerate(units):
        if whole >= size:
            major, rest = divmod(whole, size)
            if i + 1 < len(units) and rest >= units[i + 1][1]:
                return f"{major} {name} {rest // units[i + 1][1]} {units[i + 1][0]}"
            return f"{major} {name}"
    return "0 s"


def zone(name: str | None) -> ZoneInfo:
    """The reader's time zone by IANA name; UTC when the browser did not say or named an unknown one."""
    try:
        return ZoneInfo(name or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return ZoneInfo("UTC")


def moment(unix_s: float, where: tzinfo) -> str:
    """Date and time of day in `where`, to the second."""
    return datetime.fromtimestamp(unix_s, where).strftime("%Y-%m-%d %H:%M:%S")


def iso(unix_s: float) -> str:
    """UTC, to the second, as commands take a time."""
    return datetime.fromtimestamp(unix_s, ZoneInfo("UTC")).strftime("%Y-%m-%dT%H:%M:%SZ")


def without_password(database_url: str) -> str:
    """A database URL that may be shown: its password is replaced by three stars."""
    parts = urlsplit(database_url)
    if parts.password is None:
        return database_url
    user_host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:***@{user_host[2]}"))

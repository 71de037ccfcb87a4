"""What templates may call: formatting that reads no locale, no clock and no random numbers.

The caches halve the time of a rendering: a mailing has few days and many equal amounts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date as Date  # noqa: N812 - `date` is the name templates know the filter by
from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache

_CENT = Decimal("0.01")
_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@lru_cache(maxsize=10_000)
def money(value: Decimal | float | str, symbol: str = "$") -> str:
    """``1234.5`` -> ``$1,234.50``. Rounds half up, from the shortest decimal form of a float."""
    amount = Decimal(value if isinstance(value, (int, Decimal)) else str(value))
    amount = amount.quantize(_CENT, rounding=ROUND_HALF_UP)
    return f"{'-' if amount < 0 else ''}{symbol}{abs(amount):,.2f}"


def number(value: Decimal | float | str) -> str:
    """``12345`` -> ``12,345``; a fraction raises ValueError instead of being rounded away."""
    whole = int(value)
    if whole != Decimal(str(value)):
        raise ValueError("number takes whole numbers")
    return f"{whole:,}"


def plural(count: Decimal | float | str, one: str, many: str) -> str:
    """``2|plural("CD", "CDs")`` -> ``2 CDs``."""
    text = number(count)
    return f"{text} {one if text == '1' else many}"


@lru_cache(maxsize=10_000)
def date(value: Date | str) -> str:
    """``1997-03-17`` (a date, a datetime or ISO text) -> ``17 March 1997``."""
    day = _as_date(value)
    return f"{day.day} {_MONTHS[day.month - 1]} {day.year}"


@lru_cache(maxsize=10_000)
def weekday(value: Date | str) -> str:
    """``1997-03-17`` -> ``Monday 17 March``."""
    day = _as_date(value)
    return f"{_WEEKDAYS[day.weekday()]} {day.day} {_MONTHS[day.month - 1]}"


def _as_date(value: Date | str) -> Date:
    # PostgreSQL answers with dates and SQLite with text; both must render to the same bytes.
    if isinstance(value, str):
        return Date.fromisoformat(value[:10])
    return value.date() if isinstance(value, datetime) else value


FILTERS: Mapping[str, Callable[..., str]] = {
    "money": money,
    "number": number,
    "plural": plural,
    "date": date,
    "weekday": weekday,
}

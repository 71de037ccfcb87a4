"""Reading ``Retry-After``: a number of seconds or an HTTP date (RFC 9110 10.2.3)."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

MAX_SECONDS = 24 * 3600.0
"""The longest a provider can close a gate by itself; a longer wish is cut to this."""

# ASCII only: `\d` and float() take digits of every script, and float() takes nan, inf and 1_0.
_NUMBER = re.compile(r"([+-]?)([0-9]+)(?:\.[0-9]*)?").fullmatch


def parse_retry_after(value: str | None, now: datetime) -> float | None:
    """Return how many seconds to wait from ``now`` (aware), within [0, MAX_SECONDS]; never raises.

    A past date or a negative number is 0.0. None means that nothing usable was said. A date without
    a zone, or with -0000, is UTC.
    """
    text = (value or "").strip(" \t")
    if match := _NUMBER(text):
        sign, whole = match.groups()
        if sign == "-":
            return 0.0
        # Beyond a few digits only the cap matters, and int() refuses thousands of them.
        return MAX_SECONDS if len(whole.lstrip("0")) > 6 else min(float(text), MAX_SECONDS)
    return _until(text, now)


def _until(text: str, now: datetime) -> float | None:
    if not text.isascii() or not 10 <= len(text) <= 64:
        return None
    try:
        date = parsedate_to_datetime(text)
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        return min(max((date - now).total_seconds(), 0.0), MAX_SECONDS)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None

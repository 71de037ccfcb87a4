"""Instants as the ledger keeps them, whole microseconds since 1970 in UTC, and as datetimes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def as_datetime(micros: int) -> datetime:
    """Return an instant of the ledger as a datetime in UTC, to the microsecond."""
    return _EPOCH + timedelta(microseconds=micros)

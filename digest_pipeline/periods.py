"""Periods: the ISO week or business date that a digest is about.

A period is always named, never read from a clock. Its window is half-open, ``[start, end)``, from
local midnight to local midnight in the digest's time zone, kept as UTC instants: weeks that cross a
clock change last 167 or 169 hours, and some days 23, 23.5, 24.5 or 25.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo

from digest_pipeline.errors import PeriodError


class Cadence(StrEnum):
    """How often a digest goes out."""

    WEEKLY = "weekly"
    DAILY = "daily"


_DAYS = {Cadence.WEEKLY: 7, Cadence.DAILY: 1}
_WEEK = re.compile(r"([0-9]{4})-W([0-9]{2})(?:-([1-7]))?")
_LOOSE_WEEK = re.compile(r"\s*([0-9]{4})-?[wW]([0-9]{1,2})(?:-[0-9])?\s*")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True, slots=True, order=True)
class Period:
    """One period of a digest: ``first_day`` and the days it lasts, in a named time zone."""

    first_day: date
    cadence: Cadence
    time_zone: str

    @property
    def label(self) -> str:
        """``2026-W42`` or ``2026-10-14``: what the operation key carries."""
        if self.cadence is Cadence.DAILY:
            return self.first_day.isoformat()
        year, week, _ = self.first_day.isocalendar()
        return f"{year:04d}-W{week:02d}"

    @property
    def partition_key(self) -> str:
        """``2026-W42-1`` or ``2026-10-14``: what Dagster's partition is called."""
        return self.label + ("-1" if self.cadence is Cadence.WEEKLY else "")

    @property
    def last_day(self) -> date:
        """The last local day that belongs to the period."""
        return self.first_day + timedelta(days=_DAYS[self.cadence] - 1)

    @property
    def start(self) -> datetime:
        """The first instant of the period, in UTC."""
        return self._midnight(self.first_day)

    @property
    def end(self) -> datetime:
        """The first instant after the period, in UTC."""
        return self._midnight(self.last_day + timedelta(days=1))

    def next(self) -> Period:
        """The period that follows without a gap."""
        return Period(self.last_day + timedelta(days=1), self.cadence, self.time_zone)

    def _midnight(self, day: date) -> datetime:
        # Wall-clock arithmetic on dates, then one conversion: adding 24 hours to an instant lands on
        # the wrong local day around a clock change.
        return datetime.combine(day, time(), tzinfo=ZoneInfo(self.time_zone)).astimezone(UTC)


def parse_period(text: str, cadence: Cadence, time_zone: str) -> Period:
    """Return the period that ``text`` names: ``2026-W42``, ``2026-W42-1`` or a date inside it.

    Raises PeriodError, naming the nearest valid label, for anything else. A daily digest takes
    dates only.
    """
    if _DATE.fullmatch(text):
        try:
            day = date.fromisoformat(text)
        except ValueError as error:
            raise PeriodError(f"period {text!r} is not a date of the calendar") from error
        return _representable(text, day, cadence, time_zone)
    if cadence is Cadence.DAILY:
        raise PeriodError(f"period {text!r} is not a date; this digest is daily: write it like 2026-10-14")
    match = _WEEK.fullmatch(text)
    if match is None:
        raise PeriodError(f"period {text!r} is not an ISO week{_hint(text)}")
    year, week, weekday = int(match[1]), int(match[2]), int(match[3] or 1)
    try:
        day = date.fromisocalendar(year, week, weekday)
    except ValueError as error:
        raise PeriodError(f"period {text!r} does not exist: {_weeks_of(year)}") from error
    return _representable(text, day, cadence, time_zone)


def period_of(day: date, cadence: Cadence, time_zone: str) -> Period:
    """Return the period that holds a local day."""
    first = day - timedelta(days=day.isoweekday() - 1) if cadence is Cadence.WEEKLY else day
    return Period(first, cadence, time_zone)


def last_ended(now: datetime, cadence: Cadence, time_zone: str) -> Period:
    """Return the latest period that is over at an instant (an aware datetime)."""
    local = now.astimezone(ZoneInfo(time_zone)).date()
    current = period_of(local, cadence, time_zone)
    return period_of(current.first_day - timedelta(days=1), cadence, time_zone)


def periods_between(first: Period, last: Period) -> Iterator[Period]:
    """Yield every period from ``first`` to ``last``, both included."""
    current = first
    while current.first_day <= last.first_day:
        yield current
        current = current.next()


def require_ended(period: Period, now: datetime) -> None:
    """Raise PeriodError while the period still runs: its rows could still change."""
    if period.end > now:
        raise PeriodError(
            f"period {period.label} has not ended (it ends {period.end:%Y-%m-%d %H:%M} UTC); "
            f"the latest one that has is {last_ended(now, period.cadence, period.time_zone).label}"
        )


def _representable(text: str, day: date, cadence: Cadence, time_zone: str) -> Period:
    period = period_of(day, cadence, time_zone)
    try:
        _ = period.start, period.end
    except OverflowError as error:
        raise PeriodError(f"period {text!r} is at the edge of the calendar") from error
    return period


def _hint(text: str) -> str:
    loose = _LOOSE_WEEK.fullmatch(text)
    if loose and int(loose[1]) >= 1:
        year, week = int(loose[1]), int(loose[2])
        if 1 <= week <= _last_week(year):
            return f"; did you mean {year:04d}-W{week:02d}?"
        return f"; {_weeks_of(year)}"
    return "; write it like 2026-W42 (or a date inside the week)"


def _weeks_of(year: int) -> str:
    if year < 1:
        return "years start at 0001"
    return f"{year:04d} has the weeks {year:04d}-W01 to {year:04d}-W{_last_week(year):02d}"


def _last_week(year: int) -> int:
    return date(year, 12, 28).isocalendar().week  # 28 December is always in the last one

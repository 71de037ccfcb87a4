from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import pytest

from digest_pipeline.errors import PeriodError
from digest_pipeline.periods import (
    Cadence,
    last_ended,
    parse_period,
    period_of,
    periods_between,
    require_ended,
)

WEEKLY, DAILY = Cadence.WEEKLY, Cadence.DAILY


@pytest.mark.parametrize(
    ("day", "label"),
    [
        ("2024-12-30", "2025-W01"),
        ("2025-12-29", "2026-W01"),
        ("2027-01-01", "2026-W53"),
        ("2021-01-03", "2020-W53"),
    ],
)
def test_a_label_pairs_the_iso_year_with_the_iso_week(day, label):
    """PER-01."""
    period = parse_period(day, WEEKLY, "UTC")
    assert (period.label, period.partition_key) == (label, f"{label}-1")


def test_no_two_weeks_of_a_century_share_a_label():
    """PER-01."""
    weeks = list(
        periods_between(
            period_of(date(1990, 1, 1), WEEKLY, "UTC"), period_of(date(2090, 1, 1), WEEKLY, "UTC")
        )
    )
    assert len({week.label for week in weeks}) == len(weeks)
    assert all(parse_period(week.label, WEEKLY, "UTC") == week for week in weeks)
    assert all(parse_period(week.partition_key, WEEKLY, "UTC") == week for week in weeks)


@pytest.mark.parametrize("typed", ["2026-W10", "2026-W10-1", "2026-W10-7", "2026-03-02", "2026-03-08"])
def test_every_way_to_type_a_week_names_the_same_period(typed):
    period = parse_period(typed, WEEKLY, "Europe/Berlin")
    assert (period.label, period.first_day, period.last_day) == (
        "2026-W10",
        date(2026, 3, 2),
        date(2026, 3, 8),
    )


@pytest.mark.parametrize("now", ["2026-03-09T08:00", "2026-03-11T08:00"])
def test_the_week_that_ended_goes_from_monday_to_sunday_whenever_it_is_asked_for(now):
    """PER-03."""
    week = last_ended(datetime.fromisoformat(now).replace(tzinfo=UTC), WEEKLY, "UTC")
    assert (week.start, week.end) == (datetime(2026, 3, 2, tzinfo=UTC), datetime(2026, 3, 9, tzinfo=UTC))


def test_the_week_that_ended_is_the_local_one():
    """PER-05."""
    sunday_evening = datetime(2026, 3, 8, 21, tzinfo=UTC)  # Monday 06:00 in Tokyo
    assert last_ended(sunday_evening, WEEKLY, "UTC").label == "2026-W09"
    week = last_ended(sunday_evening, WEEKLY, "Asia/Tokyo")
    assert week.label == "2026-W10"
    assert (week.start, week.end) == (
        datetime(2026, 3, 1, 15, tzinfo=UTC),
        datetime(2026, 3, 8, 15, tzinfo=UTC),
    )


def test_a_week_that_still_runs_west_of_utc_is_refused_with_the_latest_that_does_not():
    """PER-07."""
    week = parse_period("2026-W10", WEEKLY, "America/Los_Angeles")
    sunday_evening = datetime(2026, 3, 9, 4, tzinfo=UTC)
    with pytest.raises(PeriodError, match=r"2026-W10 has not ended .*2026-W09"):
        require_ended(week, sunday_evening)
    require_ended(week, week.end)
    with pytest.raises(PeriodError):
        require_ended(week, week.end - timedelta(microseconds=1))


@pytest.mark.parametrize(
    ("time_zone", "day", "hours"),
    [
        ("Europe/Berlin", "2026-03-28", 24),
        ("Europe/Berlin", "2026-03-29", 23),
        ("Europe/Berlin", "2026-03-30", 24),
        ("Europe/Berlin", "2026-10-25", 25),
        ("Australia/Lord_Howe", "2026-04-05", 24.5),
        ("Australia/Lord_Howe", "2026-10-04", 23.5),
        ("America/Sao_Paulo", "2018-11-04", 23),  # midnight itself was skipped
        ("America/Havana", "2026-11-01", 25),  # midnight came twice
        ("Pacific/Apia", "2011-12-30", 0),  # a day that never was
    ],
)
def test_a_local_day_lasts_as_long_as_the_clocks_say(time_zone, day, hours):
    """PER-11."""
    period = parse_period(day, DAILY, time_zone)
    assert period.end - period.start == timedelta(hours=hours)
    assert (period.label, period.partition_key, period.last_day) == (day, day, period.first_day)


@pytest.mark.parametrize("time_zone", ["Europe/Berlin", "Australia/Lord_Howe", "America/Havana", "UTC"])
def test_days_neither_overlap_nor_leave_a_gap_and_add_up_to_their_weeks(time_zone):
    """PER-11."""
    days = list(
        periods_between(
            parse_period("2026-01-05", DAILY, time_zone), parse_period("2026-12-27", DAILY, time_zone)
        )
    )
    assert all(one.end == other.start and one.next() == other for one, other in pairwise(days))
    for monday in range(0, len(days), 7):
        week = period_of(days[monday].first_day, WEEKLY, time_zone)
        assert (week.start, week.end) == (days[monday].start, days[monday + 6].end)


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("2021-W53", "2021-W01 to 2021-W52"),
        ("2026-W00", "2026-W01 to 2026-W53"),
        ("2026-W54", "2026-W01 to 2026-W53"),
        ("2026-w7", r"did you mean 2026-W07\?"),
        ("2026W42", r"did you mean 2026-W42\?"),
        ("2026-W42-8", r"did you mean 2026-W42\?"),
        ("2021-w53", "2021-W01 to 2021-W52"),
        ("0000-W07", "years start at 0001"),
        ("0000-w7", "write it like 2026-W42"),
        ("\uff12026-W42", "write it like 2026-W42"),
        ("2026-02-30", "not a date of the calendar"),
        ("last week", "write it like 2026-W42"),
        ("", "write it like 2026-W42"),
        ("2026-W42\n", r"did you mean 2026-W42\?"),
        ("9999-W52", "edge of the calendar"),
    ],
)
def test_a_label_that_is_no_week_is_refused_with_the_fix(typed, hint):
    with pytest.raises(PeriodError, match=hint):
        parse_period(typed, WEEKLY, "UTC")


@pytest.mark.parametrize("typed", ["2026-W42", "2026-13-01", "14.10.2026", "9999-12-31"])
def test_a_daily_digest_takes_dates_only(typed):
    with pytest.raises(PeriodError):
        parse_period(typed, DAILY, "UTC")


def test_w53_exists_only_where_the_iso_calendar_has_it():
    assert parse_period("2026-W53", WEEKLY, "UTC").first_day == date(2026, 12, 28)
    with pytest.raises(PeriodError):
        parse_period("2025-W53", WEEKLY, "UTC")

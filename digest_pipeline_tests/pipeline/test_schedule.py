"""A tick names the period that ended before its own scheduled time, whatever the clock says."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg
import pytest
from dagster._utils.schedules import schedule_execution_time_iterator

from digest_pipeline.defs.build import build_definitions
from digest_pipeline.defs.jobs import tick_of
from digest_pipeline.defs.partitions import partitions_of
from digest_pipeline.periods import last_ended
from digest_pipeline.spec import Digest
from digest_pipeline_tests.harness.ledgers import tiny_spec

NEW_YORK, BERLIN, LORD_HOWE = "America/New_York", "Europe/Berlin", "Australia/Lord_Howe"


def ticks(digest: Digest, since: datetime, count: int) -> list[datetime]:
    """Return the next ticks as Dagster's daemon computes them."""
    (schedule,) = build_definitions({digest.name: digest}).schedules or ()
    assert isinstance(schedule, dg.ScheduleDefinition)
    times = schedule_execution_time_iterator(
        since.timestamp(), schedule.cron_schedule, schedule.execution_timezone
    )
    return [next(times) for _ in range(count)]


def answer(digest: Digest, at: datetime) -> Any:
    """Return the run request, or the skip reason, of the tick at an instant."""
    repository = build_definitions({digest.name: digest}).get_repository_def()
    (schedule,) = repository.schedule_defs
    with dg.build_schedule_context(scheduled_execution_time=at, repository_def=repository) as context:
        data = schedule.evaluate_tick(context)
    return data.run_requests[0] if data.run_requests else dg.SkipReason(data.skip_message)


@pytest.mark.parametrize(
    ("zone", "since", "expected"),
    [
        # The clocks of New York go forward on 2026-03-08 and back on 2026-11-01, both Sundays.
        (NEW_YORK, "2026-03-02", ["2026-W09-1", "2026-W10-1", "2026-W11-1"]),
        (NEW_YORK, "2026-10-26", ["2026-W43-1", "2026-W44-1", "2026-W45-1"]),
        (BERLIN, "2026-03-23", ["2026-W12-1", "2026-W13-1", "2026-W14-1"]),
        (BERLIN, "2026-10-19", ["2026-W42-1", "2026-W43-1", "2026-W44-1"]),
        (LORD_HOWE, "2026-03-30", ["2026-W13-1", "2026-W14-1", "2026-W15-1"]),
        # Year ends, with and without a week 53.
        (BERLIN, "2025-12-22", ["2025-W51-1", "2025-W52-1", "2026-W01-1"]),
        (BERLIN, "2026-12-28", ["2026-W52-1", "2026-W53-1", "2027-W01-1"]),
        (NEW_YORK, "2024-12-30", ["2024-W52-1", "2025-W01-1", "2025-W02-1"]),
    ],
)
def test_each_monday_names_the_week_that_has_just_ended(tmp_path, zone, since, expected):
    digest = tiny_spec(tmp_path, time_zone=zone)
    monday = datetime.fromisoformat(since).replace(tzinfo=ZoneInfo(zone))
    at = ticks(digest, monday, len(expected))
    assert [(t.astimezone(ZoneInfo(zone)).isoweekday(), t.astimezone(ZoneInfo(zone)).hour) for t in at] == [
        (1, 7)
    ] * len(expected)
    requests = [answer(digest, t) for t in at]
    assert [request.partition_key for request in requests] == expected
    assert all(request.partition_key in partitions_of(digest).get_partition_keys(current_time=t)
               for request, t in zip(requests, at, strict=True))  # fmt: skip


@pytest.mark.parametrize(
    ("zone", "day"), [(BERLIN, "2026-03-29"), (BERLIN, "2026-10-25"), (NEW_YORK, "2026-03-08")]
)
def test_a_daily_tick_in_the_hour_that_is_missing_or_comes_twice_names_each_day_once(tmp_path, zone, day):
    digest = tiny_spec(tmp_path, cadence="daily", first_period="2024-01-01", time_zone=zone, send_hour=2)
    start = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone))
    at = ticks(digest, start, 3)
    named = [answer(digest, t).partition_key for t in at]
    assert len(set(named)) == 3
    assert named == sorted(named)
    for t, label in zip(at, named, strict=True):
        assert digest.period(label, t.astimezone(UTC)).end <= t


def test_a_tick_that_the_daemon_takes_late_still_names_its_own_week(tmp_path):
    """PER-03: asked on Wednesday about Monday's tick, it is Monday's week."""
    digest = tiny_spec(tmp_path)
    monday = datetime(2026, 3, 9, 7, tzinfo=ZoneInfo(BERLIN))
    request = answer(digest, monday)
    assert request.partition_key == "2026-W10-1"
    assert request.tags["digest/period"] == "tiny_digest:2026-W10"
    assert "2026-W10" in request.run_key


def test_the_same_tick_asks_once_and_another_tick_asks_again(tmp_path):
    """LOST-14."""
    digest = tiny_spec(tmp_path)
    monday = datetime(2026, 3, 9, 7, tzinfo=ZoneInfo(BERLIN))
    assert answer(digest, monday).run_key == answer(digest, monday.astimezone(UTC)).run_key
    assert answer(digest, monday).run_key != answer(digest, monday.replace(hour=8)).run_key


def test_a_digest_that_has_ended_skips_its_ticks_and_says_why(tmp_path):
    digest = tiny_spec(tmp_path, first_period="2026-W01", last_period="2026-W53")
    assert answer(digest, datetime(2027, 1, 4, 7, tzinfo=ZoneInfo(BERLIN))).partition_key == "2026-W53-1"
    skipped = answer(digest, datetime(2027, 1, 11, 7, tzinfo=ZoneInfo(BERLIN)))
    assert isinstance(skipped, dg.SkipReason)
    assert "2027-W01 is not one of tiny_digest's periods" in str(skipped.skip_message)


def test_a_digest_that_has_not_begun_skips_its_ticks(tmp_path):
    digest = tiny_spec(tmp_path, first_period="2026-W10")
    assert isinstance(answer(digest, datetime(2026, 3, 2, 7, tzinfo=ZoneInfo(BERLIN))), dg.SkipReason)
    assert answer(digest, datetime(2026, 3, 9, 7, tzinfo=ZoneInfo(BERLIN))).partition_key == "2026-W10-1"


def test_a_tick_before_the_local_monday_does_not_name_a_week_that_still_runs(tmp_path):
    """PER-05: Monday in UTC is still Sunday in New York."""
    digest = tiny_spec(tmp_path, time_zone=NEW_YORK)
    request = answer(digest, datetime(2026, 3, 9, 2, tzinfo=UTC))
    assert request.partition_key == "2026-W09-1"


@pytest.mark.parametrize("zone", [NEW_YORK, BERLIN, LORD_HOWE, "America/Santiago"])
@pytest.mark.parametrize("hour", [0, 1, 2, 3, 7])
def test_the_catch_up_knows_when_the_schedule_ticks_whatever_the_clocks_do(tmp_path, zone, hour):
    """A year of days: never before the schedule's own tick, and after it only where the hour comes twice."""
    digest = tiny_spec(tmp_path, cadence="daily", first_period="2026-01-01", time_zone=zone, send_hour=hour)
    start = datetime(2026, 1, 2, tzinfo=ZoneInfo(zone))
    for at in ticks(digest, start - timedelta(hours=1), 370):
        period = last_ended(at, digest.cadence, zone)  # what the tick itself asks
        assert timedelta(0) <= tick_of(digest, period) - at <= timedelta(hours=1)


def test_a_tick_asks_also_for_a_week_that_somebody_has_run_by_hand(tmp_path):
    """The schedule looks at no run: that run sends what is left, and reports."""
    digest = tiny_spec(tmp_path)
    request = answer(digest, datetime(2026, 3, 9, 7, tzinfo=ZoneInfo(BERLIN)))
    assert request.run_key == "2026-W10@2026-03-09T06:00:00+00:00"
    assert request.asset_selection is None

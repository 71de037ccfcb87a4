"""Periods as Dagster partitions: the same labels, and the same windows in the digest's time zone."""

from __future__ import annotations

from datetime import timedelta

import dagster as dg

from digest_pipeline.periods import Cadence
from digest_pipeline.spec import Digest

# ISO week dates: they round-trip and sort over year ends. The default day_offset is Sunday, and
# %Y-%W maps every key of a year to one window without an error.
WEEK_FORMAT = "%G-W%V-%u"
DAY_FORMAT = "%Y-%m-%d"


def partitions_of(digest: Digest) -> dg.TimeWindowPartitionsDefinition:
    """Return a digest's partitions, from its first period to its last or to the latest that has ended."""
    first, last = digest.first, digest.last
    if digest.cadence is Cadence.WEEKLY:
        return dg.WeeklyPartitionsDefinition(
            start_date=first.partition_key,
            end_date=None if last is None else last.next().partition_key,
            day_offset=1,
            timezone=digest.time_zone,
            fmt=WEEK_FORMAT,
        )
    return dg.DailyPartitionsDefinition(
        start_date=first.partition_key,
        end_date=None if last is None else (last.last_day + timedelta(days=1)).isoformat(),
        timezone=digest.time_zone,
        fmt=DAY_FORMAT,
    )

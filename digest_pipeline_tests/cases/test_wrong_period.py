"""Somebody mailed the wrong days. Here a period is named, half-open, local, over, and guarded by its dates."""

from datetime import UTC, datetime, timedelta

import pytest

from digest_pipeline.eligibility.compose import compose
from digest_pipeline.eligibility.freeze import freeze
from digest_pipeline.eligibility.source import Source
from digest_pipeline.errors import PeriodError, SourceError
from digest_pipeline.periods import Cadence, parse_period
from digest_pipeline_tests.harness.ledgers import (
    AFTER,
    BEFORE,
    IN_PERIOD,
    PERIOD,
    customer,
    dump,
    migrated,
    source_url,
    tiny_source,
    tiny_spec,
    write_customers,
)

ALL_TOTALS = (
    "SELECT o.customer_id AS customer_id, o.item AS item, {day} AS ordered_on FROM orders AS o "
    "WHERE :period_start < :period_end"
)


def micros(instant):
    return int(instant.timestamp() * 1_000_000)


@pytest.mark.parametrize(
    ("zone", "label", "start", "end"),
    [
        ("Asia/Tokyo", "2025-W10", datetime(2025, 3, 2, 15, tzinfo=UTC), datetime(2025, 3, 9, 15, tzinfo=UTC)),
        # Berlin's clocks go forward inside this week: it lasts 167 hours.
        ("Europe/Berlin", "2025-W13", datetime(2025, 3, 23, 23, tzinfo=UTC), datetime(2025, 3, 30, 22, tzinfo=UTC)),
    ],
)  # fmt: skip
def test_a_local_week_is_stored_as_the_instants_at_which_it_began_and_ended(
    ledger_url, tmp_path, zone, label, start, end
):
    """PER-05, PER-11."""
    digest = tiny_spec(tmp_path, time_zone=zone)
    with migrated(ledger_url) as ledger, tiny_source(tmp_path, 1) as source:
        freeze(ledger, source, digest, parse_period(label, Cadence.WEEKLY, zone), "run-1")
        (row,) = dump(ledger, "manifest")
    assert (row["period_start_at"], row["period_end_at"], row["time_zone"]) == (
        micros(start),
        micros(end),
        zone,
    )


@pytest.mark.parametrize("zone", ["America/Los_Angeles", "Asia/Tokyo", "Pacific/Kiritimati"])
def test_a_period_is_refused_until_it_is_over_where_its_readers_live(tmp_path, zone):
    """PER-07: there is no way to freeze a part of one."""
    digest = tiny_spec(tmp_path, time_zone=zone)
    end = parse_period("2025-W10", Cadence.WEEKLY, zone).end
    with pytest.raises(PeriodError, match="has not ended"):
        digest.period("2025-W10", end - timedelta(microseconds=1))
    assert digest.period("2025-W10", end).end == end


@pytest.mark.parametrize(
    ("orders", "day"),
    [
        ((IN_PERIOD, *[BEFORE] * 50), "o.ordered_on"),
        ((IN_PERIOD, AFTER), "o.ordered_on"),
        ((IN_PERIOD,), "NULL"),
        ((IN_PERIOD,), "'some day'"),
        ((IN_PERIOD,), "20250305"),
    ],
    ids=["all before", "one after", "no date", "no date at all", "a number"],
)
def test_content_dated_outside_its_period_is_never_sealed(ledger_url, tmp_path, orders, day):
    """PER-08: a query that lost its bounds returns all-time totals and looks right."""
    digest = tiny_spec(tmp_path, content={"sql": ALL_TOTALS.format(day=day), "dated_by": "ordered_on"})
    tiny_source(tmp_path, 0).close()
    write_customers(tmp_path, [customer(1), customer(2, orders=orders)])
    with migrated(ledger_url) as ledger, Source(source_url(tmp_path)) as source:
        ids = freeze(ledger, source, digest, PERIOD, "run-1").manifest_ids
        with pytest.raises(SourceError, match=r"ordered_on is not in 2025-W10"):
            compose(ledger, source, digest, PERIOD, ids, "run-1")
        assert dump(ledger, "manifest")[0]["content_sealed_at"] is None


def test_a_dating_column_that_the_content_does_not_have_is_named(ledger_url, tmp_path):
    """PER-08."""
    digest = tiny_spec(tmp_path, content={"dated_by": "made_on"})
    with migrated(ledger_url) as ledger, tiny_source(tmp_path, 1) as source:
        ids = freeze(ledger, source, digest, PERIOD, "run-1").manifest_ids
        with pytest.raises(SourceError, match="made_on"):
            compose(ledger, source, digest, PERIOD, ids, "run-1")

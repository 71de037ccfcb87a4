"""The periods that the schedule should have started and nobody did."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

from sqlalchemy import Connection

from digest_pipeline.defs.jobs import tick_of
from digest_pipeline.defs.names import as_instant
from digest_pipeline.ledger import follow_ups
from digest_pipeline.periods import Period
from digest_pipeline.spec import Digest

MISSED = "missed_period"

GRACE = timedelta(minutes=30)
"""After the schedule's tick: until then the period is the schedule's."""

CONFIRMED_AFTER = timedelta(minutes=1)
"""A period is started only when it was seen missing this long ago: a daemon that comes back after an outage
ticks its schedules and its sensors at once, and the schedule's newest tick is made good."""


def missing_periods(conn: Connection, digest: Digest, now: datetime) -> tuple[list[Period], str]:
    """Return the missed periods, oldest first, and a word about why there can be none.

    Those of the latest ``catch_up_periods`` ended ones that have no sealed manifest although their tick is
    over, and that come after the oldest period of the ledger: history from before it is never started here.
    """
    latest = digest.ended_periods(now)[-digest.catch_up_periods :] if digest.catch_up_periods else []
    first, sealed = follow_ups.first_and_sealed(conn, digest.name, [period.label for period in latest])
    if first is None:
        return [], "no period was ever started: the first one is for the schedule, or for a person"
    missing = (
        period
        for period in latest
        if period.label >= first and period.label not in sealed and tick_of(digest, period) + GRACE <= now
    )
    return list(missing), ""


def confirmed(missing: list[Period], cursor: str | None, now: datetime) -> tuple[list[Period], str]:
    """Return the periods that were missing for long enough, and the cursor that remembers since when."""
    seen = _read(cursor)
    since = {period.label: min(seen.get(period.label, now), now) for period in missing}
    kept = json.dumps({label: instant.isoformat() for label, instant in since.items()})
    return [period for period in missing if since[period.label] + CONFIRMED_AFTER <= now], kept


def _read(cursor: str | None) -> dict[str, datetime]:
    try:
        stored = json.loads(cursor or "{}")
        return {label: as_instant(instant) for label, instant in stored.items()}
    except (ValueError, AttributeError, TypeError):
        return {}  # of an older build, or edited in the UI: seen now for the first time

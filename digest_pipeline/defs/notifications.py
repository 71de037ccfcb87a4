"""Sensors that tell people of failed runs, failed checks and whatever waits for them, once per incident.

Both write the same incidents; the ledger keeps them from being opened or told twice. The first is
prompt, and Dagster shows on the run that it reacted. The second reads runs anew with an overlap, so
that nothing is lost that the first met while the ledger was away, and reads what no run tells.
"""

# No `from __future__ import annotations` here: Dagster reads the types of decorated functions.

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import dagster as dg

from digest_pipeline.defs.names import as_instant
from digest_pipeline.defs.resources import Installation
from digest_pipeline.defs.run_findings import About, about, checks, ended_at, failures, has_ended, mends
from digest_pipeline.ledger import incidents
from digest_pipeline.ledger.incidents import Identity, Incident
from digest_pipeline.notify.channels import require_channels
from digest_pipeline.notify.incident import Facts, Kind
from digest_pipeline.notify.take_in import close_where, take_in, take_in_conditions
from digest_pipeline.notify.tell import tell_due
from digest_pipeline.spec import Digest

EVERY_SECONDS = 30
LOOK_BACK = timedelta(days=1)
"""How far back a sensor without a cursor reads: what is older was told, or is nobody's concern now."""
OVERLAP = timedelta(seconds=60)
"""Read again at each tick: a run's row may be stored later than its time says."""
MOST_RUNS = 100
FEW_SECONDS = 5.0

_RUNNING = dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])
_TELLING = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
_MENDED_BY_RUNS = (Kind.RUN_FAILED, Kind.RUN_CANCELED, Kind.ORDER_FAILED)


def notification_sensors(digests: dict[str, Digest]) -> list[dg.SensorDefinition]:
    """Return the sensors that notify, switched on. Raises SpecError for a channel that can't be used."""
    for digest in digests.values():
        require_channels(digest)
    return [_failed_runs(digests), _incidents(digests)]


def _failed_runs(digests: Mapping[str, Digest]) -> dg.SensorDefinition:
    @dg.run_failure_sensor(
        name="notify_failed_runs",
        minimum_interval_seconds=EVERY_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Tells people of a failed run, unless Dagster will retry it by itself.",
    )
    def notify_failed_runs(context: dg.RunFailureSensorContext, installation: Installation) -> None:
        record = context.instance.get_run_record_by_id(context.dagster_run.run_id)
        if record is not None:
            # First: a halt that made the run fail is told as a halt.
            for digest in digests.values():
                take_in_conditions(installation.ledger, digest)
            _take_in_run(context.instance, installation, digests, record)
            # One tick of Dagster's may bring five of these; what they leave is the other sensor's to tell.
            tell_due(installation.ledger, installation.settings, digests, FEW_SECONDS)

    return notify_failed_runs


def _incidents(digests: Mapping[str, Digest]) -> dg.SensorDefinition:
    @dg.sensor(
        name="notify_incidents",
        minimum_interval_seconds=EVERY_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Tells people of failed checks and of what the ledger holds for them, closes incidents "
        "that are well again, and tries channels that were down once more. Starts no run.",
    )
    def notify_incidents(context: dg.SensorEvaluationContext, installation: Installation) -> dg.SkipReason:
        for digest in digests.values():
            take_in_conditions(installation.ledger, digest)
        changed, cursor = _changed_runs(context.instance, context.cursor)
        running = context.instance.get_run_records(_RUNNING, limit=MOST_RUNS)
        for record in [*changed, *running]:
            _take_in_run(context.instance, installation, digests, record)
        context.update_cursor(cursor)
        told = tell_due(installation.ledger, installation.settings, digests)
        ended = ", ".join(f"{how} {count}" for how, count in sorted(told.items()))
        return dg.SkipReason(f"read {len(changed)} runs; told: {ended or 'nobody'}")

    return notify_incidents


def _changed_runs(instance: dg.DagsterInstance, cursor: str | None) -> tuple[list[dg.RunRecord], str]:
    """Return the runs that changed, oldest change first, and where to go on."""
    now = datetime.now(UTC)
    since, is_caught_up = _position(cursor, now)
    records = instance.get_run_records(
        # A page that was full is gone on from: many runs can change within the overlap.
        dg.RunsFilter(updated_after=since - OVERLAP if is_caught_up else since, statuses=_TELLING),
        limit=MOST_RUNS,
        order_by="update_timestamp",
        ascending=True,
    )
    # No later than now: a run that another machine's clock dates to tomorrow must not hide a day of others.
    newest = min(now, max([since, *(record.update_timestamp.astimezone(UTC) for record in records)]))
    position = {"since": newest.isoformat(), "caught_up": len(records) < MOST_RUNS}
    return list(records), json.dumps(position)


def _position(cursor: str | None, now: datetime) -> tuple[datetime, bool]:
    try:
        stored = json.loads(cursor or "")
        since = as_instant(stored["since"])
        return min(now, max(since, now - LOOK_BACK)), bool(stored["caught_up"])
    except (ValueError, TypeError, KeyError):  # none yet, or one that somebody typed
        return now - LOOK_BACK, False


def _take_in_run(
    instance: dg.DagsterInstance,
    installation: Installation,
    digests: Mapping[str, Digest],
    record: dg.RunRecord,
) -> None:
    what = about(record.dagster_run, digests)
    if what is None:
        return
    ledger, digest = installation.ledger, digests.get(what.digest)
    for at, check, of, finding in checks(instance, record, what):
        if finding is not None:
            take_in(ledger, digest, finding)
        _close_checks(installation, of, check, finding.what if finding else None, at)
    if not has_ended(record.dagster_run):
        return
    with ledger.read() as conn:
        # Its incident, not the gate's present state: a run is read again after the halt is over.
        halted = incidents.was_open_at(conn, Kind.SENDING_HALTED, what.digest, ended_at(record))
    for finding in failures(instance, record, what, halted=halted):
        take_in(ledger, digest, finding)
    if record.dagster_run.status is dg.DagsterRunStatus.SUCCESS:
        _close_mended(installation, what, record)


def _close_checks(
    installation: Installation, what: About, check: str, failing: Identity | None, at: int
) -> None:
    """Close what this evaluation says is over: everything of the check but what it says now."""

    def is_over(one: Incident, _: Facts) -> bool:
        is_check = one.kind in (Kind.CHECK_FAILED, Kind.CHECK_WARNED) and one.subject == check
        return is_check and one.identity != failing

    close_where(installation.ledger, what.digest, what.period, is_over, at)


def _close_mended(installation: Installation, what: About, record: dg.RunRecord) -> None:
    def is_mended(one: Incident, facts: Facts) -> bool:
        return one.kind in _MENDED_BY_RUNS and mends(record.dagster_run, facts.job, facts.asset)

    # An order may have failed because it named the wrong period.
    period = None if what.is_order else what.period
    close_where(installation.ledger, what.digest, period, is_mended, ended_at(record))

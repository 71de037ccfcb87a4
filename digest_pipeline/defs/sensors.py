"""Sensors that come back to a period when there is something left to do in it, and to missed periods.

Each asks the ledger, by the ledger's clock, and starts runs of the digest's one job. A tick fails, and says
why, when the ledger cannot be reached, has another schema or belongs to another environment: that is red in
the UI, where a skipped tick is not. A tick that fails keeps its cursor, and the next one asks again.
"""

# No `from __future__ import annotations` here: Dagster reads the types of decorated functions.

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import dagster as dg
from sqlalchemy import Connection

from digest_pipeline.cleanup.clean import MICROS_PER_HOUR
from digest_pipeline.cleanup.retention import MICROS_PER_DAY, kept_for
from digest_pipeline.defs.resources import Installation
from digest_pipeline.defs.sensors_missed import MISSED, confirmed, missing_periods
from digest_pipeline.defs.sensors_runs import Wanted, answer
from digest_pipeline.defs.sensors_work import assets_for, checks_for
from digest_pipeline.delivery.due_work import sending_of, through_the_gate
from digest_pipeline.delivery.plan import gate_name
from digest_pipeline.errors import PeriodError
from digest_pipeline.instants import as_datetime
from digest_pipeline.ledger import follow_ups, gates, kept_rows, migrate, reads
from digest_pipeline.ledger.follow_ups import FollowUp
from digest_pipeline.ledger.kept_rows import Keeping
from digest_pipeline.spec import Digest

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

UNTOUCHED = timedelta(minutes=10)
"""How long after its seal a manifest is left to the run, or the person, that sealed it."""


def sensors_of(digest: Digest, job: "UnresolvedAssetJobDefinition") -> list[dg.SensorDefinition]:
    """Return a digest's sensors: for what is left to deliver, for cleanup, and for missed periods.

    Whatever they find, one tick starts at most 4 runs, none for a period that a run is queued or in progress
    for, and at most 30 a day for one period and reason.
    """
    return [_follow_ups(digest, job), _cleanup(digest, job), _missed_periods(digest, job)]


def _follow_ups(digest: Digest, job: "UnresolvedAssetJobDefinition") -> dg.SensorDefinition:
    @dg.sensor(
        name=f"{digest.name}_follow_ups",
        job=job,
        minimum_interval_seconds=30,
        default_status=_status(digest),
        description=(
            "Starts a run, which may SEND, of each period in which something can go on: a retry came due, the "
            "lease of a dead sender ended, evidence about an unknown can be sought, a sealed manifest was not "
            "delivered ten minutes later, the window closed on what waits. Not what is held, paused, disabled "
            "or halted: pause the digest to look at a sealed period before it is sent."
        ),
    )
    def follow_ups_sensor(context: dg.SensorEvaluationContext, installation: Installation) -> dg.SensorResult:
        gateway = installation.gateway(digest)
        with _ledger(installation) as conn:
            now = reads.now(conn)
            found = follow_ups.deliveries(conn, digest.name, sending_of(digest, gateway, UNTOUCHED))
            gate = gates.read(conn, gate_name(gateway))
        found, note = through_the_gate(found, gate, now)
        return answer(context, digest, _wanted(digest, found, as_datetime(now)), as_datetime(now), note=note)

    return follow_ups_sensor


def _cleanup(digest: Digest, job: "UnresolvedAssetJobDefinition") -> dg.SensorDefinition:
    @dg.sensor(
        name=f"{digest.name}_cleanup",
        job=job,
        # Its question reads what is kept, and nobody waits for the answer.
        minimum_interval_seconds=600,
        default_status=_status(digest),
        description=(
            "Starts a run of each period with generated rows that may go by now: sent, with the proof, once the "
            "window has closed or the delay has passed, or past their retention. Asks the provider first "
            "whether it lists what it accepted. Sends nothing."
        ),
    )
    def cleanup_sensor(context: dg.SensorEvaluationContext, installation: Installation) -> dg.SensorResult:
        with _ledger(installation) as conn:
            now = as_datetime(reads.now(conn))
            found = kept_rows.cleanups(conn, digest.name, _keeping(digest))
        return answer(context, digest, _wanted(digest, found, now), now)

    return cleanup_sensor


def _missed_periods(digest: Digest, job: "UnresolvedAssetJobDefinition") -> dg.SensorDefinition:
    @dg.sensor(
        name=f"{digest.name}_missed_periods",
        job=job,
        minimum_interval_seconds=60,
        default_status=_status(digest),
        description=(
            f"Starts the whole run, which may SEND, of a period that has ended without being frozen: among the "
            f"latest {digest.catch_up_periods} ended ones, half an hour after the schedule's tick, and only after "
            "the oldest period of the ledger. One whose window has closed is frozen, reported and held."
        ),
    )
    def missed_periods_sensor(
        context: dg.SensorEvaluationContext, installation: Installation
    ) -> dg.SensorResult:
        with _ledger(installation) as conn:
            now = as_datetime(reads.now(conn))
            missing, note = missing_periods(conn, digest, now)
        missed, cursor = confirmed(missing, context.cursor, now)
        wanted = [Wanted(period, MISSED, period.end) for period in missed]
        if len(missed) < len(missing):
            note = "a missing period is started when it is still missing in a minute"
        return answer(context, digest, wanted, now, note=note, cursor=cursor)

    return missed_periods_sensor


def _status(digest: Digest) -> dg.DefaultSensorStatus:
    return dg.DefaultSensorStatus.RUNNING if digest.automatic else dg.DefaultSensorStatus.STOPPED


@contextmanager
def _ledger(installation: Installation) -> Iterator[Connection]:
    with installation.ledger.read() as conn:
        # Every run would refuse to send from it: one failed tick says so, and no run is started for that.
        migrate.require_same_environment(conn, installation.settings.environment)
        yield conn


def _keeping(digest: Digest) -> Keeping:
    delay = digest.cleanup.delay_hours
    return Keeping(
        digest.cleanup.proof,
        -1 if delay is None else int(delay * MICROS_PER_HOUR),
        kept_for(digest.retention),
        int(digest.retention.unknown_days * MICROS_PER_DAY),
        int(digest.retention.pending_days * MICROS_PER_DAY),
    )


def _wanted(digest: Digest, found: Sequence[FollowUp], now: datetime) -> list[Wanted]:
    wanted = []
    for one in found:
        try:
            period = digest.period(one.period, now)
        except PeriodError:
            continue  # frozen under an earlier specification: Dagster has no such partition any more
        if period.label == one.period:
            assets, checks = assets_for(one.reason), checks_for(digest, one.reason)
            wanted.append(Wanted(period, one.reason.value, as_datetime(one.due_at), assets, checks))
    return wanted

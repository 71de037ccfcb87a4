"""The job that takes one period from selection to cleanup, the one that only checks, and the schedule."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from typing import TYPE_CHECKING

import dagster as dg

from digest_pipeline.defs.names import ASSETS, asset_key, checks_job_name, job_name, period_tag
from digest_pipeline.periods import Cadence, Period, last_ended
from digest_pipeline.spec import Digest

if TYPE_CHECKING:
    # What define_asset_job returns; Dagster does not export its name.
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition


def period_job(digest: Digest) -> UnresolvedAssetJobDefinition:
    """Return the job that materialises every asset of a period and runs its checks."""
    return dg.define_asset_job(
        job_name(digest),
        selection=dg.AssetSelection.assets(*(asset_key(digest, name) for name in ASSETS)),
        description=f"One {digest.cadence} period of {digest.name}: freeze, send, reconcile, clean, check.",
        # After a crash of the run's process the whole run starts again: every step is safe to repeat.
        tags={"dagster/retry_strategy": "ALL_STEPS"},
    )


def checks_job(digest: Digest) -> UnresolvedAssetJobDefinition:
    """Return the job that runs every check of a period (its partition is a tag) and materialises nothing."""
    keys = (asset_key(digest, name) for name in ASSETS)
    return dg.define_asset_job(
        checks_job_name(digest),
        selection=dg.AssetSelection.checks_for_assets(*keys),
        description=f"The asset checks of one period of {digest.name}; give it the tag dagster/partition.",
    )


def schedule_of(digest: Digest, job: UnresolvedAssetJobDefinition) -> dg.ScheduleDefinition:
    """Return the schedule: every week on Monday, or every day, at the send hour, in the digest's zone.

    A tick materialises the period that ended before its own scheduled time, never one read from the
    clock, so a late daemon asks for the right one. It does so also where somebody has materialised the
    period already: that run sends what is left, which may be nothing, and reports. While another run of
    the period is under way, the instance's limit on ``digest/period`` keeps it queued.
    """
    cron = f"0 {digest.send_hour} * * {'1' if digest.cadence is Cadence.WEEKLY else '*'}"

    @dg.schedule(
        name=f"{job.name}_schedule",
        job=job,
        cron_schedule=cron,
        execution_timezone=digest.time_zone,
        default_status=dg.DefaultScheduleStatus.RUNNING
        if digest.automatic
        else dg.DefaultScheduleStatus.STOPPED,
        description=f"Sends each period of {digest.name} once it has ended.",
    )
    def tick(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        at = context.scheduled_execution_time.astimezone(UTC)
        period = last_ended(at, digest.cadence, digest.time_zone)
        last = digest.last
        if period.first_day < digest.first.first_day or (last and period.first_day > last.first_day):
            return dg.SkipReason(f"{period.label} is not one of {digest.name}'s periods")
        # The tick's own time, so that a run that failed can be asked for again by another tick.
        return dg.RunRequest(
            run_key=f"{period.label}@{at.isoformat()}",
            partition_key=period.partition_key,
            tags=period_tag(digest, period),
        )

    return tick


def tick_of(digest: Digest, period: Period) -> datetime:
    """Return when the schedule ticks for a period (UTC); where the hour comes twice, the later one.

    Where the clocks skip the hour, it is the instant at which they do.
    """
    local = datetime.combine(period.last_day + timedelta(days=1), time(digest.send_hour), digest.zone)
    return max(local.astimezone(UTC), local.replace(fold=1).astimezone(UTC))

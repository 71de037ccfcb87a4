"""Definitions from specifications: one group of assets, one job and one schedule for each digest."""

from __future__ import annotations

import dagster as dg

from digest_pipeline.defs.checks import checks_of
from digest_pipeline.defs.closing_assets import cleaned_digest_rows, reconciliation_report
from digest_pipeline.defs.delivery_asset import delivery_outcomes
from digest_pipeline.defs.executors import executor_of
from digest_pipeline.defs.jobs import checks_job, period_job, schedule_of
from digest_pipeline.defs.notifications import notification_sensors
from digest_pipeline.defs.operator_jobs import operator_jobs
from digest_pipeline.defs.resources import Installation
from digest_pipeline.defs.selection_assets import digest_rows, eligible_customers
from digest_pipeline.defs.sensors import sensors_of
from digest_pipeline.settings import Settings
from digest_pipeline.spec import Digest


def build_definitions(digests: dict[str, Digest]) -> dg.Definitions:
    """Return the code location of these digests.

    DIGEST_EXECUTOR says where their steps run: in the run's own process, or on Celery's workers.
    """
    return dg.Definitions.merge(
        *(digest_definitions(digest) for digest in digests.values()), shared_definitions(digests)
    )


def shared_definitions(digests: dict[str, Digest]) -> dg.Definitions:
    """Return what a code location has once: operator jobs, notifications, resources and the executor."""
    return dg.Definitions(
        jobs=operator_jobs(),
        sensors=notification_sensors(digests),
        resources={"installation": Installation()},
        executor=executor_of(Settings.from_environment()),
    )


def digest_definitions(digest: Digest) -> dg.Definitions:
    """Return what each digest has of its own: assets, checks, jobs, schedule and sensors."""
    job = period_job(digest)
    return dg.Definitions(
        assets=[
            eligible_customers(digest),
            digest_rows(digest),
            delivery_outcomes(digest),
            reconciliation_report(digest),
            cleaned_digest_rows(digest),
        ],
        asset_checks=checks_of(digest),
        jobs=[job, checks_job(digest)],
        schedules=[schedule_of(digest, job)],
        sensors=sensors_of(digest, job),
    )

"""What things are called in Dagster, and which period a run is about."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import version

import dagster as dg

from digest_pipeline.periods import Period
from digest_pipeline.spec import Digest

CODE_VERSION = version("digest-pipeline")
PARTITION_TAG = "dagster/partition"
OPERATOR_TAG = "digest/operator"
"""On every run of a person's order."""
PERIOD_TAG = "digest/period"
"""``customer_digest:2026-W42`` on every run of a period: the instance runs one of each at a time."""
FOLLOW_UP_TAG = "digest/follow_up"
"""Why a sensor started a run, e.g. ``retries_due``; on no other run."""

FOLLOW_UP_AT_TAG = "digest/follow_up_at"
"""When it did, by the ledger's clock."""

ASSETS = (
    "eligible_customers",
    "digest_rows",
    "delivery_outcomes",
    "reconciliation_report",
    "cleaned_digest_rows",
)


def asset_key(digest: Digest, name: str) -> dg.AssetKey:
    """Return the key of one of a digest's assets, e.g. ``customer_digest/delivery_outcomes``."""
    return dg.AssetKey([digest.name, name])


def job_name(digest: Digest) -> str:
    """Return the job that takes one period from selection to cleanup."""
    return f"{digest.name}_{digest.cadence}"


def checks_job_name(digest: Digest) -> str:
    """Return the job that runs a digest's asset checks and materialises nothing."""
    return f"{digest.name}_checks"


def as_instant(text: str) -> datetime:
    """Return the instant of a tag or cursor, which somebody may have edited: UTC where it names no zone."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def period_tag(digest: Digest, period: Period) -> dict[str, str]:
    """Return the tag that keeps two runs of one period from working side by side."""
    return {PERIOD_TAG: f"{digest.name}:{period.label}"}


def period_of_run(
    context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext | dg.OpExecutionContext, digest: Digest
) -> Period:
    """Return the period of the run's partition. Raises PeriodError for one that cannot be frozen."""
    return digest.period(partition_of(context))


def partition_of(
    context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext | dg.OpExecutionContext,
) -> str:
    """Return the run's partition key, also where only checks run and Dagster gives it as a tag alone."""
    key = context.run.tags.get(PARTITION_TAG)
    if key is None:
        raise dg.DagsterInvariantViolationError(
            "this needs one partition: choose a period in the launch dialog"
        )
    return key

"""Definitions from specifications: one group of assets, one job and one schedule for each digest."""

from __future__ import annotations

import dagster as dg

from digest_pipeline.defs.checks import checks_of
from digest_pipeline.defs.closing_assets import cleaned_digest_rows, reconciliation_report
from digest_pipeline.defs.delivery_asset import delivery_outcomes
from digest_pipeline.defs.jobs import checks_job, period_job, schedule_of
from digest_pipeline.defs.operator_jobs import operator_jobs
from digest_pipeline.defs.resources import Installation
from digest_pipeline.defs.selection_assets import digest_rows, eligible_customers
from digest_pipeline.spec import Digest


def build_definitions(digests: dict[str, Digest]) -> dg.Definitions:
    """Return the code location of these digests.

    Steps run in the run's own process: with the multiprocess executor, a killed run worker leaves its
    step sending while the retry starts. The ledger makes that safe; this makes it rare.
    """
    return dg.Definitions.merge(*(_of_one(digest) for digest in digests.values()), _shared())


def _shared() -> dg.Definitions:
    return dg.Definitions(
        jobs=operator_jobs(), resources={"installation": Installation()}, executor=dg.in_process_executor
    )


def _of_one(digest: Digest) -> dg.Definitions:
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
    )

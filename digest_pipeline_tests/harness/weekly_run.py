"""A run of a week's job in a process of its own, on the instance that DAGSTER_HOME names."""

from __future__ import annotations

import dagster as dg

from digest_pipeline.defs.build import build_definitions
from digest_pipeline.settings import Settings


def weekly_job() -> dg.JobDefinition:
    """The job as another process would load it."""
    definitions = build_definitions(Settings.from_environment().digests())
    return definitions.resolve_job_def("tiny_digest_weekly")


def run_week(partition: str) -> str:
    """Run the job for one partition to its end, or to the signal that a run worker is cancelled with."""
    with dg.DagsterInstance.get() as instance:
        done = dg.execute_job(
            dg.reconstructable(weekly_job),
            instance,
            tags={"dagster/partition": partition},
            raise_on_error=False,
        )
        return done.run_id

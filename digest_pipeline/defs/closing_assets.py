"""The assets that close a period: the report, and the cleanup of what is no longer needed."""

# No `from __future__ import annotations` here: Dagster reads the types of decorated functions.

from typing import Any

import dagster as dg

from digest_pipeline.cleanup.clean import clean
from digest_pipeline.cleanup.retention import apply_retention
from digest_pipeline.defs.names import CODE_VERSION, asset_key, period_of_run
from digest_pipeline.defs.partitions import partitions_of
from digest_pipeline.defs.plans import send_plan
from digest_pipeline.defs.resources import Installation
from digest_pipeline.ledger import reads
from digest_pipeline.reconciliation.publish import publish_report
from digest_pipeline.spec import Digest
from digest_pipeline.states import State


def reconciliation_report(digest: Digest) -> dg.AssetsDefinition:
    """Return the asset of a digest's reports."""

    @dg.asset(
        key=asset_key(digest, "reconciliation_report"),
        deps=[asset_key(digest, "delivery_outcomes")],
        partitions_def=partitions_of(digest),
        group_name=digest.name,
        kinds={"pandas", "report"},
        code_version=CODE_VERSION,
        description=(
            "The proof: every customer of the manifest in exactly one state, the ledger compared with the "
            "provider, attempts and failures by class, coverage. Written as CSV and as one HTML page. "
            "Sends nothing."
        ),
    )
    def reconciliation_report(context: dg.AssetExecutionContext, installation: Installation) -> Any:
        period = period_of_run(context, digest)
        plan = send_plan(installation, digest, period, context.run.run_id, "report")
        report = publish_report(installation.ledger, plan, period, installation.settings.reports)
        return dg.MaterializeResult(
            metadata={
                "report": dg.MetadataValue.path(str(report.html)),
                "csv": dg.MetadataValue.path(str(report.csv)),
                "summary": dg.MetadataValue.md(report.markdown),
                **report.numbers,
            }
        )

    return reconciliation_report


def cleaned_digest_rows(digest: Digest) -> dg.AssetsDefinition:
    """Return the asset of a digest's cleanup."""

    @dg.asset(
        key=asset_key(digest, "cleaned_digest_rows"),
        deps=[asset_key(digest, "reconciliation_report")],
        partitions_def=partitions_of(digest),
        group_name=digest.name,
        kinds={"sql"},
        code_version=CODE_VERSION,
        description=(
            f"Generated rows removed after a definitive send (proof: {digest.cleanup.proof}), once per key, "
            "and by the retention rule, which is recorded apart. What is unknown, failed or waiting keeps "
            "its rows. Materialising it again removes nothing twice. Sends nothing."
        ),
    )
    def cleaned_digest_rows(context: dg.AssetExecutionContext, installation: Installation) -> Any:
        period = period_of_run(context, digest)
        ledger = installation.ledger
        with ledger.read() as conn:
            ids = reads.manifest_ids(conn, digest.name, period.label)
        cleaned = clean(ledger, digest, ids, context.run.run_id)
        by_rule = apply_retention(ledger, digest, ids)
        with ledger.read() as conn:
            states = reads.summarise(conn, ids).states
        return dg.MaterializeResult(
            metadata={
                "cleaned_now": cleaned,
                "cleaned": states[State.CLEANED],
                "sent_not_cleaned": states[State.SENT],
                **{f"retention_{what}": count for what, count in by_rule.items()},
            }
        )

    return cleaned_digest_rows

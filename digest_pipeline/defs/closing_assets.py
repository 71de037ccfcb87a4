"""The assets that close a period: the report, and the cleanup of what is no longer needed."""

# No `from __future__ import annotations` here: Dagster reads the types of decorated functions.

from typing import Any

import dagster as dg

from digest_pipeline.cleanup.clean import clean
from digest_pipeline.cleanup.retention import apply_retention
from digest_pipeline.defs.metadata import by_state, links, listed, not_sent, tags_of
from digest_pipeline.defs.names import CODE_VERSION, asset_key, period_of_run
from digest_pipeline.defs.partitions import partitions_of
from digest_pipeline.defs.plans import send_plan
from digest_pipeline.defs.resources import Installation
from digest_pipeline.ledger import reads
from digest_pipeline.reconciliation.publish import publish_report
from digest_pipeline.reconciliation.reporting.outcomes import SAME_AS_AN_OUTCOME
from digest_pipeline.reconciliation.reporting.report import Report
from digest_pipeline.settings import Settings
from digest_pipeline.spec import Digest
from digest_pipeline.states import State


def reconciliation_report(digest: Digest) -> dg.AssetsDefinition:
    """Return the asset of a digest's reports."""

    @dg.asset(
        key=asset_key(digest, "reconciliation_report"),
        deps=[asset_key(digest, "delivery_outcomes")],
        partitions_def=partitions_of(digest),
        group_name=digest.name,
        owners=digest.owners,
        tags=tags_of(digest),
        kinds={"pandas", "report"},
        code_version=CODE_VERSION,
        description=(
            "The proof: every customer of the manifest in exactly one state, the ledger compared with the "
            "provider, attempts and failures by class, coverage.\n\n"
            "**Materialising it** asks the provider about everything doubtful and a sample of the rest, and "
            "writes the report anew: a CSV and one HTML page. **Sends nothing.**"
        ),
    )
    def reconciliation_report(context: dg.AssetExecutionContext, installation: Installation) -> Any:
        period = period_of_run(context, digest)
        plan = send_plan(installation, digest, period, context.run.run_id, "report")
        report = publish_report(installation.ledger, plan, period, installation.settings.reports)
        return dg.MaterializeResult(metadata=report_metadata(installation.settings, report))

    return reconciliation_report


def report_metadata(settings: Settings, report: Report) -> dict[str, Any]:
    """Return what the report asset shows: the outcomes first, under the names that every asset uses."""
    more = {
        name: n for name, n in report.numbers.items() if name not in SAME_AS_AN_OUTCOME | {*report.outcomes}
    }
    return {
        "status": report.status,
        "summary": dg.MetadataValue.md(report.markdown),
        **links(settings, report),
        **report.outcomes,
        **by_state(report.table),
        "not_sent": not_sent(report.reasons),
        **more,
    }


def cleaned_digest_rows(digest: Digest) -> dg.AssetsDefinition:
    """Return the asset of a digest's cleanup."""

    @dg.asset(
        key=asset_key(digest, "cleaned_digest_rows"),
        deps=[asset_key(digest, "reconciliation_report")],
        partitions_def=partitions_of(digest),
        group_name=digest.name,
        owners=digest.owners,
        tags=tags_of(digest),
        kinds={"sql"},
        code_version=CODE_VERSION,
        description=(
            "The generated rows that are not needed any more, removed once per operation key.\n\n"
            f"**Materialising it** removes them after a definitive send (proof: {digest.cleanup.proof}), "
            f"{_when(digest)}; and by the retention rule, which is recorded apart. What is unknown, failed or "
            "waiting keeps its rows. Again: nothing is removed twice. **Sends nothing.**"
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
        return dg.MaterializeResult(metadata=_cleanup_metadata(digest, cleaned, states, by_rule))

    return cleaned_digest_rows


def _when(digest: Digest) -> str:
    hours = digest.cleanup.delay_hours
    if hours is None:
        return "once the delivery window has closed"
    return f"{hours:g} hours after it" if hours else "as soon as it is sent"


def _cleanup_metadata(
    digest: Digest, cleaned_now: int, states: dict[str, int], by_rule: dict[str, int]
) -> dict[str, Any]:
    left, cleaned = states[State.SENT], states[State.CLEANED]
    removed = sum(count for what, count in by_rule.items() if what.startswith("removed_"))
    lines = [f"**{cleaned_now:,} cleaned up now; {cleaned:,} in all**"]
    if left:
        lines.append(f"{left:,} are sent and keep their generated rows for now: they go {_when(digest)}.")
    if by_rule:
        lines.append(f"The retention rule: {listed(by_rule)}.")
    return {
        "summary": dg.MetadataValue.md("\n\n".join(lines) + "\n"),
        "sent": left + cleaned,
        "cleaned": cleaned,
        "cleaned_now": cleaned_now,
        "sent_not_cleaned": left,
        "retention_removed": removed,
        "retention_written_off": by_rule.get("written_off", 0),
        "retention_closed": by_rule.get("closed", 0),
        **{f"retention_{what}": count for what, count in by_rule.items() if what.startswith("removed_")},
    }

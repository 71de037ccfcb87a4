"""The assets that freeze a period: its customers, then their content."""

# No `from __future__ import annotations` here: Dagster reads the types of decorated functions.

from typing import Any

import dagster as dg

from digest_pipeline.defs.metadata import counted, listed, table, tags_of
from digest_pipeline.defs.names import CODE_VERSION, asset_key, period_of_run
from digest_pipeline.defs.partitions import partitions_of
from digest_pipeline.defs.resources import Installation
from digest_pipeline.eligibility.compose import ContentReport, compose
from digest_pipeline.eligibility.freeze import Frozen, freeze
from digest_pipeline.errors import InputError
from digest_pipeline.ledger import reads
from digest_pipeline.spec import Digest


def eligible_customers(digest: Digest) -> dg.AssetsDefinition:
    """Return the asset of a digest's sealed manifests."""

    @dg.asset(
        key=asset_key(digest, "eligible_customers"),
        partitions_def=partitions_of(digest),
        group_name=digest.name,
        owners=digest.owners,
        tags=tags_of(digest),
        kinds={"sql", "manifest"},
        code_version=CODE_VERSION,
        description=(
            "The frozen manifest: who should receive this digest for the period.\n\n"
            "**Materialising it** selects the customers once and seals the list. Again: the same list, and how "
            "the source has drifted since; nobody who came later is mailed. **Sends nothing.**"
        ),
    )
    def eligible_customers(context: dg.AssetExecutionContext, installation: Installation) -> Any:
        period = period_of_run(context, digest)
        with installation.source(digest) as source:
            frozen = freeze(installation.ledger, source, digest, period, context.run.run_id)
        if frozen.entries == 0:
            context.log.warning(
                "%s %s: no customer is eligible; an empty manifest is sealed", digest.name, period.label
            )
        return dg.MaterializeResult(metadata=_manifest_metadata(frozen))

    return eligible_customers


def _manifest_metadata(frozen: Frozen) -> dict[str, Any]:
    drift = frozen.drift
    excluded = [
        {"reason": reason, "customers": count}
        for reason, count in sorted(frozen.excluded.items(), key=lambda item: -item[1])
    ]
    return {
        "summary": dg.MetadataValue.md(_manifest_summary(frozen)),
        "selected": frozen.selected,
        "eligible": frozen.entries,
        "excluded": sum(frozen.excluded.values()),
        "drift_added": drift.added if drift else 0,
        "drift_removed": drift.removed if drift else 0,
        "drift_readdressed": drift.readdressed if drift else 0,
        "seconds": round(frozen.seconds, 3),
        "frozen_now": dg.MetadataValue.bool(frozen.created),
        "excluded_by_reason": table({"reason": "string", "customers": "int"}, excluded),
        **{f"excluded_{reason}": count for reason, count in sorted(frozen.excluded.items())},
    }


def _manifest_summary(frozen: Frozen) -> str:
    out = listed(frozen.excluded)
    lines = [
        f"**{'Sealed now' if frozen.created else 'Unchanged: this manifest was sealed before'}**",
        "",
        f"{frozen.entries:,} eligible of {counted(frozen.selected, 'selected customer')}"
        + (f"; excluded: {out}." if out else "."),
    ]
    drift = frozen.drift
    if drift and (drift.added or drift.removed or drift.readdressed):
        lines += [
            "",
            f"The source has changed since: {drift.added:,} would be added, {drift.removed:,} removed, "
            f"{drift.readdressed:,} have another address. None of that is mailed in this period.",
        ]
    return "\n".join(lines) + "\n"


def digest_rows(digest: Digest) -> dg.AssetsDefinition:
    """Return the asset of a digest's sealed content."""

    @dg.asset(
        key=asset_key(digest, "digest_rows"),
        deps=[asset_key(digest, "eligible_customers")],
        partitions_def=partitions_of(digest),
        group_name=digest.name,
        owners=digest.owners,
        tags=tags_of(digest),
        kinds={"sql", "jinja"},
        code_version=CODE_VERSION,
        description=(
            "What every eligible customer is told: any attempt, whenever it is made, sends these bytes.\n\n"
            "**Materialising it** renders and seals the content once; a customer with nothing to tell becomes "
            "`suppressed: empty`. Again: nothing is rendered. **Sends nothing.**"
        ),
    )
    def digest_rows(context: dg.AssetExecutionContext, installation: Installation) -> Any:
        period = period_of_run(context, digest)
        with installation.ledger.read() as conn:
            ids = reads.manifest_ids(conn, digest.name, period.label)
        if not ids:
            raise InputError(
                f"{digest.name} {period.label} has no manifest: materialise eligible_customers first"
            )
        with installation.source(digest) as source:
            report = compose(installation.ledger, source, digest, period, ids, context.run.run_id)
        return dg.MaterializeResult(metadata=_content_metadata(report))

    return digest_rows


def _content_metadata(report: ContentReport) -> dict[str, Any]:
    begun = "Rendered and sealed now" if report.created else "Unchanged: this content was sealed before"
    nothing = f"; {report.empty:,} have nothing to be told (suppressed: empty)" if report.empty else ""
    return {
        "summary": dg.MetadataValue.md(
            f"**{begun}**\n\n{counted(report.composed, 'message')} to send{nothing}.\n"
        ),
        "eligible": report.composed + report.empty,
        "composed": report.composed,
        "suppressed_empty": report.empty,
        "bytes": report.bytes,
        "seconds": round(report.seconds, 3),
        "composed_now": dg.MetadataValue.bool(report.created),
    }

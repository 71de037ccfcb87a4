"""The assets that freeze a period: its customers, then their content."""

# No `from __future__ import annotations` here: Dagster reads the types of decorated functions.

from typing import Any

import dagster as dg

from digest_pipeline.defs.names import CODE_VERSION, asset_key, period_of_run
from digest_pipeline.defs.partitions import partitions_of
from digest_pipeline.defs.resources import Installation
from digest_pipeline.eligibility.compose import compose
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
        kinds={"sql", "manifest"},
        code_version=CODE_VERSION,
        description=(
            "The frozen manifest: who should receive this digest for the period. Materialising it selects "
            "the customers once and seals them; materialising it again returns the same manifest and "
            "reports how the source has drifted since, without mailing any of that. Sends nothing."
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
    return {
        "eligible": frozen.entries,
        "selected": frozen.selected,
        "excluded": sum(frozen.excluded.values()),
        **{f"excluded_{reason}": count for reason, count in sorted(frozen.excluded.items())},
        "frozen_now": dg.MetadataValue.bool(frozen.created),
        "drift_added": drift.added if drift else 0,
        "drift_removed": drift.removed if drift else 0,
        "drift_readdressed": drift.readdressed if drift else 0,
        "seconds": round(frozen.seconds, 3),
    }


def digest_rows(digest: Digest) -> dg.AssetsDefinition:
    """Return the asset of a digest's sealed content."""

    @dg.asset(
        key=asset_key(digest, "digest_rows"),
        deps=[asset_key(digest, "eligible_customers")],
        partitions_def=partitions_of(digest),
        group_name=digest.name,
        kinds={"sql", "jinja"},
        code_version=CODE_VERSION,
        description=(
            "The content of every eligible customer's digest, rendered once and sealed: any later attempt "
            "sends these bytes. A customer with nothing to tell becomes suppressed: empty. Materialising "
            "again renders nothing. Sends nothing."
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
        return dg.MaterializeResult(
            metadata={
                "composed": report.composed,
                "empty": report.empty,
                "bytes": report.bytes,
                "composed_now": dg.MetadataValue.bool(report.created),
                "seconds": round(report.seconds, 3),
            }
        )

    return digest_rows

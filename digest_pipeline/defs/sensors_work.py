"""What a follow-up runs: which assets and which checks."""

from __future__ import annotations

import dagster as dg

from digest_pipeline.defs.checks import checks_of
from digest_pipeline.defs.names import ASSETS, asset_key
from digest_pipeline.ledger.follow_ups import Reason
from digest_pipeline.spec import Digest

_CLEANUP = {Reason.CLEANUP_DUE, Reason.RETENTION_OVER}


def assets_for(reason: Reason) -> tuple[str, ...]:
    """Return the assets that a follow-up materialises: from where there is work, to the end.

    Cleanup brings the report, between whose check and the removal nothing may come. Where the content is
    sealed, the source is not read again.
    """
    if reason is Reason.CONTENT_NOT_SEALED:
        return ASSETS[ASSETS.index("digest_rows") :]
    return ASSETS[ASSETS.index("reconciliation_report" if reason in _CLEANUP else "delivery_outcomes") :]


def checks_for(digest: Digest, reason: Reason) -> tuple[dg.AssetCheckKey, ...]:
    """Return the checks of a follow-up: its assets' own, and those that block its first one.

    The blocking ones of the asset before are asked again: what stopped the period's first run, say a changed
    manifest, must stop this one, too.
    """
    assets = assets_for(reason)
    own = {asset_key(digest, name) for name in assets}
    before = asset_key(digest, ASSETS[ASSETS.index(assets[0]) - 1])
    specs = [spec for check in checks_of(digest) for spec in check.check_specs]
    return tuple(
        spec.key for spec in specs if spec.asset_key in own or (spec.asset_key == before and spec.blocking)
    )

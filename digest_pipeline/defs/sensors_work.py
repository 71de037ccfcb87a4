"""What a follow-up runs, and what the rate gate lets it do now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import dagster as dg

from digest_pipeline.defs.checks import checks_of
from digest_pipeline.defs.names import ASSETS, asset_key
from digest_pipeline.instants import as_datetime
from digest_pipeline.ledger.follow_ups import FollowUp, Reason
from digest_pipeline.ledger.gates import GateState
from digest_pipeline.spec import Digest

_TO_THE_PROVIDER = {Reason.EVIDENCE_DUE, Reason.RETRIES_DUE, Reason.UNDELIVERED}
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


def through_the_gate(
    found: Sequence[FollowUp], gate: GateState | None, now: int
) -> tuple[list[FollowUp], str]:
    """Return what may be done through the rate gate now, and a word about what may not.

    While the account is refused, one period tries one message when the gate's probe is due, for all.
    """
    waiting = [one for one in found if one.reason in _TO_THE_PROVIDER]
    others = [one for one in found if one.reason not in _TO_THE_PROVIDER]
    if gate is None or not waiting:
        return list(found), ""
    if gate.closed_until > now:
        return (
            others,
            f"the provider is given a rest until {as_datetime(gate.closed_until):%Y-%m-%d %H:%M:%S} UTC",
        )
    if gate.halt_reason is None:
        return list(found), ""
    probe_at = gate.probe_at or now
    if probe_at > now:
        return (
            others,
            f"sending is halted; it is tried again after {as_datetime(probe_at):%Y-%m-%d %H:%M:%S} UTC",
        )
    # A message ends a halt; a question is refused as long as it lasts.
    first = min(waiting, key=lambda one: (one.reason is Reason.EVIDENCE_DUE, one.period))
    return [replace(first, reason=Reason.PROBE_DUE, due_at=probe_at), *others], ""

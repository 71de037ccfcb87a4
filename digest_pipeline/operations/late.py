"""Permission to send a period whose delivery window has closed."""

from __future__ import annotations

from sqlalchemy import Connection

from digest_pipeline.errors import InputError
from digest_pipeline.ledger import audit, reads
from digest_pipeline.ledger.audit import Action
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.operations.decisions import require_signed
from digest_pipeline.periods import Period
from digest_pipeline.spec import Digest

MICROS_PER_HOUR = 3_600_000_000
MOST_HOURS = 24 * 31


def allow_late(
    ledger: Ledger, digest: Digest, period: Period, *, who: str, reason: str, hours: float
) -> bool:
    """Let a period be sent for some hours although its window has closed; returns whether that changed
    anything. Written to the audit trail with its reason. A period whose window is open is left alone.
    """
    require_signed("sending late", who, reason)
    if not 0 < hours <= MOST_HOURS:
        raise InputError(f"a permission lasts from 0 to {MOST_HOURS} hours, not {hours:g}")

    def work(conn: Connection) -> bool:
        ids = reads.manifest_ids(conn, digest.name, period.label)
        changed = audit.extend_lateness(conn, ids, int(hours * MICROS_PER_HOUR))
        if changed:
            action = Action("late", who, reason, digest.name, period.label)
            audit.record(conn, action, {"manifests": changed, "hours": hours})
        return changed > 0

    return ledger.transact(work)


def allow_as_specified(ledger: Ledger, digest: Digest, period: Period) -> bool:
    """Give the permission that the digest's specification gives, audited like one given by hand."""
    late = digest.late
    return late.allow and allow_late(
        ledger, digest, period, who="specification", reason=late.reason, hours=late.hours
    )

"""Erasing a customer: address, name and content go; key, hashes and outcome stay."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, Row, and_, null, select, tuple_, update

from digest_pipeline.ledger import transitions
from digest_pipeline.ledger.schema import content, delivery, manifest, manifest_entry
from digest_pipeline.states import CLAIMABLE, SuppressionReason

_d = delivery.c


def entries_of(
    conn: Connection, customer_id: str, digest: str | None, tenant: str | None
) -> list[Row[tuple[int, int, str, str | None]]]:
    """Return every entry of a customer: manifest, ordinal, operation key, state."""
    query = (
        select(
            manifest_entry.c.manifest_id, manifest_entry.c.ordinal, manifest_entry.c.operation_key, _d.state
        )
        .join(manifest, manifest.c.id == manifest_entry.c.manifest_id)
        .outerjoin(
            delivery,
            and_(_d.manifest_id == manifest_entry.c.manifest_id, _d.ordinal == manifest_entry.c.ordinal),
        )
        .where(manifest_entry.c.customer_id == customer_id)
        .order_by(manifest_entry.c.operation_key)
    )
    if digest is not None:
        query = query.where(manifest.c.digest == digest)
    if tenant is not None:
        query = query.where(manifest.c.tenant == tenant)
    return list(conn.execute(query))


def erase(conn: Connection, entries: Sequence[Row[tuple[int, int, str, str | None]]]) -> dict[str, int]:
    """Scrub entries; what waited is suppressed, an unknown stays unknown and is never sent again.

    The document is emptied, not removed: its removal stays what cleanup and retention record. Returns
    counts of what was done.
    """
    places = [(entry.manifest_id, entry.ordinal) for entry in entries]
    if not places:
        return {"entries": 0, "cancelled": 0}
    cancelled = 0
    for entry in entries:
        if entry.state in CLAIMABLE:
            reasons = {entry.ordinal: str(SuppressionReason.ERASED)}
            cancelled += len(transitions.suppress(conn, entry.manifest_id, reasons))
    here = tuple_(manifest_entry.c.manifest_id, manifest_entry.c.ordinal).in_(places)
    conn.execute(update(manifest_entry).where(here).values(recipient=null(), name=null()))
    there = tuple_(content.c.manifest_id, content.c.ordinal).in_(places)
    conn.execute(update(content).where(there).values(document=b""))
    return {"entries": len(places), "cancelled": cancelled}

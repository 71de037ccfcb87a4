"""The frozen message of one key, for a subscriber that was told to send it."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import Connection, and_, or_, select

from digest_pipeline.ledger.dialects import ledger_now
from digest_pipeline.ledger.schema import content, delivery, manifest, manifest_entry, suppression

_e, _d = manifest_entry.c, delivery.c


@dataclass(frozen=True, slots=True)
class Frozen:
    """A sealed message as it is stored. Not in a ``repr``: whom it is for, and what it says."""

    operation_key: str
    digest: str
    tenant: str
    recipient: str = field(repr=False)
    document: bytes = field(repr=False)


class Gone:
    """The key is known, but its message is not to be sent any more: erased, cleaned, or settled."""


def find(conn: Connection, operation_key: str) -> Frozen | Gone | None:
    """Return the message of a key; None for one that this ledger has not sealed.

    Only what is still to be settled is given out: nobody needs the content of a mail that was sent.
    """
    query = (
        select(manifest.c.digest, manifest.c.tenant, _e.recipient, content.c.document, _d.finished_at)
        .join(manifest, manifest.c.id == _e.manifest_id)
        .join(delivery, and_(_d.manifest_id == _e.manifest_id, _d.ordinal == _e.ordinal))
        .outerjoin(content, and_(content.c.manifest_id == _e.manifest_id, content.c.ordinal == _e.ordinal))
        .where(_e.operation_key == operation_key, manifest.c.content_sealed_at.is_not(None))
    )
    row = conn.execute(query).one_or_none()
    if row is None:
        return None
    if row.recipient is None or row.document is None or row.finished_at is not None:
        return Gone()
    return Frozen(operation_key, row.digest, row.tenant, row.recipient, row.document)


def is_suppressed(conn: Connection, tenant: str, address_hash: str) -> bool:
    """Whether an address of a tenant is to be left alone now."""
    s = suppression.c
    counts = or_(s.expires_at.is_(None), s.expires_at > ledger_now())
    query = select(s.tenant).where(s.tenant == tenant, s.address_hash == address_hash, counts)
    return conn.execute(query).first() is not None

"""Whose addresses the ledger knows, as hashes."""

from __future__ import annotations

from sqlalchemy import Connection, select

from digest_pipeline.ledger.schema import manifest, manifest_entry


def tenants(conn: Connection) -> tuple[str, ...]:
    """Return every tenant that has a manifest, sorted."""
    return tuple(conn.execute(select(manifest.c.tenant).distinct().order_by(manifest.c.tenant)).scalars())


def newest_address_of(conn: Connection, customer_id: str, tenant: str) -> str | None:
    """Return the hash of the address that a customer was last frozen with; None for an unknown customer."""
    query = (
        select(manifest_entry.c.address_hash)
        .join(manifest, manifest.c.id == manifest_entry.c.manifest_id)
        .where(manifest_entry.c.customer_id == customer_id, manifest.c.tenant == tenant)
        .order_by(manifest_entry.c.manifest_id.desc())
        .limit(1)
    )
    return conn.execute(query).scalar_one_or_none()

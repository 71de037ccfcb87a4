"""The deliveries that a check names: how each stands, and which periods they are of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, and_, func, select

from digest_pipeline.ledger.schema import delivery, manifest, manifest_entry

_d = delivery.c
_e = manifest_entry.c


def rows_of(conn: Connection, keys: Sequence[str]) -> list[dict[str, Any]]:
    """Return one row per key that the ledger has: key, customer id, state, attempts, reason. No address."""
    query = (
        select(
            _e.operation_key,
            _e.customer_id,
            func.coalesce(_d.state, "no delivery").label("state"),
            func.coalesce(_d.attempts, 0).label("attempts"),
            func.coalesce(_d.suppression, _d.hold_reason, _d.failure_class, "").label("reason"),
        )
        .select_from(manifest_entry)
        .outerjoin(delivery, and_(_d.manifest_id == _e.manifest_id, _d.ordinal == _e.ordinal))
        .where(_e.operation_key.in_(keys))
        .order_by(_e.operation_key)
    )
    return [dict(row) for row in conn.execute(query).mappings()]


def periods_of(conn: Connection, keys: Sequence[str]) -> list[str]:
    """Return the labels of the periods these keys are of, oldest first."""
    query = select(manifest.c.period).join(manifest_entry, _e.manifest_id == manifest.c.id)
    return sorted(conn.execute(query.where(_e.operation_key.in_(keys)).distinct()).scalars())

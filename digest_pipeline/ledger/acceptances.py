"""Acceptances that come late: applied as the facts they are, with what they overtook put on record."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Connection, Row, and_, select

from digest_pipeline.ledger import attempts, transitions
from digest_pipeline.ledger.dialects import locked, rowset, rowset_value
from digest_pipeline.ledger.schema import delivery, manifest_entry
from digest_pipeline.states import State

_d = delivery.c


def apply(conn: Connection, rows: transitions.Rows) -> list[str]:
    """Apply positive evidence about older attempts; return the operation keys that were tried again since.

    Rows as for ``transitions.apply_acceptance``, ``token`` being the accepted attempt's. A newer claim
    loses its row and gets its attempt's record here: its sender may never come back to write one. What
    it still brings back is added to that record as a late result. The keys returned are an alert: their
    customers may have been sent a second message.
    """
    if not rows:
        return []
    accepted = {(row["manifest_id"], row["ordinal"]): row["token"] for row in rows}
    claimed = _claimed(conn, rows)
    moved = transitions.apply_acceptance(conn, rows)
    # A row that was never claimed has no token: its acceptance overtakes nothing.
    overtaken = [row for row in moved if (row.token or 0) > accepted[row.manifest_id, row.ordinal]]
    places = {(row.manifest_id, row.ordinal) for row in overtaken}
    attempts.record_superseded(conn, [row for row in claimed if (row.manifest_id, row.ordinal) in places])
    return _keys(conn, overtaken)


def _claimed(conn: Connection, rows: transitions.Rows) -> list[Row[Any]]:
    """Read the newer claims of these rows, locked: an UPDATE returns what a row became, not what it was."""
    r = rowset(conn, "r", {"manifest_id": BigInteger(), "ordinal": BigInteger()})
    claim = (_d.token, _d.claimed_by, _d.gateway, _d.account, _d.batch_id, _d.claimed_at)
    query = select(_d.manifest_id, _d.ordinal, *claim).where(
        _d.manifest_id == r.c.manifest_id, _d.ordinal == r.c.ordinal, _d.state == State.CLAIMED
    )
    query = query.order_by(_d.manifest_id, _d.ordinal)
    places = [{"manifest_id": row["manifest_id"], "ordinal": row["ordinal"]} for row in rows]
    return list(conn.execute(locked(conn, query, of=delivery), {"r": rowset_value(places)}))


def _keys(conn: Connection, rows: list[Row[Any]]) -> list[str]:
    if not rows:
        return []
    r = rowset(conn, "r", {"manifest_id": BigInteger(), "ordinal": BigInteger()})
    same = and_(manifest_entry.c.manifest_id == r.c.manifest_id, manifest_entry.c.ordinal == r.c.ordinal)
    places = [{"manifest_id": row.manifest_id, "ordinal": row.ordinal} for row in rows]
    query = select(manifest_entry.c.operation_key).join(r, same).order_by(manifest_entry.c.operation_key)
    return list(conn.execute(query, {"r": rowset_value(places)}).scalars())

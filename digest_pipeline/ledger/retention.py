"""What the retention rule does to rows. Ages in microseconds."""

from __future__ import annotations

from sqlalchemy import Connection, select, update

from digest_pipeline.ledger import transitions
from digest_pipeline.ledger.dialects import ledger_now
from digest_pipeline.ledger.schema import content, delivery
from digest_pipeline.states import State

_d = delivery.c
_PAGE = 5_000


def write_off_old(conn: Connection, manifest_id: int, age: int) -> int:
    """End unknowns that were ambiguous for longer than ``age``; they stay visible as written_off."""
    rows = conn.execute(
        select(_d.manifest_id, _d.ordinal, _d.token).where(
            _d.manifest_id == manifest_id,
            _d.ambiguous_at.is_not(None),
            _d.state == State.UNKNOWN,
            _d.ambiguous_at < ledger_now() - age,
        )
    ).mappings()
    return len(transitions.write_off(conn, [dict(row) for row in rows]))


def close_old(conn: Connection, manifest_id: int, age: int) -> int:
    """End what was never tried, ``age`` after its window (and any permission) was over."""
    return transitions.close_manifest(conn, manifest_id, age)


def remove_old(conn: Connection, manifest_id: int, state: State, age: int) -> int:
    """Remove the generated rows of deliveries that ended in ``state`` longer than ``age`` ago."""
    removed = 0
    while True:
        ordinals = list(
            conn.execute(
                select(_d.ordinal)
                .join(content, (content.c.manifest_id == _d.manifest_id) & (content.c.ordinal == _d.ordinal))
                .where(
                    _d.manifest_id == manifest_id,
                    _d.state == state,
                    _d.finished_at < ledger_now() - age,
                )
                .order_by(_d.ordinal)
                .limit(_PAGE)
            ).scalars()
        )
        if not ordinals:
            return removed
        # Late evidence may have moved a row since it was read: only what the guard still matches goes.
        marked = conn.execute(
            update(delivery)
            .where(_d.manifest_id == manifest_id, _d.ordinal.in_(ordinals), _d.state == state)
            .values(cleaned_at=ledger_now(), cleaned_by=f"retention:{state}")
            .returning(_d.ordinal)
        ).scalars()
        removed += transitions.remove_content(conn, manifest_id, list(marked))

"""What of the ledger waits for a person, by period: counts and a few keys, never an address."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, and_, func, or_, select
from sqlalchemy.sql.elements import ColumnElement

from digest_pipeline.ledger.dialects import ledger_now
from digest_pipeline.ledger.schema import delivery, manifest, manifest_entry
from digest_pipeline.states import CLAIMABLE, State

_d = delivery.c
_m = manifest.c


@dataclass(frozen=True, slots=True)
class Waiting:
    """Deliveries of a period that wait for the same reason; ``keys``: a few of them."""

    period: str
    reason: str
    count: int
    keys: tuple[str, ...]


def held_unknowns(conn: Connection, digest: str, reasons: Collection[str], shown: int) -> list[Waiting]:
    """Return the unknowns that are held for one of these reasons."""
    held = and_(_d.ambiguous_at.is_not(None), _d.state == State.UNKNOWN, _d.hold_reason.in_(sorted(reasons)))
    query = (
        select(_m.period, _d.hold_reason, func.count())
        .join(delivery, _d.manifest_id == _m.id)
        .where(_m.digest == digest, held)
        .group_by(_m.period, _d.hold_reason)
        .order_by(_m.period, _d.hold_reason)
    )
    return [
        Waiting(
            period,
            reason,
            count,
            _keys(conn, digest, period, and_(held, _d.hold_reason == reason), shown),
        )
        for period, reason, count in conn.execute(query).all()
    ]


def unsent_after_window(conn: Connection, digest: str, shown: int) -> list[Waiting]:
    """Return what was ready before its delivery window closed, or had a permission, and was not sent.

    A period that was only made ready after its window, such as one of a backfill, is not among them.
    """
    current = ledger_now()
    over = and_(
        _m.content_sealed_at.is_not(None),
        or_(_m.content_sealed_at < _m.window_closes_at, _m.late_until.is_not(None)),
        _m.window_closes_at <= current,
        or_(_m.late_until.is_(None), _m.late_until <= current),
    )
    left = and_(
        over,
        _d.due_at.is_not(None),
        _d.state.in_(sorted(CLAIMABLE)),
        or_(_d.late_until.is_(None), _d.late_until <= current),
    )
    query = (
        select(_m.period, func.count())
        .join(delivery, _d.manifest_id == _m.id)
        .where(_m.digest == digest, left)
        .group_by(_m.period)
        .order_by(_m.period)
    )
    return [
        Waiting(period, "window_closed", count, _keys(conn, digest, period, left, shown))
        for period, count in conn.execute(query).all()
    ]


def ready_periods(conn: Connection, digest: str) -> frozenset[str]:
    """Return the labels of the periods of which some content was sealed."""
    query = select(_m.period).where(_m.digest == digest, _m.content_sealed_at.is_not(None)).distinct()
    return frozenset(conn.execute(query).scalars())


def first_used(conn: Connection, digest: str) -> int | None:
    """Return when the first manifest of a digest was selected; None for one that never was."""
    first: int | None = conn.execute(select(func.min(_m.selected_at)).where(_m.digest == digest)).scalar_one()
    return first


def _keys(
    conn: Connection, digest: str, period: str, which: ColumnElement[bool], shown: int
) -> tuple[str, ...]:
    entry = manifest_entry.c
    query = (
        select(entry.operation_key)
        .join(delivery, and_(_d.manifest_id == entry.manifest_id, _d.ordinal == entry.ordinal))
        .join(manifest, _m.id == _d.manifest_id)
        .where(_m.digest == digest, _m.period == period, which)
        .order_by(entry.manifest_id, entry.ordinal)
        .limit(shown)
    )
    return tuple(conn.execute(query).scalars())

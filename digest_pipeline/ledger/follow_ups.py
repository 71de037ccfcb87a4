"""What is to be done, and in which periods: the questions with which sensors look for work.

Each is answered from an index that is as small as the work itself; none walks through what is finished, or
through what is held. Nothing here writes. Instants and durations are in
microseconds. What cannot go on by itself is no work: sending that is disabled, paused or refused, windows
that are not open, rows held for a person, and manifests that a restored ledger is in doubt about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    Connection,
    Row,
    Select,
    Table,
    and_,
    case,
    false,
    func,
    literal,
    or_,
    select,
)

from digest_pipeline.ledger import reads
from digest_pipeline.ledger.schema import ManifestState, delivery, manifest
from digest_pipeline.ledger.windows import is_not_paused, is_out_of_doubt
from digest_pipeline.states import State

_d, _m = delivery.c, manifest.c
_MOST_LEASES = 1_000_000


class Reason(StrEnum):
    """Why somebody should come back to a period. Members in order of precedence."""

    LEASES_ENDED = "leases_ended"
    EVIDENCE_DUE = "evidence_due"
    RETRIES_DUE = "retries_due"
    UNDELIVERED = "undelivered"
    PROBE_DUE = "probe_due"
    WINDOW_CLOSED = "window_closed"
    CONTENT_NOT_SEALED = "content_not_sealed"
    CLEANUP_DUE = "cleanup_due"
    RETENTION_OVER = "retention_over"


@dataclass(frozen=True, slots=True)
class FollowUp:
    """One period in which there is something to do, and since when."""

    period: str
    reason: Reason
    due_at: int


@dataclass(frozen=True, slots=True)
class Sending:
    """How a digest is sent: ``sends`` and ``asks`` say whether it sends and seeks evidence at all.

    ``grace``: what was sealed less than this ago is left to whoever sealed it.
    """

    gateway: str
    sends: bool
    asks: bool
    grace: int


def deliveries(conn: Connection, digest: str, how: Sending) -> list[FollowUp]:
    """Return the periods of a digest that a delivery run has work in, one reason each, the oldest first.

    Whether the rate gate lets anything through is not asked here.
    """
    now = reads.now(conn)
    found = [
        *each(conn, _ended_leases(digest, how, now), lambda _: Reason.LEASES_ENDED),
        *each(conn, _due(digest, how, now), lambda row: _OF_STATE[row.state]),
        *each(conn, _outlived(digest, how, now), lambda _: Reason.WINDOW_CLOSED),
        *each(conn, _without_content(digest, how, now), lambda _: Reason.CONTENT_NOT_SEALED),
    ]
    return one_for_each_period(found)


def first_and_sealed(conn: Connection, digest: str, periods: Sequence[str]) -> tuple[str | None, set[str]]:
    """Return the oldest period that has a manifest, and which of ``periods`` have only sealed ones."""
    first = conn.execute(select(func.min(_m.period)).where(_m.digest == digest)).scalar_one()
    building = func.max(case((_m.state == ManifestState.BUILDING, 1), else_=0))
    query = select(_m.period).where(_m.digest == digest, _m.period.in_(periods)).group_by(_m.period)
    return first, set(conn.execute(query.having(building == 0)).scalars())


_OF_STATE = {
    State.UNKNOWN: Reason.EVIDENCE_DUE,
    State.RETRY: Reason.RETRIES_DUE,
    State.PENDING: Reason.UNDELIVERED,
}


def each(conn: Connection, query: Select[Any], reason: Callable[[Row[Any]], Reason]) -> list[FollowUp]:
    """Return what a query of periods and instants found."""
    rows = conn.execute(query).all()
    return [FollowUp(row.period, reason(row), row.due_at) for row in rows if row.due_at is not None]


def one_for_each_period(found: Sequence[FollowUp]) -> list[FollowUp]:
    """Return the most urgent reason of each period, in the order of the periods."""
    rank = list(Reason)
    chosen: dict[str, FollowUp] = {}
    for one in sorted(found, key=lambda one: (rank.index(one.reason), one.due_at)):
        chosen.setdefault(one.period, one)
    return [chosen[period] for period in sorted(chosen)]


def with_any(table: Table, is_one: ColumnElement[bool], name: str) -> CTE:
    """Return every manifest that has such rows, by one index look-up for each: the rows are passed over."""
    column = table.c.manifest_id
    found = select(func.min(column).label("id")).where(is_one).cte(name, recursive=True)
    following = select(func.min(column)).where(column > found.c.id, is_one).scalar_subquery()
    return found.union_all(select(following).where(found.c.id.is_not(None)))


def _open(digest: str, how: Sending) -> ColumnElement[bool]:
    return and_(_m.digest == digest, is_out_of_doubt(), is_not_paused(literal(how.gateway)))


def _window_is_open(now: int) -> ColumnElement[bool]:
    return and_(_m.window_opens_at <= now, or_(_m.window_closes_at > now, late_until(manifest) > now))


def late_until(table: Table) -> ColumnElement[int]:
    """Return until when a manifest, or a delivery, may be sent late; never NULL."""
    return func.coalesce(table.c.late_until, 0)


def _ended_leases(digest: str, how: Sending, now: int) -> Select[Any]:
    # Ordered and limited by itself: otherwise SQLite goes through every delivery instead of the leases.
    ended = (
        select(_d.manifest_id, _d.lease_ends)
        .where(_d.lease_ends < now)
        .order_by(_d.lease_ends)
        .limit(_MOST_LEASES)
        .subquery()
    )
    query = select(_m.period, func.min(ended.c.lease_ends).label("due_at"))
    return query.join(ended, ended.c.manifest_id == _m.id).where(_open(digest, how)).group_by(_m.period)


def _due(digest: str, how: Sending, now: int) -> Select[Any]:
    """The first row of each manifest that may be sent, or asked about, now."""
    opened = _window_is_open(now) if how.sends else false()
    # Rows that were never tried are due since the window opened, and may be all of a large period. Where they
    # are held, only what lies behind them in the index is looked at.
    behind = case((opened, -1), else_=_m.window_opens_at)
    permitted = late_until(delivery) > now if how.sends else false()
    asked = _d.state == State.UNKNOWN if how.asks else false()
    sent = and_(_d.state != State.UNKNOWN, or_(opened, permitted))

    def first(column: ColumnElement[Any]) -> ColumnElement[Any]:
        query = select(column).where(
            _d.manifest_id == _m.id, _d.due_at > behind, _d.due_at <= now, or_(asked, sent)
        )
        return query.order_by(_d.due_at, _d.ordinal).limit(1).correlate(manifest).scalar_subquery()

    working = with_any(delivery, _d.due_at.is_not(None), "working")
    found = (
        select(
            _m.period, _m.content_sealed_at, first(_d.state).label("state"), first(_d.due_at).label("due_at")
        )
        .join(working, working.c.id == _m.id)
        .where(_open(digest, how), _m.content_sealed_at.is_not(None))
        .subquery()
    )
    touched = or_(found.c.state != State.PENDING, found.c.content_sealed_at <= now - how.grace)
    return select(found.c.period, found.c.state, found.c.due_at).where(touched)


def _outlived(digest: str, how: Sending, now: int) -> Select[Any]:
    """Manifests whose window is over, with rows that were tried and wait: nothing sends them any more."""
    left = (
        select(_d.ordinal)
        .where(
            _d.manifest_id == _m.id,
            _d.due_at > _m.window_opens_at,
            _d.state == State.RETRY,
            late_until(delivery) <= now,
        )
        .limit(1)
        .correlate(manifest)
        .scalar_subquery()
    )
    working = with_any(delivery, _d.due_at.is_not(None), "working")
    over = and_(_m.window_closes_at <= now, late_until(manifest) <= now, _m.content_sealed_at <= now)
    return (
        select(_m.period, _m.window_closes_at.label("due_at"))
        .join(working, working.c.id == _m.id)
        .where(_open(digest, how), over, left.is_not(None))
    )


def _without_content(digest: str, how: Sending, now: int) -> Select[Any]:
    return (
        select(_m.period, func.min(_m.sealed_at).label("due_at"))
        .where(
            _open(digest, how),
            _m.state == ManifestState.SEALED,
            _m.content_sealed_at.is_(None),
            _m.sealed_at <= now - how.grace,
        )
        .group_by(_m.period)
    )

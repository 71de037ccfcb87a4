"""Whose generated rows may go, and since when: what is to be cleaned, and what is past its retention.

Read from the rows that are still kept, so that it costs nothing for a period that is clean. The same conditions
as those of ``transitions.clean`` and of the retention rule, which decide. Instants and durations are in microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, case, func, or_, select, true

from digest_pipeline.ledger import reads
from digest_pipeline.ledger.follow_ups import (
    FollowUp,
    Reason,
    each,
    late_until,
    one_for_each_period,
    with_any,
)
from digest_pipeline.ledger.schema import attempt, content, delivery, manifest
from digest_pipeline.ledger.windows import is_out_of_doubt
from digest_pipeline.outcomes import Proof
from digest_pipeline.states import State

_d, _m = delivery.c, manifest.c


@dataclass(frozen=True, slots=True)
class Keeping:
    """How long generated rows stay. ``waited``: after the send, -1 for "until the window has closed".

    ``kept``: after the state was reached. ``unknown``, ``pending``: how long those stay as they are.
    """

    proof: Proof
    waited: int
    kept: Mapping[State, int]
    unknown: int
    pending: int


def cleanups(conn: Connection, digest: str, how: Keeping) -> list[FollowUp]:
    """Return the periods of a digest with rows to clean or past their retention, the oldest first.

    Reads at most the deliveries whose generated rows are kept. Asking costs more than ``deliveries``.
    """
    now = reads.now(conn)
    found = [
        *each(conn, _to_clean(digest, how, now), lambda _: Reason.CLEANUP_DUE),
        *each(conn, _past_retention(digest, how, now), lambda _: Reason.RETENTION_OVER),
    ]
    return one_for_each_period(found)


def _kept(digest: str, first: ColumnElement[Any], *headers: ColumnElement[bool]) -> Select[Any]:
    """Each manifest of which generated rows are kept, with the first of a question about them."""
    keeping = with_any(content, true(), "keeping")
    return (
        select(_m.period, first.label("due_at"))
        .join(keeping, keeping.c.id == _m.id)
        .where(_m.digest == digest, *headers)
    )


def _first_kept(is_one: ColumnElement[bool]) -> ColumnElement[Any]:
    # Limits in subqueries keep a planner from starting with the deliveries, most of which are clean.
    same = and_(_d.manifest_id == content.c.manifest_id, _d.ordinal == content.c.ordinal)
    ended = select(_d.finished_at).where(same, is_one).limit(1).correlate(content).scalar_subquery()
    query = select(ended).where(content.c.manifest_id == _m.id, ended.is_not(None)).limit(1)
    return query.correlate(manifest).scalar_subquery()


def _to_clean(digest: str, how: Keeping, now: int) -> Select[Any]:
    reached = [p for p in Proof if p in (Proof.ACCEPTED, Proof.DELIVERED) and p.rank >= how.proof.rank]
    sent = and_(_d.state == State.SENT, _d.proof.in_(reached))
    # What was never tried was never sent: a period that is held as a whole is not read through.
    tried = select(attempt.c.token).where(attempt.c.manifest_id == _m.id).limit(1).correlate(manifest)
    if how.waited < 0:
        over = and_(_m.window_closes_at < now, late_until(manifest) < now)
    else:
        sent = and_(sent, _d.finished_at <= now - how.waited)
        over = _m.content_sealed_at <= now - how.waited
    first = case((tried.scalar_subquery().is_not(None), _first_kept(sent)))
    return _kept(digest, first, over)


def _past_retention(digest: str, how: Keeping, now: int) -> Select[Any]:
    ended = [and_(_d.state == state, _d.finished_at < now - age) for state, age in how.kept.items()]
    doubted = and_(_d.ambiguous_at.is_not(None), _d.state == State.UNKNOWN)
    over = now - how.pending
    untried = and_(_d.due_at.is_not(None), _d.state == State.PENDING, late_until(delivery) <= over)
    closed = and_(
        _m.window_closes_at <= over,
        late_until(manifest) <= over,
        _m.content_sealed_at <= over,
        is_out_of_doubt(),
    )

    def first(column: ColumnElement[Any], is_one: ColumnElement[bool]) -> ColumnElement[Any]:
        query = select(column).where(_d.manifest_id == _m.id, is_one).limit(1)
        return query.correlate(manifest).scalar_subquery()

    return _kept(
        digest,
        func.coalesce(
            first(_d.ambiguous_at, and_(doubted, _d.ambiguous_at < now - how.unknown)),
            case((closed, first(_d.due_at, untried))),
            case((_m.content_sealed_at <= now - min(how.kept.values()), _first_kept(or_(*ended)))),
        ),
    )

"""Incidents: what people are told of once. Opened by a first failure, counted after that, closed when well.

Every change is one guarded write that carries the instant of the event it rests on (microseconds, as
``at``). An event that is no newer than the newest one taken in changes nothing, so a tick that is
evaluated again, a cursor that was lost and a second daemon neither count twice nor open what is over.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    String,
    Text,
    and_,
    exists,
    insert,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from digest_pipeline.ledger.dialects import ledger_now
from digest_pipeline.ledger.schema import incident, incident_notice

_i = incident.c


class Seen(StrEnum):
    """What an observation was: the first of its incident, one more of it, or nothing new."""

    OPENED = "opened"
    COUNTED = "counted"
    KNOWN = "known"


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes two failures the same thing. Empty ``digest`` or ``period``: of none."""

    kind: str
    digest: str
    period: str
    subject: str


@dataclass(frozen=True, slots=True)
class Incident:
    """One incident as stored; ``facts`` is the JSON that its opener wrote. Instants in microseconds."""

    id: str
    kind: str
    digest: str
    period: str
    subject: str
    severity: str
    facts: str
    times: int
    opened_at: int
    last_seen_at: int
    event_at: int
    closed_at: int | None

    @property
    def identity(self) -> Identity:
        """What a failure must be to count as this one."""
        return Identity(self.kind, self.digest, self.period, self.subject)


def open_incident(
    conn: Connection, what: Identity, at: int, severity: str, facts: str, channels: Iterable[str]
) -> Seen:
    """Open an incident to be told through ``channels``; KNOWN where one is open, or the event is old."""
    drawn = secrets.token_hex(16)
    row = select(
        literal(drawn, String()),
        *(literal(text, Text()) for text in (what.kind, what.digest, what.period, what.subject)),
        *(literal(text, Text()) for text in (severity, facts)),
        literal(1, Integer()),
        ledger_now(),
        ledger_now(),
        literal(at, BigInteger()),
    ).where(~exists().where(is_of(what), (_i.closed_at.is_(None)) | (_i.event_at >= at)))
    names = ("id", "kind", "digest", "period", "subject", "severity", "facts", "times")
    columns = [*names, "opened_at", "last_seen_at", "event_at"]
    try:
        with conn.begin_nested():
            made = insert(incident).from_select(columns, row).returning(_i.id)
            opened = conn.execute(made).first() is not None
    except IntegrityError:
        return Seen.KNOWN  # another sensor opened it while this one waited
    if not opened:
        return Seen.KNOWN
    for channel in channels:
        conn.execute(
            insert(incident_notice).values(
                incident_id=drawn, channel=channel, tries=0, next_try_at=ledger_now()
            )
        )
    return Seen.OPENED


def count_again(conn: Connection, what: Identity, at: int) -> bool:
    """Count one more failure of an open incident; False when none is open, or the event is old."""
    change = update(incident).where(is_of(what), _i.closed_at.is_(None), _i.event_at < at)
    values = {"times": _i.times + 1, "last_seen_at": ledger_now(), "event_at": at}
    return conn.execute(change.values(values)).rowcount > 0


def see_again(conn: Connection, what: Identity, at: int) -> bool:
    """Note that the condition behind an open incident still holds; False when none is open."""
    change = update(incident).where(is_of(what), _i.closed_at.is_(None), _i.event_at < at)
    return conn.execute(change.values(last_seen_at=ledger_now(), event_at=at)).rowcount > 0


def close_incident(conn: Connection, what: Identity, at: int) -> bool:
    """Close an incident that is well; False when none is open, or a newer failure was seen."""
    change = update(incident).where(is_of(what), _i.closed_at.is_(None), _i.event_at < at)
    return conn.execute(change.values(closed_at=ledger_now(), event_at=at)).rowcount > 0


def open_ones(conn: Connection, digest: str | None = None, period: str | None = None) -> list[Incident]:
    """Return the open incidents, oldest first: all, or those of a digest or of one of its periods."""
    query = select(incident).where(_i.closed_at.is_(None)).order_by(_i.opened_at, _i.id)
    if digest is not None:
        query = query.where(_i.digest == digest)
    if period is not None:
        query = query.where(_i.period == period)
    return [Incident(**row) for row in conn.execute(query).mappings()]


def was_open_at(conn: Connection, kind: str, digest: str, at: int) -> bool:
    """Whether a digest has an incident of this kind that is open, or was closed only after ``at``."""
    query = select(_i.id).where(
        _i.kind == kind, _i.digest == digest, or_(_i.closed_at.is_(None), _i.closed_at >= at)
    )
    return conn.execute(query.limit(1)).first() is not None


def is_of(what: Identity) -> ColumnElement[bool]:
    """Return the condition of an incident's row being about the same thing."""
    return and_(
        _i.kind == what.kind,
        _i.digest == what.digest,
        _i.period == what.period,
        _i.subject == what.subject,
    )

"""Telling people of an incident: one row for each channel, claimed before anything is said.

A claim counts the try and sets when the next one may start, in one guarded write: of two sensors that
want to tell at the same moment, one gets it. What died between claim and answer is tried again then.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, and_, select, update

from digest_pipeline.ledger.dialects import ledger_now
from digest_pipeline.ledger.incidents import Identity, Incident, is_of
from digest_pipeline.ledger.schema import incident, incident_notice

FIRST_WAIT = 60_000_000
LONGEST_WAIT = 3_600_000_000
_n = incident_notice.c


@dataclass(frozen=True, slots=True)
class Notice:
    """One channel's share of an incident. ``tries``: claims so far; a claim is valid for its own count.

    ``doubtful_at``: since when an earlier try may have reached somebody; ``account``: that try's.
    """

    incident: Incident
    channel: str
    tries: int
    doubtful_at: int | None
    account: str | None


def due(
    conn: Connection,
    what: Identity | None = None,
    *,
    digests: Collection[str] | None = None,
    limit: int = 100,
) -> list[Notice]:
    """Return the notices that may be tried now, of all open incidents or of one; oldest incident first.

    Mails come last: many of them can wait for permits of a gate that gives none. ``digests``: only those of
    these digests, and of none; what other code locations have on the same ledger is theirs to tell.
    """
    query = (
        select(incident, _n.channel, _n.tries, _n.doubtful_at, _n.account)
        .join(incident, incident.c.id == _n.incident_id)
        .where(_n.next_try_at <= ledger_now(), incident.c.closed_at.is_(None))
        .order_by(_n.channel.like("email:%"), incident.c.opened_at, incident.c.id, _n.channel)
        .limit(limit)
    )
    if digests is not None:
        query = query.where(incident.c.digest.in_(["", *sorted(digests)]))
    if what is not None:
        query = query.where(is_of(what))
    return [_notice(dict(row)) for row in conn.execute(query).mappings()]


def wait_after(tries: int) -> int:
    """Return the microseconds between a try and the next: doubling, at most an hour."""
    return LONGEST_WAIT if tries > 6 else min(LONGEST_WAIT, FIRST_WAIT * 2 ** max(0, tries - 1))


def claim(conn: Connection, notice: Notice) -> bool:
    """Take the next try of a notice; False when somebody else has, or it was told."""
    values = {"tries": notice.tries + 1, "next_try_at": ledger_now() + wait_after(notice.tries + 1)}
    free = and_(_n.next_try_at <= ledger_now(), _n.tries == notice.tries)
    return _change(conn, notice, free, **values)


def mark_doubtful(conn: Connection, notice: Notice, account: str) -> bool:
    """Note, with a claim, that from now on the message may have left through this account."""
    doubtful_at = ledger_now() if notice.doubtful_at is None else notice.doubtful_at
    return _change(conn, notice, _claimed(notice), doubtful_at=doubtful_at, account=account)


def told(conn: Connection, notice: Notice, outcome: str) -> bool:
    """End a notice: its people know, or may know and must not be told twice, or never can be told."""
    return _change(conn, notice, _claimed(notice), told_at=ledger_now(), next_try_at=None, outcome=outcome)


def not_told(conn: Connection, notice: Notice, outcome: str) -> bool:
    """Record that a claimed try surely reached nobody; the next one comes when its wait is over."""
    return _change(conn, notice, _claimed(notice), outcome=outcome, doubtful_at=notice.doubtful_at)


def maybe_told(conn: Connection, notice: Notice, outcome: str) -> bool:
    """Record that a claimed try may have reached somebody; what was marked doubtful stays so."""
    return _change(conn, notice, _claimed(notice), outcome=outcome)


def _claimed(notice: Notice) -> ColumnElement[bool]:
    return and_(_n.tries == notice.tries + 1, _n.told_at.is_(None))


def _change(conn: Connection, notice: Notice, guard: ColumnElement[bool], **values: object) -> bool:
    own = and_(_n.incident_id == notice.incident.id, _n.channel == notice.channel)
    return conn.execute(update(incident_notice).where(own, guard).values(**values)).rowcount > 0


def _notice(row: dict[str, object]) -> Notice:
    own = {name: row.pop(name) for name in ("channel", "tries", "doubtful_at", "account")}
    return Notice(Incident(**row), **own)  # type: ignore[arg-type] # the columns' own types

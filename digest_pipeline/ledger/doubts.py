"""The unknown deliveries: which of them to ask about, and what an absence leaves behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Row,
    Table,
    Text,
    and_,
    false,
    func,
    null,
    or_,
    select,
    update,
)

from digest_pipeline.ledger import batches
from digest_pipeline.ledger.dialects import ledger_now, rowset, rowset_value
from digest_pipeline.ledger.restored import RESTORED
from digest_pipeline.ledger.schema import attempt, delivery, manifest, manifest_entry, suppression
from digest_pipeline.ledger.windows import window_is_open
from digest_pipeline.states import REACHED, HoldReason, State

_d = delivery.c


def to_ask(
    conn: Connection,
    manifest_ids: Sequence[int],
    gateway: str,
    account: str,
    resend_lifetime: int | None,
    limit: int,
    *,
    keyed_batches: bool = False,
) -> list[Row[Any]]:
    """Return unknown rows whose evidence is due and cannot come from an idempotent re-send.

    A re-send cannot help where the gateway repeats no answers, the key is too old, the window is
    closed (it could be the first mail, late), or the address is suppressed or erased; nor where it went
    out in a batch that cannot be repeated as a whole. ``keyed_batches``: this gateway can repeat one.
    """
    now = ledger_now()
    window_open = window_is_open()
    query = (
        select(
            _d.manifest_id,
            _d.ordinal,
            _d.token,
            _d.ambiguous_at,
            _d.absent_at,
            func.coalesce(attempt.c.ended_at, _d.claimed_at).label("last_ended_at"),
            manifest_entry.c.operation_key,
            ledger_now().label("now"),
            window_open.label("window_open"),
        )
        .select_from(delivery)
        .join(manifest, manifest.c.id == _d.manifest_id)
        .join(
            manifest_entry,
            and_(manifest_entry.c.manifest_id == _d.manifest_id, manifest_entry.c.ordinal == _d.ordinal),
        )
        .outerjoin(attempt, attempt.c.token == _d.ambiguous_token)
        .outerjoin(
            suppression,
            and_(
                suppression.c.tenant == manifest.c.tenant,
                suppression.c.address_hash == manifest_entry.c.address_hash,
                or_(suppression.c.expires_at.is_(None), suppression.c.expires_at > now),
            ),
        )
        .where(
            _d.manifest_id.in_(manifest_ids),
            _d.ambiguous_at.is_not(None),
            _d.state == State.UNKNOWN,
            _d.due_at <= now,
            _d.gateway == gateway,
            _d.account == account,
        )
        .order_by(_d.due_at, _d.manifest_id, _d.ordinal)
        .limit(limit)
    )
    if resend_lifetime is not None:
        query = query.where(
            or_(
                _d.ambiguous_at <= now - resend_lifetime,
                ~window_open,
                suppression.c.reason.is_not(None),
                manifest_entry.c.recipient.is_(None),
                _d.batch_id.is_not(None) & ~batches.is_whole(manifest_ids, gateway, account, resend_lifetime)
                if keyed_batches
                else _d.batch_id.is_not(None),
                and_(_d.batch_id.is_(None), attempt.c.outcome == RESTORED) if keyed_batches else false(),
            )
        )
    return list(conn.execute(query))


def resume(
    conn: Connection, manifest_ids: Sequence[int], gateway: str, account: str, *, can_resend: bool
) -> int:
    """Let unknowns be settled again that were held for what is no longer so; return how many.

    Those that waited for this gateway and account, and, where a re-send can settle them, those whose
    window is open again. Evidence is then sought at once.
    """
    reasons = [_d.hold_reason == HoldReason.OTHER_ACCOUNT]
    if can_resend:
        open_again = select(manifest.c.id).where(manifest.c.id.in_(manifest_ids), window_is_open())
        reasons.append(and_(_d.hold_reason == HoldReason.WINDOW_CLOSED, _d.manifest_id.in_(open_again)))
    return conn.execute(
        update(delivery)
        .where(
            _d.manifest_id.in_(manifest_ids),
            _d.ambiguous_at.is_not(None),
            _d.state == State.UNKNOWN,
            _d.due_at.is_(None),
            _d.gateway == gateway,
            _d.account == account,
            or_(*reasons),
        )
        .values(due_at=ledger_now(), hold_reason=null())
    ).rowcount


def known_sent_key(
    conn: Connection, manifest_ids: Sequence[int], gateway: str, account: str, visible: int, retention: int
) -> str | None:
    """Return a key that a working look-up must find: surely sent, visible and still retained.

    The newest that this account accepted in so many words, of any digest and period (a period in which
    nobody was accepted yet has none of its own); else one of these manifests that a look-up found before.
    """
    now = ledger_now()
    accepted = (
        select(manifest_entry.c.operation_key)
        .select_from(attempt)
        .join(manifest_entry, _is_entry_of(attempt))
        .where(
            attempt.c.outcome == "accepted",
            attempt.c.gateway == gateway,
            attempt.c.account == account,
            attempt.c.ended_at < now - visible,
            attempt.c.claimed_at > now - retention,
        )
        .order_by(attempt.c.token.desc())
        .limit(1)
    )
    found = (
        select(manifest_entry.c.operation_key)
        .select_from(delivery)
        .join(manifest_entry, _is_entry_of(delivery))
        .where(
            _d.manifest_id.in_(manifest_ids),
            _d.state.in_(sorted(REACHED)),
            _d.message_id.is_not(None),
            _d.gateway == gateway,
            _d.account == account,
            _d.finished_at < now - visible,
            _d.finished_at > now - retention,
        )
        .limit(1)
    )
    key = conn.execute(accepted).scalar_one_or_none()
    return key if key is not None else conn.execute(found).scalar_one_or_none()


def _is_entry_of(table: Table) -> ColumnElement[bool]:
    return and_(
        manifest_entry.c.manifest_id == table.c.manifest_id, manifest_entry.c.ordinal == table.c.ordinal
    )


def note_absence(conn: Connection, rows: Sequence[dict[str, Any]]) -> int:
    """Remember a first counted absence (``delay``: microseconds until it is asked again)."""
    r = rowset(
        conn,
        "r",
        {"manifest_id": BigInteger(), "ordinal": BigInteger(), "token": BigInteger(), "delay": BigInteger()},
    )
    return conn.execute(
        update(delivery)
        .where(*_same(r), _d.absent_at.is_(None))
        .values(absent_at=ledger_now(), due_at=ledger_now() + r.c.delay),
        {"r": rowset_value(rows)},
    ).rowcount


def ask_later(conn: Connection, rows: Sequence[dict[str, Any]]) -> int:
    """Put off the question (``delay``: microseconds)."""
    r = rowset(
        conn,
        "r",
        {"manifest_id": BigInteger(), "ordinal": BigInteger(), "token": BigInteger(), "delay": BigInteger()},
    )
    return conn.execute(
        update(delivery).where(*_same(r)).values(due_at=ledger_now() + r.c.delay),
        {"r": rowset_value(rows)},
    ).rowcount


def hold(conn: Connection, rows: Sequence[dict[str, Any]]) -> int:
    """Nothing will settle these by itself: held for a person (``reason``), and visible as that."""
    r = rowset(
        conn,
        "r",
        {"manifest_id": BigInteger(), "ordinal": BigInteger(), "token": BigInteger(), "reason": Text()},
    )
    return conn.execute(
        update(delivery).where(*_same(r)).values(due_at=null(), hold_reason=r.c.reason),
        {"r": rowset_value(rows)},
    ).rowcount


def hold_other_accounts(conn: Connection, manifest_ids: Sequence[int], gateway: str, account: str) -> int:
    """Unknowns of another gateway or account are never asked about or re-sent by this one."""
    other = or_(_d.gateway != gateway, _d.account != account)
    return conn.execute(
        update(delivery)
        .where(_d.manifest_id.in_(manifest_ids), _d.state == State.UNKNOWN, _d.due_at.is_not(None), other)
        .values(due_at=null(), hold_reason=HoldReason.OTHER_ACCOUNT)
    ).rowcount


def _same(r: Any) -> tuple[Any, ...]:
    return (
        _d.manifest_id == r.c.manifest_id,
        _d.ordinal == r.c.ordinal,
        _d.token == r.c.token,
        _d.state == State.UNKNOWN,
    )

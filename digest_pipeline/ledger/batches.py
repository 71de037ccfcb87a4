"""Calls with several messages under one key: what is in them, and which may be made again.

Membership and order are committed before the first byte of such a call, since the provider knows only
the key of the whole call: with other members, or in another order, it would be another call. So an
unknown of a batch is repeated with all of its batch or not at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Connection,
    Text,
    and_,
    case,
    exists,
    func,
    literal,
    null,
    or_,
    select,
    update,
)

from digest_pipeline.ledger import claims, transitions
from digest_pipeline.ledger.claims import Claimed, Claimer
from digest_pipeline.ledger.dialects import (
    insert_new,
    ledger_now,
    locked,
    rowset,
    rowset_value,
    skip_locked,
    with_tokens,
)
from digest_pipeline.ledger.schema import (
    ManifestState,
    attempt,
    content,
    delivery,
    manifest,
    manifest_entry,
    send_batch,
    suppression,
)
from digest_pipeline.ledger.windows import is_not_paused, is_out_of_doubt, window_is_open
from digest_pipeline.states import HoldReason, State

_d = delivery.c
_KEY = {"manifest_id": BigInteger(), "ordinal": BigInteger(), "token": BigInteger()}


@dataclass(frozen=True, slots=True)
class Repeatable:
    """A batch that may be sent again as a whole."""

    id: str
    size: int


def batch_id(who: Claimer, call: Sequence[Claimed]) -> str:
    """Return the key of a call: no other call has it, since a claim's token is in at most one call with these members."""
    members = [(claimed.operation_key, claimed.token) for claimed in call]
    text = json.dumps([who.gateway, who.account, members], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def freeze(conn: Connection, who: Claimer, calls: Sequence[Sequence[Claimed]]) -> list[str] | None:
    """Fix what each of these calls carries, in wire order, and return their keys. Commit before the wire.

    Returns None, with nothing written, when a single claim of them is lost.
    """
    ids = [batch_id(who, call) for call in calls]
    rows = [
        {"manifest_id": c.manifest_id, "ordinal": c.ordinal, "token": c.token, "batch_id": id_}
        for id_, call in zip(ids, calls, strict=True)
        for c in call
    ]
    r = rowset(conn, "r", {**_KEY, "batch_id": Text()})
    same = and_(_d.manifest_id == r.c.manifest_id, _d.ordinal == r.c.ordinal, _d.token == r.c.token)
    held = select(_d.token).join(r, same).where(_d.state == State.CLAIMED)
    held = locked(conn, held.order_by(_d.manifest_id, _d.ordinal), of=delivery)
    if len(conn.execute(held, {"r": rowset_value(rows)}).all()) < len(rows):
        return None
    for id_, call in zip(ids, calls, strict=True):
        _insert(conn, who, id_, call)
    conn.execute(update(delivery).where(same).values(batch_id=r.c.batch_id), {"r": rowset_value(rows)})
    return ids


def _insert(conn: Connection, who: Claimer, id_: str, call: Sequence[Claimed]) -> None:
    values = {
        "id": id_,
        "gateway": who.gateway,
        "account": who.account,
        "created_at": conn.execute(select(ledger_now())).scalar_one(),
        "members": json.dumps([claimed.operation_key for claimed in call]),
        "size": len(call),
    }
    # There already after a commit whose answer was lost.
    insert_new(conn, send_batch, values)


def repeatable(conn: Connection, manifest_id: int, who: Claimer, lifetime: int) -> Repeatable | None:
    """Return the batch of a manifest that waits longest for its repeat, if there is one that may go now."""
    standing = _standing([manifest_id], who.gateway, who.account, lifetime)
    open_manifest = exists().where(
        manifest.c.id == manifest_id,
        manifest.c.state == ManifestState.SEALED,
        manifest.c.content_sealed_at.is_not(None),
        manifest.c.window_opens_at <= ledger_now(),
        is_out_of_doubt(),
        is_not_paused(literal(who.gateway)),
    )
    query = select(standing.c.id, standing.c.size).where(
        standing.c.ready == standing.c.size, standing.c.due_at <= ledger_now(), open_manifest
    )
    row = conn.execute(query.order_by(standing.c.due_at, standing.c.id).limit(1)).one_or_none()
    return Repeatable(row.id, row.size) if row else None


def hold(conn: Connection, manifest_id: int, batch: str) -> None:
    """Let a batch wait for an event or a person: its call can't be made again as the account's rate is now."""
    conn.execute(
        update(delivery)
        .where(_d.manifest_id == manifest_id, _d.batch_id == batch, _d.state == State.UNKNOWN)
        .values(due_at=null(), hold_reason=HoldReason.NO_EVIDENCE)
    )


def claim(conn: Connection, manifest_id: int, batch: str, who: Claimer) -> tuple[Claimed, ...]:
    """Claim every member of a batch for one repeat of its call, in wire order; none unless all can be."""
    e, c = manifest_entry.c, content.c
    kept = (_d.ordinal, _d.state, _d.attempts, _d.budget_from, _d.ambiguous_at, _d.payload_hash)
    query = (
        select(*kept, manifest.c.tenant, e.operation_key, e.recipient, c.document)
        .join(manifest, manifest.c.id == _d.manifest_id)
        .join(manifest_entry, and_(e.manifest_id == _d.manifest_id, e.ordinal == _d.ordinal))
        .join(content, and_(c.manifest_id == _d.manifest_id, c.ordinal == _d.ordinal))
        .where(
            _d.manifest_id == manifest_id,
            _d.batch_id == batch,
            _d.state == State.UNKNOWN,
            _d.due_at.is_not(None),
            _d.gateway == who.gateway,
            _d.account == who.account,
        )
    )
    found = conn.execute(with_tokens(conn, skip_locked(conn, query, delivery)))
    rows = {row.operation_key: row for row in found}
    members = json.loads(
        conn.execute(select(send_batch.c.members).where(send_batch.c.id == batch)).scalar_one()
    )
    if rows.keys() != set(members):
        return ()
    ordered = [rows[key] for key in members]
    return claims.take(conn, manifest_id, ordered, who, transitions.reclaim_unknown, batch)


def is_whole(manifest_ids: Sequence[int], gateway: str, account: str, lifetime: int) -> ColumnElement[bool]:
    """Whether a delivery's batch can be repeated: now, or once a claim of its own that is under way has ended."""
    standing = _standing(manifest_ids, gateway, account, lifetime)
    whole = standing.c.ready + standing.c.under_way >= standing.c.size
    return _d.batch_id.in_(select(standing.c.id).where(whole))


def _standing(manifest_ids: Sequence[int], gateway: str, account: str, lifetime: int) -> CTE:
    """Each batch with an unknown member: its size, how many members may go again, and the first due time.

    ``ready``: unknown since this very batch, of this gateway and account, inside the key's lifetime and
    the delivery window, with their generated rows, and neither held, suppressed nor erased.
    """
    other = delivery.alias("doubtful")
    doubtful = select(other.c.batch_id).where(
        other.c.manifest_id.in_(manifest_ids),
        other.c.ambiguous_at.is_not(None),
        other.c.state == State.UNKNOWN,
        other.c.batch_id.is_not(None),
    )
    e, c, s = manifest_entry.c, content.c, suppression.c
    ready = and_(
        _d.state == State.UNKNOWN,
        _d.due_at.is_not(None),
        _d.gateway == gateway,
        _d.account == account,
        _d.ambiguous_at > ledger_now() - lifetime,
        attempt.c.batch_id == _d.batch_id,
        e.recipient.is_not(None),
        s.reason.is_(None),
        c.ordinal.is_not(None),
        window_is_open(),
    )
    return (
        select(
            send_batch.c.id,
            send_batch.c.size,
            func.sum(case((ready, 1), else_=0)).label("ready"),
            func.sum(case((_d.state == State.CLAIMED, 1), else_=0)).label("under_way"),
            func.min(_d.due_at).label("due_at"),
        )
        .select_from(send_batch)
        .join(delivery, _d.batch_id == send_batch.c.id)
        .join(manifest, manifest.c.id == _d.manifest_id)
        .join(manifest_entry, and_(e.manifest_id == _d.manifest_id, e.ordinal == _d.ordinal))
        .outerjoin(attempt, attempt.c.token == _d.ambiguous_token)
        .outerjoin(content, and_(c.manifest_id == _d.manifest_id, c.ordinal == _d.ordinal))
        .outerjoin(
            suppression,
            and_(
                s.tenant == manifest.c.tenant,
                s.address_hash == e.address_hash,
                or_(s.expires_at.is_(None), s.expires_at > ledger_now()),
            ),
        )
        .where(send_batch.c.id.in_(doubtful))
        .group_by(send_batch.c.id, send_batch.c.size)
        .cte("standing")
    )

"""Claiming: the durable mark "about to send", committed before the provider hears anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    Row,
    Select,
    Text,
    and_,
    bindparam,
    exists,
    func,
    literal,
    or_,
    select,
    true,
    tuple_,
)

from digest_pipeline.ledger import transitions
from digest_pipeline.ledger.dialects import built_once, ledger_now, skip_locked, tokens_for, with_tokens
from digest_pipeline.ledger.restored import RESTORED
from digest_pipeline.ledger.schema import (
    ManifestState,
    attempt,
    content,
    delivery,
    manifest,
    manifest_entry,
    suppression,
)
from digest_pipeline.ledger.windows import is_not_paused, is_out_of_doubt, window_is_open
from digest_pipeline.states import State

_d = delivery.c


@dataclass(frozen=True, slots=True)
class Claimed:
    """One delivery that this sender, and nobody else, may send now.

    ``came_from``: where a release puts it back. Instants in microseconds of the ledger's clock.
    """

    manifest_id: int
    ordinal: int
    token: int
    claimed_at: int
    came_from: State
    operation_key: str
    tenant: str
    recipient: str | None
    document: bytes | None
    payload_hash: str
    attempts: int
    budget_from: int | None
    ambiguous_at: int | None
    batch_id: str | None = None
    """The call that carries it, where one key covers several messages."""

    @property
    def is_ambiguous(self) -> bool:
        """Whether an earlier attempt may have been accepted."""
        return self.ambiguous_at is not None


@dataclass(frozen=True, slots=True)
class Batch:
    """What one claim transaction took: rows to send, and how many it suppressed instead."""

    claimed: tuple[Claimed, ...] = ()
    suppressed: int = 0
    cursor: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Claimer:
    """Who claims, for which gateway and account, for how long (microseconds)."""

    claimed_by: str
    gateway: str
    account: str
    lease: int


def claim_due(
    conn: Connection, manifest_id: int, limit: int, who: Claimer, cursor: tuple[int, int] | None = None
) -> Batch:
    """Claim up to ``limit`` due rows of a manifest, oldest first, past the ``cursor``.

    Rows whose address is suppressed are ended instead of claimed, in this same transaction: an
    opt-out that came after the freeze counts until the last moment. Nothing is claimed unless the
    manifest is sealed, its content is sealed and its window is open by the ledger's clock.
    """
    due: dict[str, Any] = {"manifest": manifest_id, "most": limit, "by_gateway": who.gateway}
    if cursor is not None:
        due |= {"after_due": cursor[0], "after_ordinal": cursor[1]}
    rows = conn.execute(_due_rows(conn, cursor is not None), due).all()
    if not rows:
        return Batch()
    suppressed = transitions.suppress(
        conn, manifest_id, {row.ordinal: row.reason for row in rows if row.reason is not None}
    )
    wanted = [row for row in rows if row.reason is None]
    claimed = take(conn, manifest_id, wanted, who, transitions.claim)
    return Batch(claimed, len(suppressed), (rows[-1].due_at, rows[-1].ordinal))


def claim_unknown(
    conn: Connection,
    manifest_id: int,
    limit: int,
    who: Claimer,
    lifetime: int,
    *,
    keyed_batches: bool = False,
) -> Batch:
    """Claim unknown rows for an idempotent re-send under their own keys, while the provider knows those.

    Only by the gateway and account of the ambiguous attempt, and only where its first possibly-wire
    claim is younger than ``lifetime`` (microseconds, the margin already taken off). A suppressed
    address is left unknown: a re-send could be its first mail. What went out in a batch under one key
    is never claimed alone; nor, with ``keyed_batches``, what a lost copy of the ledger may have sent.
    """
    due = {"manifest": manifest_id, "most": limit, "by_gateway": who.gateway, "by_account": who.account}
    rows = conn.execute(_unknown_rows(conn, keyed_batches), {**due, "lifetime": lifetime}).all()
    return Batch(take(conn, manifest_id, rows, who, transitions.reclaim_unknown))


@built_once
def _due_rows(conn: Connection, past_a_cursor: bool) -> Select[Any]:
    opened = _open_manifest()
    due = _due(opened, State.PENDING, State.RETRY)
    if past_a_cursor:
        after = tuple_(
            bindparam("after_due", type_=BigInteger()), bindparam("after_ordinal", type_=BigInteger())
        )
        due = due.where(tuple_(_d.due_at, _d.ordinal) > after)
    return _with_what_is_sent(conn, opened, due)


@built_once
def _unknown_rows(conn: Connection, keyed_batches: bool) -> Select[Any]:
    opened = _open_manifest()
    addressed = and_(manifest_entry.c.manifest_id == _d.manifest_id, manifest_entry.c.ordinal == _d.ordinal)
    due = _due(opened, State.UNKNOWN).where(
        _d.gateway == bindparam("by_gateway"),
        _d.account == bindparam("by_account"),
        _d.ambiguous_at > ledger_now() - bindparam("lifetime", type_=BigInteger()),
        # Suppressed or erased: a re-send could be the first mail. Two questions: in one, an empty
        # suppression list would answer both.
        ~exists().where(addressed, _suppressed(opened)),
        ~exists().where(addressed, manifest_entry.c.recipient.is_(None)),
        _d.batch_id.is_(None),
    )
    if keyed_batches:
        # The lost copy may have sent it in a batch, under a key that nobody knows.
        due = due.where(exists().where(attempt.c.token == _d.ambiguous_token, attempt.c.outcome != RESTORED))
    return _with_what_is_sent(conn, opened, due)


def _open_manifest() -> CTE:
    """The manifest, once its rows may be claimed, and the time: read once, so that an index can use it."""
    now = ledger_now()
    return (
        select(manifest.c.id, manifest.c.tenant, now.label("now"))
        .where(
            manifest.c.id == bindparam("manifest"),
            manifest.c.state == ManifestState.SEALED,
            manifest.c.content_sealed_at.is_not(None),
            manifest.c.window_opens_at <= now,
            is_out_of_doubt(),
        )
        .cte("opened")
    )


def _due(opened: CTE, *states: State) -> Select[Any]:
    kept = (_d.ordinal, _d.due_at, _d.state, _d.attempts, _d.budget_from, _d.ambiguous_at, _d.payload_hash)
    return (
        select(*kept)
        .join(manifest, manifest.c.id == _d.manifest_id)
        .where(
            _d.manifest_id == select(opened.c.id).scalar_subquery(),
            _d.due_at <= select(opened.c.now).scalar_subquery(),
            _d.state.in_(sorted(states)),
            window_is_open(),
            is_not_paused(bindparam("by_gateway", type_=Text())),
        )
        .order_by(_d.due_at, _d.ordinal)
        .limit(bindparam("most", type_=Integer()))
    )


def _with_what_is_sent(conn: Connection, opened: CTE, due: Select[Any]) -> Select[Any]:
    # Locked and limited before anything is joined: a flat query may join and sort the whole backlog
    # for the few rows of one claim.
    d = with_tokens(conn, skip_locked(conn, due, delivery)).cte("due")
    e, c = manifest_entry.c, content.c
    return (
        select(d, opened.c.tenant, e.operation_key, e.recipient, c.document, suppression.c.reason)
        .select_from(d)
        .join(opened, true())
        .join(manifest_entry, and_(e.manifest_id == opened.c.id, e.ordinal == d.c.ordinal))
        .outerjoin(content, and_(c.manifest_id == opened.c.id, c.ordinal == d.c.ordinal))
        .outerjoin(suppression, _suppressed(opened))
        .order_by(d.c.due_at, d.c.ordinal)
    )


def _suppressed(opened: CTE) -> ColumnElement[bool]:
    return and_(
        suppression.c.tenant == select(opened.c.tenant).scalar_subquery(),
        suppression.c.address_hash == manifest_entry.c.address_hash,
        or_(suppression.c.expires_at.is_(None), suppression.c.expires_at > ledger_now()),
    )


def take(
    conn: Connection,
    manifest_id: int,
    rows: Sequence[Row[Any]],
    who: Claimer,
    arrow: Any,
    batch_id: str | None = None,
) -> tuple[Claimed, ...]:
    """Claim rows that were read and locked in this transaction; return those that were, in their order."""
    tokens = tokens_for(conn, rows)
    wanted = [
        {"manifest_id": manifest_id, "ordinal": row.ordinal, "token": token}
        for row, token in zip(rows, tokens, strict=True)
    ]
    taken = {
        row.ordinal: row for row in arrow(conn, wanted, who.lease, who.claimed_by, who.gateway, who.account)
    }
    return tuple(
        Claimed(
            manifest_id=manifest_id,
            ordinal=row.ordinal,
            token=taken[row.ordinal].token,
            claimed_at=taken[row.ordinal].claimed_at,
            came_from=State(row.state),
            operation_key=row.operation_key,
            tenant=row.tenant,
            recipient=row.recipient,
            document=row.document,
            payload_hash=row.payload_hash,
            attempts=row.attempts,
            budget_from=row.budget_from,
            ambiguous_at=row.ambiguous_at,
            batch_id=batch_id,
        )
        for row in rows
        if row.ordinal in taken
    )


def live_leases(conn: Connection, manifest_ids: Sequence[int]) -> tuple[int, int]:
    """Return how many claims are under way, and the microseconds until the last of them must end."""
    row = conn.execute(
        select(func.count(), func.max(_d.lease_ends) - ledger_now()).where(
            _d.manifest_id.in_(manifest_ids), _d.state == State.CLAIMED
        )
    ).one()
    return row[0], max(0, row[1] or 0)


def next_due(conn: Connection, manifest_ids: Sequence[int], gateway: str) -> int | None:
    """Return the microseconds until a row may be sent or asked about; None when none ever may.

    What is paused is left out, and rows that wait in a manifest whose window is not open; unknowns are
    not: evidence is sought whatever the window.
    """
    now = ledger_now()
    waiting = and_(
        _d.state.in_(sorted((State.PENDING, State.RETRY))),
        manifest.c.window_opens_at <= now,
        window_is_open(),
    )
    found = conn.execute(
        select(func.min(_d.due_at) - now)
        .join(manifest, manifest.c.id == _d.manifest_id)
        .where(
            _d.manifest_id.in_(manifest_ids),
            _d.due_at.is_not(None),
            or_(_d.state == State.UNKNOWN, waiting),
            is_not_paused(literal(gateway)),
        )
    ).scalar_one()
    return None if found is None else max(0, found)

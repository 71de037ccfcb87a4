"""What providers report about messages they took: kept once, applied in any order to the same end.

An event that comes before our own ``sent`` is parked (``applied_at`` NULL): while a claim is live its
sender will say how the attempt ended, and the event then adds to that. Parked events are read again when
the claim is settled, at the start of each pass and with the next event about the same message, so that no
delivery is sent again while proof of its acceptance lies here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    Row,
    Select,
    and_,
    exists,
    select,
    update,
)

from digest_pipeline.ledger import event_effects
from digest_pipeline.ledger.dialects import built_once, insert_new, ledger_now, rowset, rowset_value
from digest_pipeline.ledger.event_effects import EventKind
from digest_pipeline.ledger.event_messages import (
    HASHED,
    Event,
    is_foreign,
    is_hash,
    message_of,
    messages,
    same_delivery,
)
from digest_pipeline.ledger.schema import delivery, manifest_entry, provider_event, push_receipt
from digest_pipeline.outcomes import Proof
from digest_pipeline.spec_suppression import Suppression
from digest_pipeline.states import State

KEPT_UNMATCHED = 7 * 86_400_000_000
"""Microseconds for which an event waits whose message is not known yet: longer than any claim lives."""

PAGE = 500

_d, _e, _v = delivery.c, manifest_entry.c, provider_event.c


class Taken(StrEnum):
    """What became of an event."""

    APPLIED = "applied"
    PARKED = "parked"
    DUPLICATE = "duplicate"
    NOT_OURS = "not_ours"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class Receipt:
    """The end of one event; ``overtaken``: keys that were tried again although they had been accepted."""

    taken: Taken
    overtaken: tuple[str, ...] = ()


Limits = Callable[[str], Suppression]
"""The limits of a digest, by its name."""


def take_in(conn: Connection, event: Event, limits: Limits) -> Receipt:
    """Keep an event and apply it, in the caller's transaction; again changes nothing.

    Nothing is kept of a message of somebody else: one without a key, or with one that no manifest of this
    ledger has (they are frozen before their messages are sent), or one that another provider sent.
    """
    message = message_of(conn, event)
    pushed = _pushed_here(conn, event.key) if message is None else None
    if message is None and not is_hash(event.key or "") and pushed is None:
        return Receipt(Taken.NOT_OURS)
    if message is not None and is_foreign(conn, message, event.provider):
        return Receipt(Taken.FOREIGN)
    if not insert_new(conn, provider_event, _row(conn, event, message if message is not None else pushed)):
        return Receipt(Taken.DUPLICATE)
    if pushed is not None and pushed.address_hash is not None:
        # Of a message that a pipeline pushed here: its next push is rejected, which the pipeline hears.
        event_effects.suppress(conn, pushed, event, limits(pushed.digest))
    if message is None:
        return Receipt(Taken.PARKED)
    return _apply(conn, message, limits)


def apply_parked(conn: Connection, manifest_ids: Sequence[int], limits: Limits) -> list[str]:
    """Apply what was parked about deliveries of these manifests that are not claimed any more.

    Returns the operation keys that were overtaken, as ``acceptances.apply`` does.
    """
    if not any_parked(conn):
        return []
    _forget_unmatched(conn)
    _match_hashed(conn)
    waiting = _parked_messages().where(
        _e.manifest_id.in_(manifest_ids), exists().where(same_delivery(), _d.state != State.CLAIMED)
    )
    overtaken: list[str] = []
    while page := conn.execute(waiting.limit(PAGE)).all():
        overtaken += _apply_all(conn, page, limits)
    return overtaken


def apply_to_settled(conn: Connection, places: Sequence[dict[str, int]], limits: Limits) -> list[str]:
    """Apply what was parked about deliveries (manifest_id, ordinal) whose claims end in this transaction."""
    if not places or not any_parked(conn):
        return []
    _match_hashed(conn)
    r = rowset(conn, "r", {"manifest_id": BigInteger(), "ordinal": BigInteger()})
    waiting = _parked_messages().join(r, and_(r.c.manifest_id == _e.manifest_id, r.c.ordinal == _e.ordinal))
    return _apply_all(conn, conn.execute(waiting, {"r": rowset_value(places)}).all(), limits)


def proof_of(conn: Connection, operation_key: str) -> tuple[Proof, str | None] | None:
    """Return what the events about a message prove, and the provider's id of it; None where they prove nothing.

    For a subscriber, whose receipts of pushes are no deliveries: nothing here changes one.
    """
    events = conn.execute(
        select(_v.kind, _v.message_id).where(_v.operation_key == operation_key).order_by(_v.received_at)
    ).all()
    # A rejection proves that it was taken and that it never left: no reason to call it complete.
    said = [EventKind(event.kind) for event in events if event.kind != EventKind.REJECTED]
    proofs = [kind.proof for kind in said if kind.proof is not None]
    if not proofs:
        return None
    message_id = next((event.message_id for event in events if event.message_id), None)
    return max(proofs, key=lambda proof: proof.rank), message_id


def _pushed_here(conn: Connection, key: str | None) -> Row[Any] | None:
    if key is None:
        return None
    r = push_receipt.c
    pushed = select(r.operation_key, r.digest, r.tenant, r.address_hash).where(r.operation_key == key)
    return conn.execute(pushed).one_or_none()


def any_parked(conn: Connection) -> bool:
    """Whether any event waits at all: one look into a small index."""
    return conn.execute(_parked(conn)).first() is not None


@built_once
def _parked(conn: Connection) -> Select[Any]:
    return select(_v.event_id).where(_v.applied_at.is_(None)).limit(1)


def _apply_all(conn: Connection, page: Sequence[Row[Any]], limits: Limits) -> list[str]:
    overtaken: list[str] = []
    for message in page:
        overtaken += _apply(conn, message, limits).overtaken
    return overtaken


def _apply(conn: Connection, message: Row[Any], limits: Limits) -> Receipt:
    done = event_effects.apply(conn, message, limits(message.digest))
    if done is None:
        return Receipt(Taken.PARKED)
    return Receipt(Taken.APPLIED, tuple(done))


def _row(conn: Connection, event: Event, message: Row[Any] | None) -> dict[str, Any]:
    now = conn.execute(select(ledger_now())).scalar_one()
    return {
        "provider": event.provider,
        "event_id": event.event_id,
        "operation_key": message.operation_key if message else event.key,
        "kind": event.kind,
        "happened_at": now if event.happened_at is None else event.happened_at,
        "received_at": now,
        "message_id": event.message_id,
        "account": event.account,
        "tenant": message.tenant if message else None,
        "address_hash": message.address_hash if message else None,
        "permanent": event.permanent,
    }


def _parked_messages() -> Select[Any]:
    parked = select(_v.operation_key).where(_v.applied_at.is_(None), _v.operation_key.is_not(None))
    return messages().where(_e.operation_key.in_(parked))


def _match_hashed(conn: Connection) -> None:
    """Give parked events the key in full whose message has turned up since."""
    hashed = select(provider_event).where(_v.applied_at.is_(None), _v.operation_key.startswith(HASHED))
    for row in conn.execute(hashed).all():
        event = Event(row.provider, row.event_id, EventKind(row.kind), row.operation_key, row.message_id)
        message = message_of(conn, event)
        if message is not None:
            conn.execute(
                update(provider_event)
                .where(_v.provider == row.provider, _v.event_id == row.event_id)
                .values(
                    operation_key=message.operation_key,
                    address_hash=message.address_hash,
                    tenant=message.tenant,
                )
            )


def _forget_unmatched(conn: Connection) -> None:
    conn.execute(
        update(provider_event)
        .where(
            _v.applied_at.is_(None),
            _v.operation_key.startswith(HASHED),
            _v.received_at < ledger_now() - KEPT_UNMATCHED,
        )
        .values(applied_at=ledger_now(), effect="unmatched")
    )

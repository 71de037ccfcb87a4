"""Which message of the ledger a provider's event is about, and whether that provider can have sent it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, func, or_, select

from digest_pipeline.ledger.event_effects import EventKind
from digest_pipeline.ledger.schema import attempt, delivery, manifest, manifest_entry
from digest_pipeline.states import State

RELAYS = frozenset({"smtp", "https_push"})
"""Gateways behind which a provider of another name may do the sending."""

HASHED = "sha256-"
"""Begins the reference that a message carries instead of a key that is too long; no key begins so."""

_d, _e, _a = delivery.c, manifest_entry.c, attempt.c


@dataclass(frozen=True, slots=True)
class Event:
    """One event of one message. ``event_id`` is the same however often the provider repeats it.

    ``key``: the operation key that our message carried, where the event shows it, or ``sha256-`` and its
    hash, where it was too long for the provider; ``message_id`` is the provider's own, as its API returns
    it. ``happened_at``: microseconds, by the provider's clock. ``permanent``: of a bounce or a rejection,
    that another message would fare the same.
    """

    provider: str
    event_id: str
    kind: EventKind
    key: str | None = None
    message_id: str | None = None
    happened_at: int | None = None
    permanent: bool = False
    account: str | None = None


def messages() -> Select[Any]:
    """The messages of the ledger; each in the one order in which rows are locked."""
    return (
        select(
            _e.manifest_id,
            _e.ordinal,
            _e.operation_key,
            _e.address_hash,
            manifest.c.tenant,
            manifest.c.digest,
        )
        .join(manifest, manifest.c.id == _e.manifest_id)
        .order_by(_e.manifest_id, _e.ordinal)
    )


def message_of(conn: Connection, event: Event) -> Row[Any] | None:
    """Return the message by its key, or by the id under which this provider accepted it; None: not known."""
    if event.key is not None:
        found = _by_hash(conn, event.key) if is_hash(event.key) else _by_key(conn, event.key)
        if found is not None:
            return found
    if event.message_id is None:
        return None
    sent = messages().join(attempt, and_(_a.manifest_id == _e.manifest_id, _a.ordinal == _e.ordinal))
    by_id = sent.where(_a.message_id == event.message_id, _a.gateway.in_((event.provider, *RELAYS)))
    return conn.execute(by_id.limit(1)).one_or_none()


def is_hash(reference: str) -> bool:
    """Whether a reference is the hash of a key."""
    return reference.startswith(HASHED)


def _by_key(conn: Connection, key: str) -> Row[Any] | None:
    return conn.execute(messages().where(_e.operation_key == key)).one_or_none()


def _by_hash(conn: Connection, reference: str) -> Row[Any] | None:
    """Look among what is unknown: what was sent is found by its message id."""
    unknown = messages().join(delivery, same_delivery())
    open_again = _d.state.in_((State.RETRY, State.FAILED, State.DEAD))  # disproved, and perhaps wrongly
    unknown = unknown.where(
        or_(_d.ambiguous_at.is_not(None), open_again), func.length(_e.operation_key) > len(reference)
    )
    for message in conn.execute(unknown):
        if HASHED + hashlib.sha256(message.operation_key.encode()).hexdigest() == reference:
            return message
    return None


def is_foreign(conn: Connection, message: Row[Any], provider: str) -> bool:
    """Whether only other providers have ever been given the message."""
    tried = select(_a.gateway).where(_a.manifest_id == message.manifest_id, _a.ordinal == message.ordinal)
    claimed = select(_d.gateway).where(
        _d.manifest_id == message.manifest_id, _d.ordinal == message.ordinal, _d.gateway.is_not(None)
    )
    gateways = set(conn.execute(tried.union(claimed)).scalars())
    return bool(gateways) and not gateways & {provider, *RELAYS}


def same_delivery() -> ColumnElement[bool]:
    """The delivery of a message."""
    return and_(_d.manifest_id == _e.manifest_id, _d.ordinal == _e.ordinal)

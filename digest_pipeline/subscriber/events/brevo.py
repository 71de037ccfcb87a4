"""Brevo: webhooks with a bearer token.

Documented (https://developers.brevo.com/docs/transactional-webhooks and /docs/secure-webhooks): the token in
``Authorization``; ``event``, ``message-id``, ``ts_epoch`` in milliseconds, ``tags``, and the headers
``X-Mailin-custom`` that we set. Nothing is signed and no event has an identity of its own (``id`` is the
webhook's): the same words are the same event (assumed), and a replay is a no-op by that alone.
Assumed: ``request`` and ``deferred`` mean that Brevo has the message; ``blocked``, ``invalid_email`` and
``error`` that it was not sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from digest_pipeline.ledger.event_effects import EventKind
from digest_pipeline.ledger.event_messages import Event
from digest_pipeline.subscriber.events.reading import (
    Posted,
    Reader,
    epoch,
    identity_of,
    key_in,
    objects_of,
    require_one_of,
    text_in,
)

KINDS = {
    "request": EventKind.ACCEPTED,
    "delivered": EventKind.DELIVERED,
    "deferred": EventKind.DEFERRED,
    "soft_bounce": EventKind.BOUNCED,
    "hard_bounce": EventKind.BOUNCED,
    "spam": EventKind.COMPLAINED,
    "complaint": EventKind.COMPLAINED,
    "blocked": EventKind.REJECTED,
    "invalid_email": EventKind.REJECTED,
    "error": EventKind.REJECTED,
    "unsubscribed": EventKind.UNSUBSCRIBED,
    "unsubscribe": EventKind.UNSUBSCRIBED,
}
PERMANENT = frozenset({"hard_bounce", "blocked", "invalid_email"})


def reader(tokens: Sequence[str]) -> Reader:
    """Return what reads Brevo's requests."""

    def read(posted: Posted) -> list[Event]:
        scheme, _, given = posted.headers.get("authorization", "").partition(" ")
        token = given.strip() if scheme.lower() == "bearer" else ""
        require_one_of(token.encode(), [one.encode() for one in tokens])
        return [event for item in objects_of(posted.body) if (event := _event(item)) is not None]

    return read


def _event(item: dict[str, Any]) -> Event | None:
    word = text_in(item, "event") or ""
    kind = KINDS.get(word)
    if kind is None:
        return None
    return Event(
        "brevo",
        identity_of(item),
        kind,
        key_in(text_in(item, "X-Mailin-custom"), *_tags(item)),
        text_in(item, "message-id"),
        _instant(item.get("ts_epoch")),
        permanent=word in PERMANENT,
    )


def _instant(milliseconds: Any) -> int | None:
    is_one = isinstance(milliseconds, int | float) and 0 <= milliseconds < 1e15
    return epoch(milliseconds / 1000) if is_one else None


def _tags(item: dict[str, Any]) -> list[str]:
    """The tags that look like ours: a key, an encoded one, or a digest."""
    found = item.get("tags")
    return [tag for tag in found if isinstance(tag, str)] if isinstance(found, list) else []

"""Mailgun: webhooks with an HMAC over a timestamp and a token, in the body.

Documented (https://documentation.mailgun.com/docs/mailgun/user-manual/webhooks/securing-webhooks): SHA-256
over ``timestamp`` + ``token`` with the webhook signing key; the token is random and of one use: another
request with it is not to be honoured. The signature does not cover the event, so the token is the event's
identity here and the timestamp's tolerance is narrow. ``event-data`` with ``event``, ``severity``,
``user-variables``, ``message.headers.message-id`` without its brackets. Assumed: each repeat is signed
anew; ``rejected`` was never sent; a failure with reason ``suppress-*`` neither, the address being on a list
of Mailgun's.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Any

from digest_pipeline.ledger.event_effects import EventKind
from digest_pipeline.ledger.event_messages import Event
from digest_pipeline.subscriber.events.reading import (
    KEY_NAME,
    UNAUTHENTIC,
    Posted,
    Reader,
    RefusedError,
    epoch,
    json_of,
    key_in,
    named_value,
    object_in,
    require_fresh,
    text_in,
)

PAST, FUTURE = 300.0, 60.0
KINDS = {
    "accepted": EventKind.ACCEPTED,
    "delivered": EventKind.DELIVERED,
    "complained": EventKind.COMPLAINED,
    "rejected": EventKind.REJECTED,
    "unsubscribed": EventKind.UNSUBSCRIBED,
}


def reader(keys: Sequence[str]) -> Reader:
    """Return what reads Mailgun's requests."""

    def read(posted: Posted) -> list[Event]:
        found = json_of(posted.body)
        token = _authentic(object_in(found, "signature"), keys, posted.now)
        data = object_in(found, "event-data")
        kind, permanent = _kind(data)
        if kind is None:
            return []
        message_id = text_in(object_in(object_in(data, "message"), "headers"), "message-id")
        return [
            Event(
                "mailgun",
                token,
                kind,
                key_in(named_value(data.get("user-variables"), KEY_NAME)),
                f"<{message_id.strip('<>')}>" if message_id else None,
                epoch(data.get("timestamp")),
                permanent=permanent,
            )
        ]

    return read


def _kind(data: dict[str, Any]) -> tuple[EventKind | None, bool]:
    word = text_in(data, "event") or ""
    if word != "failed":
        return KINDS.get(word), False
    if (text_in(data, "reason") or "").startswith("suppress-"):
        return EventKind.REJECTED, True
    if data.get("severity") == "permanent":
        # "old": Mailgun gave up after hours of temporary failures, which says little about the address.
        return EventKind.BOUNCED, data.get("reason") != "old"
    return EventKind.DEFERRED, False


def _authentic(signature: dict[str, Any], keys: Sequence[str], now: float) -> str:
    """Return the token, which is this event's identity."""
    stamp, token, given = (text_in(signature, name) or "" for name in ("timestamp", "token", "signature"))
    found = False
    for key in keys:
        expected = hmac.new(key.encode(), f"{stamp}{token}".encode(), hashlib.sha256).hexdigest()
        found |= hmac.compare_digest(given.encode(), expected.encode())
    if not found or not token or not stamp.isascii() or not stamp.isdigit():
        raise RefusedError(401, UNAUTHENTIC)
    require_fresh(float(stamp), now, past=PAST, future=FUTURE)
    return token

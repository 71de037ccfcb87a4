"""SendGrid: lists of events, signed with ECDSA over a timestamp and the body.

Documented (https://www.twilio.com/docs/sendgrid/for-developers/tracking-events/event and
.../getting-started-event-webhook-security-features): the two headers, a P-256 public key in base64, SHA-256
over timestamp + raw body; ``event``, ``sg_event_id`` (the identity to deduplicate by), ``timestamp``,
``type`` of a bounce (``bounce``, ``blocked``), ``reason`` of a drop; custom arguments stand beside them;
``sg_message_id`` begins with the id that the API returned, up to the first dot; retries for 24 hours.
Assumed: a repeat may be signed as it was first, so requests of the last 24 hours are taken; a replay
is a no-op by the events' identities.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any

from digest_pipeline.errors import InputError
from digest_pipeline.ledger.event_effects import EventKind
from digest_pipeline.ledger.event_messages import Event
from digest_pipeline.subscriber.events.reading import (
    KEY_NAME,
    UNAUTHENTIC,
    Posted,
    Reader,
    RefusedError,
    epoch,
    identity_of,
    key_in,
    objects_of,
    require_fresh,
    text_in,
)

SIGNATURE = "x-twilio-email-event-webhook-signature"
STAMP = "x-twilio-email-event-webhook-timestamp"
PAST, FUTURE = 25 * 3600.0, 60.0
KINDS = {
    "processed": EventKind.ACCEPTED,
    "deferred": EventKind.DEFERRED,
    "delivered": EventKind.DELIVERED,
    "bounce": EventKind.BOUNCED,
    "dropped": EventKind.REJECTED,
    "spamreport": EventKind.COMPLAINED,
    "unsubscribe": EventKind.UNSUBSCRIBED,
    "group_unsubscribe": EventKind.UNSUBSCRIBED,
}
ADDRESS_IS_TO_BLAME = frozenset(
    {"bounced address", "invalid", "spam reporting address", "unsubscribed address"}
)
"""Reasons of a drop that another message to the address would meet, too."""


def reader(public_keys: Sequence[str]) -> Reader:
    """Return what reads SendGrid's requests. Raises InputError for a key that is none."""
    keys = [_key(text) for text in public_keys]

    def read(posted: Posted) -> list[Event]:
        _require_authentic(posted, keys)
        return [event for item in objects_of(posted.body) if (event := _event(item)) is not None]

    return read


def _event(item: dict[str, Any]) -> Event | None:
    word = text_in(item, "event") or ""
    kind = KINDS.get(word)
    if kind is None:
        return None
    to_blame = (text_in(item, "reason") or "").lower() in ADDRESS_IS_TO_BLAME
    permanent = {"bounce": item.get("type", "bounce") == "bounce", "dropped": to_blame}
    message_id = text_in(item, "sg_message_id")
    return Event(
        "sendgrid",
        text_in(item, "sg_event_id") or identity_of(item),
        kind,
        key_in(text_in(item, KEY_NAME)),
        message_id.partition(".")[0] if message_id else None,
        epoch(item.get("timestamp")),
        permanent=permanent.get(word, False),
    )


def _key(text: str) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    try:
        found = load_der_public_key(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        found = None
    if not isinstance(found, EllipticCurvePublicKey):
        raise InputError(
            "DIGEST_EVENTS_SENDGRID_KEY: must be a verification key as SendGrid shows it, in base64"
        )
    return found


def _require_authentic(posted: Posted, keys: Sequence[Any]) -> None:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.hashes import SHA256

    stamp = posted.headers.get(STAMP, "")
    try:
        signature = base64.b64decode(posted.headers.get(SIGNATURE, ""), validate=True)
    except (binascii.Error, ValueError):
        signature = b""
    for key in keys:
        try:
            key.verify(signature, stamp.encode() + posted.body, ECDSA(SHA256()))
        except InvalidSignature:
            continue
        if stamp.isascii() and stamp.isdigit():
            require_fresh(float(stamp), posted.now, past=PAST, future=FUTURE)
            return
    raise RefusedError(401, UNAUTHENTIC)

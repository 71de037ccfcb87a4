"""Resend: webhooks signed in Svix's way, which became Standard Webhooks.

Documented (https://resend.com/docs/webhooks, https://docs.svix.com/receiving/verifying-payloads/how-manual):
the headers, the signature over ``id.timestamp.body``, several signatures in one header during a rotation;
the id stays the same when an event is sent again, its timestamp does not; the payload's ``type``,
``created_at`` and ``data.email_id``, our headers in ``data.headers`` and our tags in ``data.tags``. ``email.bounced`` is
documented as a permanent rejection; ``data.bounce.type`` tells transient ones. Assumed: ``email.failed``
means that nothing left, ``email.suppressed`` that the address is on Resend's own list.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence

from digest_pipeline.errors import InputError
from digest_pipeline.ledger.event_effects import EventKind
from digest_pipeline.ledger.event_messages import Event
from digest_pipeline.settings import SHORTEST_KEY
from digest_pipeline.subscriber.events.reading import (
    KEY_NAME,
    UNAUTHENTIC,
    Posted,
    Reader,
    RefusedError,
    iso,
    json_of,
    key_in,
    named_value,
    object_in,
    require_fresh,
    stored,
    text_in,
)

PAST, FUTURE = 300.0, 60.0
"""Seconds that a timestamp may be off. Each repeat is signed anew, so an old one is a replay."""

KINDS = {
    "email.sent": EventKind.ACCEPTED,
    "email.delivered": EventKind.DELIVERED,
    "email.delivery_delayed": EventKind.DEFERRED,
    "email.bounced": EventKind.BOUNCED,
    "email.complained": EventKind.COMPLAINED,
    "email.failed": EventKind.REJECTED,
    "email.suppressed": EventKind.REJECTED,
}


def reader(secrets: Sequence[str]) -> Reader:
    """Return what reads Resend's requests. Raises InputError for a secret that is none."""
    keys = [_key(secret) for secret in secrets]

    def read(posted: Posted) -> list[Event]:
        identity = _authentic(posted, keys)
        found = json_of(posted.body)
        kind = KINDS.get(text_in(found, "type") or "")
        if kind is None:
            return []
        data = object_in(found, "data")
        transient = (text_in(object_in(data, "bounce"), "type") or "").lower() in (
            "transient",
            "undetermined",
        )
        permanent = {"email.bounced": not transient, "email.suppressed": True}
        return [
            Event(
                "resend",
                identity,
                kind,
                key_in(
                    named_value(data.get("headers"), "X-Operation-Key"),
                    named_value(data.get("tags"), KEY_NAME),
                ),
                text_in(data, "email_id"),
                iso(found.get("created_at")),
                permanent=permanent.get(found["type"], False),
            )
        ]

    return read


def _key(secret: str) -> bytes:
    text = secret.removeprefix("whsec_")
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) < SHORTEST_KEY:  # an empty one would verify what anybody signs
        raise InputError(
            "DIGEST_EVENTS_RESEND_SECRET: must be a signing secret as Resend shows it, whsec_..."
        )
    return key


def _authentic(posted: Posted, keys: Sequence[bytes]) -> str:
    """Return the event's identity, which the signature covers."""
    identity, stamp = posted.headers.get("svix-id", ""), posted.headers.get("svix-timestamp", "")
    signed = f"{identity}.{stamp}.".encode() + posted.body
    given = [
        value.encode()
        for version, _, value in (
            one.partition(",") for one in posted.headers.get("svix-signature", "").split()
        )
        if version == "v1"
    ]
    found = False
    for key in keys:
        expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest())
        for one in given:
            found |= hmac.compare_digest(one, expected)
    if not found or not stamp.isascii() or not stamp.isdigit() or not stored(identity):
        raise RefusedError(401, UNAUTHENTIC)
    require_fresh(float(stamp), posted.now, past=PAST, future=FUTURE)
    return identity

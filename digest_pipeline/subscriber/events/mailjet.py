"""Mailjet: webhooks with basic authentication, one event or a list of them in a request.

Documented (https://dev.mailjet.com/email/guides/webhooks/): credentials in the webhook's URL; ``event``,
``time``, ``MessageID``, ``CustomID``; ``hard_bounce`` and ``blocked`` of a bounce; retries for 24 hours of
what is not answered with 200. ``sent`` means that the recipient's server has taken it. Nothing is signed and no
event has an identity: the same words are the same event (assumed), and a replay is a no-op by that alone.
Assumed: ``blocked`` messages were not sent, and are the address's fault where ``error_related_to`` says
recipient or domain, or the address was preblocked.
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
    require_basic,
    text_in,
)

KINDS = {
    "sent": EventKind.DELIVERED,
    "bounce": EventKind.BOUNCED,
    "blocked": EventKind.REJECTED,
    "spam": EventKind.COMPLAINED,
    "unsub": EventKind.UNSUBSCRIBED,
}


def reader(pairs: Sequence[str]) -> Reader:
    """Return what reads Mailjet's requests."""

    def read(posted: Posted) -> list[Event]:
        require_basic(posted, pairs)
        return [event for item in objects_of(posted.body) if (event := _event(item)) is not None]

    return read


def _event(item: dict[str, Any]) -> Event | None:
    kind = KINDS.get(text_in(item, "event") or "")
    if kind is None:
        return None
    if kind is EventKind.BOUNCED and item.get("error") == "greylisted" and not item.get("hard_bounce"):
        kind = EventKind.DEFERRED
    by_address = item.get("error_related_to") in ("recipient", "domain") or item.get("error") == "preblocked"
    permanent = bool(item.get("hard_bounce")) if kind is EventKind.BOUNCED else by_address
    return Event(
        "mailjet",
        identity_of(item),
        kind,
        key_in(text_in(item, "CustomID")),
        text_in(item, "MessageID"),
        epoch(item.get("time")),
        permanent=kind in (EventKind.BOUNCED, EventKind.REJECTED) and permanent,
    )

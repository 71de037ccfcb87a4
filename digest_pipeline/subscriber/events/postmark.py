"""Postmark: webhooks with basic authentication, from addresses that it publishes.

Documented (https://postmarkapp.com/developer/webhooks/webhooks-overview): credentials in the webhook's
URL, the list of addresses it calls from, a retry of what is not answered with 200; ``RecordType``,
``MessageID``, ``Metadata``, ``ServerID``; a bounce's ``ID`` and its ``Type`` (bounce types are listed in
the Bounce API); ``SubscriptionChange`` with ``SuppressSending`` and ``SuppressionReason``. Nothing is
signed and no request is dated: a replay is a no-op by the event's identity alone.
Assumed: an event without an ``ID`` is the same when all of it is the same.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any

from digest_pipeline.errors import InputError
from digest_pipeline.ledger.event_effects import EventKind
from digest_pipeline.ledger.event_messages import Event
from digest_pipeline.subscriber.events.reading import (
    KEY_NAME,
    Posted,
    Reader,
    RefusedError,
    identity_of,
    iso,
    key_in,
    named_value,
    object_in,
    objects_of,
    require_basic,
    text_in,
)

DEFERRED = frozenset({"Transient", "DnsError", "SMTPApiError", "OpenRelayTest"})
SOFT = frozenset(
    {
        "SoftBounce",
        "Undeliverable",
        "VirusNotification",
        "Unknown",
        "DMARCPolicy",
        "Blocked",
        "SpamNotification",
    }
)
IGNORED = frozenset({"AutoResponder", "AddressChange", "ChallengeVerification", "Subscribe", "InboundError"})
REJECTED = {
    "BadEmailAddress": True,
    "ManuallyDeactivated": True,
    "Unconfirmed": True,
    "TemplateRenderingFailed": False,
}
"""Bounce types of messages that Postmark did not send, and whether that is the address's fault."""


def reader(pairs: Sequence[str], networks: Sequence[str] = (), servers: Sequence[str] = ()) -> Reader:
    """Return what reads Postmark's requests. Raises InputError for a network that is none.

    ``networks``: who may call, by the address of the connection: useless behind a proxy that ends it.
    """
    known = [_network(text) for text in networks]

    def read(posted: Posted) -> list[Event]:
        if known and not _is_in(posted.peer, known):
            raise RefusedError(403, "not an address that may call")
        require_basic(posted, pairs)
        items = objects_of(posted.body)
        if servers and any(text_in(item, "ServerID") not in servers for item in items):
            raise RefusedError(403, "of another server")
        return [event for item in items if (event := _event(item)) is not None]

    return read


def _event(item: dict[str, Any]) -> Event | None:
    kind, permanent = _kind(item)
    if kind is None:
        return None
    when = next((item[name] for name in ("DeliveredAt", "BouncedAt", "ChangedAt") if name in item), None)
    return Event(
        "postmark",
        f"bounce:{item['ID']}" if text_in(item, "ID") else identity_of(item),
        kind,
        key_in(named_value(object_in(item, "Metadata"), KEY_NAME)),
        text_in(item, "MessageID"),
        iso(when),
        permanent=permanent,
        account=text_in(item, "ServerID"),
    )


def _kind(item: dict[str, Any]) -> tuple[EventKind | None, bool]:
    bounce = text_in(item, "Type") or ""
    match text_in(item, "RecordType"):
        case "Delivery":
            return EventKind.DELIVERED, False
        case "SpamComplaint":
            return EventKind.COMPLAINED, False
        case "SubscriptionChange" if item.get("SuppressSending") is True:
            # Of a bounce or a complaint there is an event of its own.
            opted_out = item.get("SuppressionReason") == "ManualSuppression"
            return (EventKind.UNSUBSCRIBED, False) if opted_out else (None, False)
        case "Bounce" if bounce == "SpamComplaint":
            return EventKind.COMPLAINED, False
        case "Bounce" if bounce == "Unsubscribe":
            return EventKind.UNSUBSCRIBED, False
        case "Bounce" if bounce in REJECTED:
            return EventKind.REJECTED, REJECTED[bounce]
        case "Bounce" if bounce in DEFERRED:
            return EventKind.DEFERRED, False
        case "Bounce" if bounce not in IGNORED:
            return EventKind.BOUNCED, bounce not in SOFT
        case _:
            return None, False


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        raise InputError(
            "DIGEST_EVENTS_POSTMARK_NETWORKS: holds something that is no address or network"
        ) from None


def _is_in(peer: str, networks: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> bool:
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    return any(mapped in network for network in networks)

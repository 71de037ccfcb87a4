"""What a push says: which frozen message is due, by its identities and its hash. Never to whom, or what."""

from __future__ import annotations

import hashlib
from urllib.parse import unquote

from digest_pipeline.content.message import payload_hash
from digest_pipeline.gateways.base import Envelope
from digest_pipeline.gateways.json_api import serialise
from digest_pipeline.keys import DEFAULT_TENANT


def push_body(envelope: Envelope) -> bytes:
    """Return the JSON of a push: the same bytes each time the same message is due.

    A key beyond 256 characters is a hash, from which nothing can be read: ``digest``, ``period``, ``tenant``
    and ``customer_id`` are null then, and come with the content.
    """
    digest, period, tenant, customer = parts_of(envelope.operation_key) or (None, None, None, None)
    return serialise(
        {
            "key": envelope.operation_key,
            "digest": digest,
            "period": period,
            "tenant": tenant,
            "customer_id": customer,
            "payload_hash": payload_hash(envelope.message.to_bytes()),
        }
    )


def parts_of(operation_key: str) -> tuple[str, str, str, str] | None:
    """Return digest, period, tenant and customer of a key; None for one that is a hash."""
    parts = operation_key.split(":")
    if len(parts) != 3:
        return None
    digest, period, who = parts
    tenant, slash, customer = who.partition("/")
    if not slash:
        tenant, customer = DEFAULT_TENANT, who
    return unquote(digest), unquote(period), unquote(tenant), unquote(customer)


def message_id_of(operation_key: str) -> str:
    """Return the ``webhook-id`` of a key: the same for every repeat, without the dots that a key may hold."""
    return "push_" + hashlib.sha256(operation_key.encode("utf-8")).hexdigest()[:40]

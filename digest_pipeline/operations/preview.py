"""The mail of one customer, without sending it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row

from digest_pipeline.content.message import Message, payload_hash, unpack
from digest_pipeline.content.rendering import RenderInputs
from digest_pipeline.content.templates import FrozenTemplate, load_template
from digest_pipeline.eligibility.compose import make_renderer, render_inputs
from digest_pipeline.eligibility.selection import Exclusion, Selected, select_rows
from digest_pipeline.eligibility.source import Source
from digest_pipeline.errors import UnknownKeyError
from digest_pipeline.ledger import reads
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.periods import Period
from digest_pipeline.spec import Digest


@dataclass(frozen=True, slots=True)
class Preview:
    """A customer's mail. ``frozen``: these are the bytes that are or were sent; otherwise what freezing
    now would give. ``message`` None: there is none, ``reason`` says why.
    """

    operation_key: str
    recipient: str
    frozen: bool
    state: str
    message: Message | None
    reason: str = ""


def preview_message(
    ledger: Ledger, source: Source, digest: Digest, period: Period, customer_id: str
) -> Preview:
    """Return a customer's mail of a period. Raises UnknownKeyError for a customer who is not in it.

    Frozen content is shown as it was frozen. After its cleanup it is rendered again from the frozen
    template and inputs; ``frozen`` then tells whether the hash is that of the bytes that were sent.
    Before the freeze the source is asked. Nothing is written.
    """
    with ledger.read() as conn:
        if not reads.manifest_ids(conn, digest.name, period.label):
            return _as_if_frozen_now(source, digest, period, customer_id)
        row = reads.find_customer(conn, digest.name, period.label, customer_id)
    if row.document:
        message = unpack(row.document, row.payload_hash)
        return Preview(row.operation_key, row.recipient or "", True, row.state, message)
    if row.payload_hash is not None and row.recipient is not None:
        return _rendered_again(source, digest, period, row)
    if row.state is None:
        return _as_if_frozen_now(source, digest, period, customer_id)
    return Preview(row.operation_key, "", True, row.state, None, row.suppression or "erased")


def _rendered_again(source: Source, digest: Digest, period: Period, row: Row[Any]) -> Preview:
    """The generated rows are gone: render them again from the frozen inputs, and say if that is them."""
    template = FrozenTemplate.from_text(row.template_text)
    inputs = RenderInputs.from_dict(json.loads(row.render_inputs))
    renderer = make_renderer(digest, period, template, inputs)
    with source.snapshot() as snapshot:
        tenant = None if digest.single_tenant else row.tenant
        rows = snapshot.content(digest.content, period, tenant, [row.customer_id])
    items = rows.get(row.customer_id, [])
    if not items:
        reason = f"its generated rows were removed ({row.state}), and the source has none any more"
        return Preview(row.operation_key, row.recipient, False, row.state, None, reason)
    customer = {"customer_id": row.customer_id, "name": row.name or ""}
    message = renderer.render(row.operation_key, customer, items)
    same = payload_hash(message.to_bytes()) == row.payload_hash
    return Preview(row.operation_key, row.recipient, same, row.state, message)


def _as_if_frozen_now(source: Source, digest: Digest, period: Period, customer_id: str) -> Preview:
    template = load_template(digest.content.template)
    renderer = make_renderer(digest, period, template, render_inputs(digest, template))
    with source.snapshot() as snapshot:
        found = None
        for rows in snapshot.customers(digest.customers, period):
            for one in select_rows(digest, period.label, rows):
                if (one.entry.customer_id if isinstance(one, Selected) else one.customer_id) == customer_id:
                    found = one
        tenant = None if digest.single_tenant or found is None else found.tenant
        items = snapshot.content(digest.content, period, tenant, [customer_id]).get(customer_id, [])
    match found:
        case None:
            raise UnknownKeyError(f"{digest.name} {period.label} selects no customer {customer_id!r}")
        case Exclusion(reason=reason):
            return Preview("", "", False, "excluded", None, reason)
        case Selected(entry=entry):
            if not items:
                return Preview(entry.operation_key, entry.recipient, False, "not frozen", None, "empty")
            customer = {"customer_id": customer_id, "name": entry.name}
            message = renderer.render(entry.operation_key, customer, items)
            return Preview(entry.operation_key, entry.recipient, False, "not frozen", message)

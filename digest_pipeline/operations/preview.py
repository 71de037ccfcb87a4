"""The mail of one customer: as it was or would be frozen, or as a sample under another key."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row

from digest_pipeline.content.message import Message, payload_hash, unpack
from digest_pipeline.content.rendering import Renderer, RenderInputs
from digest_pipeline.content.templates import FrozenTemplate, load_template
from digest_pipeline.eligibility.compose import make_renderer, render_inputs
from digest_pipeline.eligibility.selection import Exclusion, Selected, select_rows
from digest_pipeline.eligibility.source import Source
from digest_pipeline.errors import InputError, UnknownKeyError
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


def sample_message(
    ledger: Ledger, source: Source, digest: Digest, period: Period, customer_id: str, key: str
) -> tuple[Message, str]:
    """Return a customer's mail as it looks, under a key that is no delivery's, and the customer's tenant.

    Rendered from the source as it is now, by the frozen template where there is one. All that derives from
    the operation key derives from ``key``, and an unsubscribe link is signed for nobody. Raises
    UnknownKeyError for a customer who is not in the period, InputError for one who gets no mail.
    """
    with ledger.read() as conn:
        frozen = bool(reads.manifest_ids(conn, digest.name, period.label))
        row = reads.find_customer(conn, digest.name, period.label, customer_id) if frozen else None
    if row is not None and row.recipient is None:
        raise InputError(f"{customer_id!r} was erased: no mail is made of their rows")
    if row is not None and row.template_text is not None:
        made = _frozen_ingredients(source, digest, period, row)
    else:
        found = _selected(source, digest, period, customer_id)
        if isinstance(found, Exclusion):
            raise InputError(f"{customer_id!r} gets no mail in {period.label}: {found.reason}")
        made = _ingredients_now(source, digest, period, found)
    if not made.items:
        raise InputError(f"{customer_id!r} has nothing to be told in {period.label}: the source has no rows")
    title = digest.title or digest.name
    renderer = Renderer(
        made.template,
        made.inputs,
        title,
        period.label,
        period.first_day,
        period.last_day,
        sign=lambda _: "test",
    )
    return renderer.render(key, made.customer, made.items), made.tenant


@dataclass(frozen=True, slots=True)
class _Ingredients:
    """What a customer's mail is made of."""

    template: FrozenTemplate
    inputs: RenderInputs
    tenant: str
    customer: dict[str, str]
    items: list[dict[str, Any]]

    def message(self, digest: Digest, period: Period, operation_key: str) -> Message:
        renderer = make_renderer(digest, period, self.template, self.inputs)
        return renderer.render(operation_key, self.customer, self.items)


def _rendered_again(source: Source, digest: Digest, period: Period, row: Row[Any]) -> Preview:
    """The generated rows are gone: render them again from the frozen inputs, and say if that is them."""
    made = _frozen_ingredients(source, digest, period, row)
    if not made.items:
        reason = f"its generated rows were removed ({row.state}), and the source has none any more"
        return Preview(row.operation_key, row.recipient, False, row.state, None, reason)
    message = made.message(digest, period, row.operation_key)
    same = payload_hash(message.to_bytes()) == row.payload_hash
    return Preview(row.operation_key, row.recipient, same, row.state, message)


def _frozen_ingredients(source: Source, digest: Digest, period: Period, row: Row[Any]) -> _Ingredients:
    template = FrozenTemplate.from_text(row.template_text)
    inputs = RenderInputs.from_dict(json.loads(row.render_inputs))
    items = _items(source, digest, period, row.tenant, row.customer_id)
    customer = {"customer_id": row.customer_id, "name": row.name or ""}
    return _Ingredients(template, inputs, row.tenant, customer, items)


def _as_if_frozen_now(source: Source, digest: Digest, period: Period, customer_id: str) -> Preview:
    found = _selected(source, digest, period, customer_id)
    if isinstance(found, Exclusion):
        return Preview("", "", False, "excluded", None, found.reason)
    made, entry = _ingredients_now(source, digest, period, found), found.entry
    if not made.items:
        return Preview(entry.operation_key, entry.recipient, False, "not frozen", None, "empty")
    message = made.message(digest, period, entry.operation_key)
    return Preview(entry.operation_key, entry.recipient, False, "not frozen", message)


def _ingredients_now(source: Source, digest: Digest, period: Period, one: Selected) -> _Ingredients:
    template = load_template(digest.content.template)
    items = _items(source, digest, period, one.tenant, one.entry.customer_id)
    customer = {"customer_id": one.entry.customer_id, "name": one.entry.name}
    return _Ingredients(template, render_inputs(digest, template), one.tenant, customer, items)


def _selected(source: Source, digest: Digest, period: Period, customer_id: str) -> Selected | Exclusion:
    found: Selected | Exclusion | None = None
    with source.snapshot() as snapshot:
        for rows in snapshot.customers(digest.customers, period):
            for one in select_rows(digest, period.label, rows):
                if (one.entry.customer_id if isinstance(one, Selected) else one.customer_id) == customer_id:
                    found = one
    if found is None:
        raise UnknownKeyError(f"{digest.name} {period.label} selects no customer {customer_id!r}")
    return found


def _items(
    source: Source, digest: Digest, period: Period, tenant: str, customer_id: str
) -> list[dict[str, Any]]:
    with source.snapshot() as snapshot:
        which = None if digest.single_tenant else tenant
        return list(snapshot.content(digest.content, period, which, [customer_id]).get(customer_id, []))

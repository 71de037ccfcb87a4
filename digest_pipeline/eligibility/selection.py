"""From a source row to a manifest entry, or to the reason why it is none."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from digest_pipeline.addresses import Address, address_hash, check_address, clean_line, clean_name
from digest_pipeline.keys import DEFAULT_TENANT, operation_key
from digest_pipeline.ledger.manifests import Entry
from digest_pipeline.spec import Digest

_OPTIONAL = ("tenant", "opted_in", "name")
"""Columns that the customer source may leave out."""


class Excluded(StrEnum):
    """Reasons beside those of ``addresses.AddressProblem``."""

    OPTED_OUT = "opted_out"
    MISSING_CUSTOMER = "missing_customer_id"
    UNUSABLE_CUSTOMER = "unusable_customer_id"
    DUPLICATE = "duplicate_customer"
    MISSING_TENANT = "missing_tenant"


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A selected row that is not in the manifest."""

    tenant: str
    customer_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Selected:
    """A selected row that is."""

    tenant: str
    entry: Entry


def select_rows(digest: Digest, period: str, rows: Iterable[Any]) -> Iterable[Selected | Exclusion]:
    """Yield what becomes of each source row of one page, in order.

    A customer id that comes twice in the page is an Exclusion the second time.
    """
    tenant = digest.single_tenant
    seen: set[tuple[str, str]] = set()
    columns: frozenset[str] | None = None
    for row in rows:
        if columns is None:
            # Once a page: asking a row for a column it lacks costs more than all the rest of it.
            columns = frozenset(name for name in _OPTIONAL if hasattr(row, name))
        decided = _select(digest, period, row, tenant, columns)
        if isinstance(decided, Selected):
            identity = (decided.tenant, decided.entry.customer_id)
            if identity in seen:
                yield Exclusion(*identity, Excluded.DUPLICATE)
                continue
            seen.add(identity)
        yield decided


def _select(
    digest: Digest, period: str, row: Any, tenant: str | None, columns: frozenset[str]
) -> Selected | Exclusion:
    # PostgreSQL refuses NUL, SQLite cuts at it, both choke on half a surrogate pair. An id is never
    # mended: the content query could not find its customer again.
    raw = str(row.customer_id) if row.customer_id is not None else ""
    customer = clean_line(raw)
    if tenant is None:
        tenant = clean_line(str(row.tenant or "") if "tenant" in columns else "")
        if not tenant:
            return Exclusion(DEFAULT_TENANT, customer, Excluded.MISSING_TENANT)
    if not customer:
        return Exclusion(tenant, "", Excluded.MISSING_CUSTOMER)
    if customer != raw.strip(" ") or "\ufffd" in raw:
        return Exclusion(tenant, customer, Excluded.UNUSABLE_CUSTOMER)
    customer = raw
    if "opted_in" in columns and not row.opted_in:
        return Exclusion(tenant, customer, Excluded.OPTED_OUT)
    address = check_address(row.recipient)
    if not isinstance(address, Address):
        return Exclusion(tenant, customer, address.reason)
    recipient = address.value
    exact = recipient_hash(recipient)
    entry = Entry(
        operation_key=operation_key(digest.name, period, tenant, customer),
        customer_id=customer,
        recipient=recipient,
        recipient_hash=exact,
        # Mostly the same bytes: hash once.
        address_hash=exact if recipient.isascii() and recipient.islower() else address_hash(recipient),
        name=clean_name(row.name) if "name" in columns else "",
    )
    return Selected(tenant, entry)


def recipient_hash(recipient: str) -> str:
    """Return the SHA-256 of an address's exact bytes: what tells that a frozen one was changed."""
    return hashlib.sha256(recipient.encode("utf-8")).hexdigest()

"""Erasing a customer from the ledger: the address and the content go, the outcome stays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection

from digest_pipeline.errors import InputError, UnknownKeyError
from digest_pipeline.keys import DEFAULT_TENANT
from digest_pipeline.ledger import audit, erasure, reads
from digest_pipeline.ledger.audit import Action
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.operations.decisions import require_signed


@dataclass(frozen=True, slots=True)
class Erased:
    """What an erasure came to. ``applied`` False: a dry run."""

    entries: int
    cancelled: int
    applied: bool


def erase_customer(
    ledger: Ledger,
    customer_id: str,
    *,
    digest: str | None,
    tenant: str | None,
    who: str,
    reason: str,
    apply: bool,
) -> Erased:
    """Scrub a customer's address, name and content in every period; cancel what waits to be sent.

    Kept: the operation key, hashes, outcome and attempts, which hold nothing private, so that a
    rematerialised period still knows that this customer was sent to. An unknown stays unknown, is
    never re-sent, and still settles by a look-up. Raises UnknownKeyError for nobody of that id, and
    InputError without a tenant where the id is one of a named tenant's: another tenant's customer of
    the same id is somebody else.
    """
    require_signed("an erasure", who, reason)

    def work(conn: Connection) -> Erased:
        entries = erasure.entries_of(conn, customer_id, digest, tenant)
        if not entries:
            raise UnknownKeyError(f"the ledger has no customer {customer_id!r}")
        if tenant is None:
            _require_one_tenant(conn, {entry.manifest_id for entry in entries})
        if not apply:
            waiting = sum(entry.state in ("pending", "retry") for entry in entries)
            return Erased(len(entries), waiting, False)
        done = erasure.erase(conn, entries)
        keys = [entry.operation_key for entry in entries]
        audit.record(conn, Action("erase", who, reason, digest, None, tenant, keys), dict(done))
        return Erased(done["entries"], done["cancelled"], True)

    return ledger.transact(work)


def _require_one_tenant(conn: Connection, manifest_ids: Iterable[int]) -> None:
    tenants = {header.tenant for header in reads.headers(conn, sorted(manifest_ids))}
    if tenants != {DEFAULT_TENANT}:
        raise InputError(
            f"a customer's id is one tenant's, and this one is known to: {', '.join(sorted(tenants))}. "
            "Name whose it is: --tenant"
        )

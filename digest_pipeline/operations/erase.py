"""Erasing a customer from the ledger: the address and the content go, the outcome stays."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from digest_pipeline.errors import InputError, UnknownKeyError
from digest_pipeline.ledger import audit, erasure
from digest_pipeline.ledger.audit import Action
from digest_pipeline.ledger.engine import Ledger


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
    never re-sent, and still settles by a look-up. Raises UnknownKeyError for nobody of that id.
    """
    if not reason.strip():
        raise InputError("an erasure needs a reason: it is written to the audit trail")

    def work(conn: Connection) -> Erased:
        entries = erasure.entries_of(conn, customer_id, digest, tenant)
        if not entries:
            raise UnknownKeyError(f"the ledger has no customer {customer_id!r}")
        if not apply:
            waiting = sum(entry.state in ("pending", "retry") for entry in entries)
            return Erased(len(entries), waiting, False)
        done = erasure.erase(conn, entries)
        keys = [entry.operation_key for entry in entries]
        audit.record(conn, Action("erase", who, reason, digest, None, tenant, keys), dict(done))
        return Erased(done["entries"], done["cancelled"], True)

    return ledger.transact(work)

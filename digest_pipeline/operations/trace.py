"""One customer-period from selection to cleanup: every attempt, and no private content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from digest_pipeline.instants import as_datetime
from digest_pipeline.ledger import attempts, reads
from digest_pipeline.ledger.engine import Ledger


@dataclass(frozen=True, slots=True)
class Trace:
    """A delivery and its attempts, as plain values; instants as ISO 8601 in UTC."""

    delivery: dict[str, Any]
    attempts: list[dict[str, Any]]


def trace(ledger: Ledger, operation_key: str) -> Trace:
    """Return what became of one operation key. Raises UnknownKeyError."""
    with ledger.read() as conn:
        row = reads.find_entry(conn, operation_key)
        tried = attempts.of_delivery(conn, row.manifest_id, row.entry_ordinal)
    found = _readable(row._mapping)
    found.pop("entry_ordinal")
    if found["state"] is None:
        found["state"] = "pending"
        found["hold_reason"] = "content_not_sealed"
    return Trace(found, [_readable(one._mapping) for one in tried])


def _readable(row: Any) -> dict[str, Any]:
    return {
        key: as_instant(value) if key.endswith(("_at", "_ends", "_until", "budget_from")) else value
        for key, value in row.items()
    }


def as_instant(microseconds: int | None) -> str | None:
    """Return an instant of the ledger as ISO 8601, in UTC, to the millisecond."""
    if microseconds is None:
        return None
    return as_datetime(microseconds).isoformat(timespec="milliseconds")

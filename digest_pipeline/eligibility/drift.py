"""How the customer source differs from a sealed manifest: reported, never mailed."""

from __future__ import annotations

from dataclasses import dataclass

from digest_pipeline import telemetry
from digest_pipeline.eligibility.selection import Selected, select_rows
from digest_pipeline.eligibility.source import Source
from digest_pipeline.errors import SourceError
from digest_pipeline.ledger import reads
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.periods import Period
from digest_pipeline.spec import Digest


@dataclass(frozen=True, slots=True)
class Drift:
    """Customers who would be selected now and were not, the other way round, and new addresses."""

    added: int = 0
    removed: int = 0
    readdressed: int = 0

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.readdressed)


def find_drift(
    ledger: Ledger, source: Source, digest: Digest, period: Period, manifest_ids: tuple[int, ...]
) -> Drift:
    """Compare the source, read as if freezing now, with what was frozen. Bounded memory."""
    added = readdressed = matched = 0
    with source.snapshot() as snapshot, ledger.read() as conn:
        for rows in snapshot.customers(digest.customers, period):
            entries = [
                one.entry for one in select_rows(digest, period.label, rows) if isinstance(one, Selected)
            ]
            frozen = reads.recipient_hashes(conn, [entry.operation_key for entry in entries])
            for entry in entries:
                known = frozen.get(entry.operation_key)
                if known is None:
                    added += 1
                else:
                    matched += 1
                    readdressed += known != entry.recipient_hash
        total = reads.entry_count(conn, manifest_ids)
    # A customer whom the source names twice, pages apart, matches twice.
    return Drift(added, max(0, total - matched), readdressed)


def drift_or_none(
    ledger: Ledger, source: Source, digest: Digest, period: Period, manifest_ids: tuple[int, ...]
) -> Drift | None:
    """Compare as ``find_drift`` does; None when the source cannot be read.

    A sealed period can go on without its source: only the comparison is missed, and logged.
    """
    try:
        return find_drift(ledger, source, digest, period, manifest_ids)
    except SourceError as error:
        telemetry.drift_unknown(str(error))
        return None

"""Removing generated rows after a definitive send: state and removal in one transaction, once per key."""

from __future__ import annotations

from sqlalchemy import Connection

from digest_pipeline import faults
from digest_pipeline.ledger import transitions
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.spec import Digest

PAGE = 2_000
MICROS_PER_HOUR = 3_600_000_000


def clean(ledger: Ledger, digest: Digest, manifest_ids: tuple[int, ...], run_id: str) -> int:
    """Clean what may be cleaned in these manifests; return how many deliveries.

    Only rows in ``sent`` with the proof the specification asks for, and not before its delay has
    passed or, without one, the delivery window has closed. Running it again, or late, changes
    nothing that was cleaned before.
    """
    delay = digest.cleanup.delay_hours
    waited = -1 if delay is None else int(delay * MICROS_PER_HOUR)
    cleaned = 0
    for manifest_id in manifest_ids:
        after = 0
        while True:

            def page(conn: Connection, manifest_id: int = manifest_id, after: int = after) -> list[int]:
                ordinals = transitions.clean(
                    conn, manifest_id, after, PAGE, digest.cleanup.proof, waited, run_id
                )
                faults.reach(faults.Point.INSIDE_CLEANUP)
                transitions.remove_content(conn, manifest_id, ordinals)
                return ordinals

            ordinals = ledger.transact(page)
            if not ordinals:
                break
            cleaned += len(ordinals)
            after = ordinals[-1]
    faults.reach(faults.Point.AFTER_CLEANUP_COMMIT)
    return cleaned

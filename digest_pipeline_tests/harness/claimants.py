"""What child processes do to a ledger. Imports little, so that they start fast."""

from __future__ import annotations

from sqlalchemy import Connection

from digest_pipeline.ledger import claims
from digest_pipeline.ledger.claims import Claimer
from digest_pipeline.ledger.dialects import next_tokens
from digest_pipeline.ledger.engine import Ledger

MINUTE = 60_000_000
ME = Claimer("run-1/s1", "sandbox", "a1", MINUTE)


def claim_everything(url: str, manifest: int, page: int) -> list[list[int]]:
    """Claim page by page until nothing is left; return (ordinal, token) of each."""
    taken = []
    with Ledger(url) as ledger:
        while batch := ledger.transact(lambda conn: claims.claim_due(conn, manifest, page, ME)).claimed:
            taken += [[one.ordinal, one.token] for one in batch]
    return taken


def take_tokens(url: str, count: int) -> list[int]:
    """Read and then write in one transaction, ``count`` times; return what was written."""
    seen: list[int] = []

    def one(conn: Connection) -> int:
        # The read first: in a deferred transaction the write after it is what fails at once in WAL mode.
        conn.exec_driver_sql("SELECT count(*) FROM delivery").scalar_one()
        return next_tokens(conn, 1)[0]

    with Ledger(url) as ledger:
        for _ in range(count):
            seen.append(ledger.transact(one))
    return seen

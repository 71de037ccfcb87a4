"""Closing a period: what still waits of it, after its window, is dead and no longer held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row

from digest_pipeline.errors import InputError, UnknownKeyError
from digest_pipeline.instants import as_datetime
from digest_pipeline.ledger import audit, reads, transitions
from digest_pipeline.ledger.audit import Action
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.periods import Period
from digest_pipeline.spec import Digest
from digest_pipeline.states import CLAIMABLE


@dataclass(frozen=True, slots=True)
class Closed:
    """What closing a period comes to: deliveries that end as dead letters of class ``window``."""

    ended: int
    applied: bool


def close_period(
    ledger: Ledger, digest: Digest, period: Period, *, who: str, reason: str, apply: bool
) -> Closed:
    """End what waits of a period whose window, and any permission to be late, is over. Audited.

    The dead letters keep their content and key: a replay can still send them. Unknowns stay unknown.
    Raises InputError while the window is open, and UnknownKeyError for a period that was never frozen.
    """
    if not (reason.strip() and who.strip()):
        raise InputError("closing a period needs a reason and who gives it: both go to the audit trail")

    def work(conn: Connection) -> Closed:
        ids = reads.manifest_ids(conn, digest.name, period.label)
        if not ids:
            raise UnknownKeyError(f"{digest.name} {period.label} has no manifest: there is nothing to close")
        _require_over(reads.headers(conn, ids), reads.now(conn), digest, period)
        if not apply:
            states = reads.summarise(conn, ids).states
            return Closed(sum(states[state] for state in CLAIMABLE), False)
        ended = sum(
            transitions.close_window(conn, id_) + transitions.close_manifest(conn, id_) for id_ in ids
        )
        if ended:
            audit.record(conn, Action("close", who, reason, digest.name, period.label), {"ended": ended})
        return Closed(ended, True)

    return ledger.transact(work)


def _require_over(headers: list[Row[Any]], now: int, digest: Digest, period: Period) -> None:
    until = max(max(row.window_closes_at, row.late_until or 0) for row in headers)
    if until > now:
        at = as_datetime(until).isoformat(timespec="minutes")
        raise InputError(
            f"{digest.name} {period.label} may be sent until {at}; to stop it before: "
            f"digest pause --digest {digest.name}"
        )

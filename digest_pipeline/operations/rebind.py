"""Binding the ledger to this database and environment: after a move, or after restoring a backup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, select

from digest_pipeline.errors import InputError
from digest_pipeline.instants import as_datetime
from digest_pipeline.ledger import audit, migrate, reads, restored
from digest_pipeline.ledger.audit import Action
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.schema import ledger_identity


@dataclass(frozen=True, slots=True)
class Account:
    """Which gateway and account a digest is sent through."""

    gateway: str
    account: str


@dataclass(frozen=True, slots=True)
class Rebound:
    """What binding came to. ``in_doubt``: manifests a lost copy may have sent; ``unknown``: their rows."""

    environment: str
    in_doubt: int = 0
    unknown: int = 0


def rebind(
    ledger: Ledger,
    environment: str,
    *,
    who: str,
    reason: str,
    restored_from: datetime | None = None,
    accounts: Mapping[str, Account] | None = None,
) -> Rebound:
    """Bind the ledger, so that it may send again and its copies no longer. Audited.

    ``restored_from``: the instant of the backup it was restored from. Everything that could have been sent
    since becomes unknown and is settled by evidence like any other: at once where ``accounts`` names the
    digest's account, else when that digest is next delivered. Periods frozen from now on that could have
    been sent before now begin as unknown, too. Dead letters from before are never replayed.

    Raises InputError for an instant in the future, without a time zone, or before the ledger's birth.
    """
    if not (reason.strip() and who.strip()):
        raise InputError("binding a ledger needs a reason and who gives it: both go to the audit trail")

    def work(conn: Connection) -> Rebound:
        since = None if restored_from is None else _instant(conn, restored_from)
        migrate.rebind(conn, environment)
        done = Rebound(environment)
        if since is not None:
            done = _doubt(conn, environment, since, accounts or {})
        effect = {"environment": environment, "in_doubt": done.in_doubt, "unknown": done.unknown}
        audit.record(conn, Action("rebind", who, reason), effect)
        return done

    return ledger.transact(work)


def _doubt(conn: Connection, environment: str, since: int, accounts: Mapping[str, Account]) -> Rebound:
    in_doubt = restored.mark(conn, since)
    unknown = 0
    for digest, one in accounts.items():
        for period in reads.frozen_periods(conn, digest):
            ids = reads.manifest_ids(conn, digest, period)
            unknown += restored.settle_doubt(conn, ids, one.gateway, one.account)
    return Rebound(environment, in_doubt, unknown)


def _instant(conn: Connection, at: datetime) -> int:
    if at.tzinfo is None:
        raise InputError(
            f"the backup's time needs a time zone, e.g. {at.isoformat(timespec='seconds')}+00:00"
        )
    since = int(at.timestamp() * 1_000_000)
    born, now = conn.execute(select(ledger_identity.c.created_at)).scalar_one(), reads.now(conn)
    if since > now:
        raise InputError(f"the backup's time {at.isoformat()} lies in the future")
    if since < born:
        began = as_datetime(born).isoformat(timespec="seconds")
        raise InputError(f"the backup's time {at.isoformat()} lies before this ledger began ({began})")
    return since

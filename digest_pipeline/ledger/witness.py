"""A file outside the ledger that remembers how far the ledger had come: what a restored backup cannot fake.

A backup restored into the same database or file has the same fingerprint as before. But it knows fewer
attempts than this host has seen it know. Each host keeps its own witness in DIGEST_HOME; a host that never
worked on the ledger, or has lost its folder, notices nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from sqlalchemy import Connection, func, select

from digest_pipeline.errors import EnvironmentMismatchError
from digest_pipeline.ledger.schema import attempt, ledger_identity


@dataclass(frozen=True, slots=True)
class Seen:
    """How far a ledger had come: its birth, how often it was bound, its newest recorded attempt."""

    created_at: int
    epoch: int
    token: int


class Witness:
    """What this host has seen of one ledger. Its file is written by replacement, without any lock."""

    def __init__(self, home: Path, ledger: str) -> None:
        self._path = home / "seen" / f"{hashlib.sha256(ledger.encode()).hexdigest()[:16]}.json"

    def check(self, conn: Connection) -> None:
        """Raise EnvironmentMismatchError for a ledger that has forgotten something; else remember it.

        Only committed attempts count: PostgreSQL may lose the last values of a sequence in a crash, but
        never a commit that somebody has read.
        """
        now, before = _seen(conn), self._read()
        if before is not None and before.created_at == now.created_at:
            if (now.epoch, now.token) < (before.epoch, before.token):
                raise EnvironmentMismatchError(
                    "this ledger has forgotten attempts that this host has seen in it: it was restored from a "
                    "backup. Nothing is sent until 'digest db rebind --restored TIME' says from when that is"
                )
            if now == before:
                return
        self._write(now)

    def _read(self) -> Seen | None:
        try:
            return Seen(**json.loads(self._path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def _write(self, seen: Seen) -> None:
        # A host that may not write has no witness; that must not keep it from sending.
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new = self._path.with_suffix(f".{os.getpid()}")
            new.write_text(json.dumps(asdict(seen)), encoding="utf-8")
            new.replace(self._path)


def _seen(conn: Connection) -> Seen:
    token = select(func.coalesce(func.max(attempt.c.token), 0)).scalar_subquery()
    row = conn.execute(select(ledger_identity.c.created_at, ledger_identity.c.token_epoch, token)).one()
    return Seen(*row)

"""The store of an emulated provider: beside messages also whole calls, and what it can be asked by."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import NamedTuple

from digest_pipeline.lab.sandbox.store import Store

_SCHEMA = """
CREATE TABLE IF NOT EXISTS call (
    id INTEGER PRIMARY KEY, idempotency_key TEXT, at_us INTEGER, body_hash BLOB, status INTEGER, answer BLOB
);
CREATE INDEX IF NOT EXISTS call_key ON call (idempotency_key);
CREATE TABLE IF NOT EXISTS reference (text TEXT PRIMARY KEY, operation_key TEXT) WITHOUT ROWID;
"""


class EarlierCall(NamedTuple):
    """A call of which something was accepted, and its true answer."""

    at_us: int
    body_hash: bytes
    status: int
    answer: bytes


class CallStore(Store):
    """As ``Store``; what is added here is committed together with the arrivals added before it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._db.executescript(_SCHEMA)

    def earlier_call(self, key: str, since_us: int) -> EarlierCall | None:
        """Return the first call under a key since an instant, uncommitted ones included."""
        sql = "SELECT at_us, body_hash, status, answer FROM call WHERE idempotency_key = ? AND at_us > ? ORDER BY id"
        row = self._db.execute(sql, (key, since_us)).fetchone()
        return EarlierCall(*row) if row else None

    def add_call(self, key: str, at_us: int, body: bytes, status: int, answer: bytes) -> None:
        """Remember a call."""
        self._write()
        values = (key, at_us, hashlib.sha256(body).digest(), status, answer)
        self._db.execute("INSERT INTO call VALUES (NULL, ?, ?, ?, ?, ?)", values)

    def add_reference(self, text: str, operation_key: str) -> None:
        """Remember that the provider can be asked about a key by this text."""
        self._write()
        self._db.execute("INSERT OR REPLACE INTO reference VALUES (?, ?)", (text, operation_key))

    def referred_to(self, text: str) -> str:
        """Return the operation key behind a text, which is the text itself where nothing else was said."""
        row = self._db.execute("SELECT operation_key FROM reference WHERE text = ?", (text,)).fetchone()
        return str(row[0]) if row else text

    async def committed(self) -> None:
        """Return when all that was added so far is in the file."""
        if self._group is not None:
            # The future is shared: a client that leaves must not cancel it for the others.
            await asyncio.shield(self._group)

    def empty(self) -> None:
        """Forget everything; message ids given before are never given again."""
        super().empty()
        self._db.executescript("DELETE FROM call; DELETE FROM reference;")

"""The sandbox's memory: one SQLite file with a row for each arrival of each message.

What a client was told had been committed before the answer left, so the file outlives a SIGKILL of
the server. ``synchronous`` is off: pages that reached the operating system survive the death of the
process, and power cuts are not what this store is for. No address is ever in it, only its SHA-256.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from digest_pipeline.lab.sandbox.records import SCHEMA, Arrival, Earlier

GROUP_SECONDS = 0.002
"""How long arrivals are collected before one commit covers them all."""

MAX_LISTED = 100
"""Messages that one look-up lists at most."""

_BITS = 2**27
_INSERT = "INSERT INTO arrival VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_EARLIER = """
SELECT at_us, accepted, body_hash, message_id FROM arrival
WHERE operation_key = ? AND attempt IS NOT NULL ORDER BY id
"""
_FOUND = """
SELECT message_id FROM arrival
WHERE operation_key = ? AND accepted = 1 AND at_us BETWEEN ? AND ? ORDER BY id LIMIT ?
"""


class SeenKeys:
    """A set that may hold more than was put in and never less, in 16 MB however much that is.

    Nearly every key is new; for those it saves the store a look into the file.
    """

    def __init__(self) -> None:
        self._bits = bytearray(_BITS // 8)

    def add(self, key: str) -> None:
        """Remember a key."""
        place = hash(key) % _BITS
        self._bits[place >> 3] |= 1 << (place & 7)

    def __contains__(self, key: str) -> bool:
        place = hash(key) % _BITS
        return bool(self._bits[place >> 3] & 1 << (place & 7))


class Store:
    """The only writer of the file. All calls come from one event loop."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, cached_statements=64)
        for pragma in ("journal_mode=WAL", "synchronous=OFF", "cache_size=-65536", "temp_store=MEMORY"):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.executescript(SCHEMA)
        self.group_seconds = GROUP_SECONDS
        self.on_commit: Callable[[], None] = lambda: None
        self._group: asyncio.Future[None] | None = None
        self._unwritten: list[Arrival] = []
        self._open = (0, 0)
        """Arrivals and acceptances that wait for the commit; only durable ones are counted."""
        self._load()

    def _load(self) -> None:
        self._db.execute("INSERT OR IGNORE INTO meta VALUES ('identity', ?)", (secrets.token_hex(4),))
        self._seen = SeenKeys()
        for (key,) in self._db.execute("SELECT operation_key FROM arrival"):
            self._seen.add(key)
        (self._identity,) = self._db.execute("SELECT value FROM meta WHERE name = 'identity'").fetchone()
        self._requests, self._messages, self.arrivals, self.accepted = self._numbers(
            "SELECT coalesce(max(request), 0), coalesce(max(id), 0), count(*), coalesce(sum(accepted), 0) FROM arrival"
        )

    def _numbers(self, sql: str) -> tuple[int, ...]:
        found: tuple[int, ...] = self._db.execute(sql).fetchone()
        return found

    def next_request(self) -> int:
        """Return a number for a request that no other has."""
        self._requests += 1
        return self._requests

    def next_message_id(self) -> str:
        """Return an id that this store never gave before."""
        self._messages += 1
        return f"{self._identity}-{self._messages:08d}"

    def earlier(self, key: str) -> list[Earlier]:
        """Return the judged arrivals of a key, oldest first, uncommitted ones included."""
        if key not in self._seen:
            return []
        self._write()
        return [Earlier(*row) for row in self._db.execute(_EARLIER, (key,))]

    def found(self, key: str, since_us: int, until_us: int) -> list[str]:
        """Return the message ids a key was accepted under between the two instants, oldest first."""
        self._write()
        rows = self._db.execute(_FOUND, (key, since_us, until_us, MAX_LISTED))
        return [str(message_id) for (message_id,) in rows]

    def add(self, arrival: Arrival) -> asyncio.Future[None]:
        """Record one arrival; the future is done when it is committed."""
        if self._group is None:
            loop = asyncio.get_running_loop()
            self._group = loop.create_future()
            loop.call_later(self.group_seconds, self._commit)
        self._unwritten.append(arrival)
        self._seen.add(arrival.operation_key)
        self._open = (self._open[0] + 1, self._open[1] + arrival.accepted)
        return self._group

    def _write(self) -> None:
        """Put what was added into the open transaction, so that this connection sees it."""
        if not self._unwritten:
            return
        if not self._db.in_transaction:
            self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany(_INSERT, self._unwritten)
        self._unwritten.clear()

    def _commit(self) -> None:
        group, self._group = self._group, None
        if group is None:
            return
        try:
            self._write()
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._unwritten.clear()
            self._open = (0, 0)
            self._db.rollback()
            group.set_exception(error)
            return
        self.arrivals, self.accepted = self.arrivals + self._open[0], self.accepted + self._open[1]
        self._open = (0, 0)
        group.set_result(None)
        self.on_commit()

    def rules(self) -> list[tuple[int, str]]:
        """Return the rules in force, in the order they were added."""
        return self._db.execute("SELECT id, text FROM rule WHERE active = 1 ORDER BY id").fetchall()

    def add_rule(self, text: str) -> int:
        """Store a rule and return its id; durable on return."""
        self._commit()
        return int(self._db.execute("INSERT INTO rule (text, active) VALUES (?, 1)", (text,)).lastrowid or 0)

    def drop_rules(self) -> None:
        """Take all rules out of force."""
        self._commit()
        self._db.execute("UPDATE rule SET active = 0")

    def mark_once(self, name: str) -> bool:
        """Return whether this is the first time the store hears the name."""
        self._commit()
        return self._db.execute("INSERT OR IGNORE INTO meta VALUES (?, '')", (name,)).rowcount == 1

    def count_new_keys(self) -> int:
        """Return how many keys were judged at least once."""
        self._write()
        return self._numbers("SELECT count(*) FROM arrival WHERE attempt = 1")[0]

    def hits_by_rule(self) -> dict[int, int]:
        """Return how many requests each rule has hit."""
        sql = "SELECT rule, count(*) FROM arrival WHERE rule IS NOT NULL GROUP BY rule"
        return dict(self._db.execute(sql).fetchall())

    def rows(self, sql: str, values: tuple[object, ...]) -> Iterator[tuple[Any, ...]]:
        """Run one of the admin side's readings, uncommitted rows included."""
        self._write()
        return self._db.execute(sql, values)

    def empty(self) -> None:
        """Forget all arrivals and rules; message ids given before are never given again."""
        self._commit()
        self._db.executescript("DELETE FROM arrival; DELETE FROM rule; DELETE FROM meta;")
        self._load()

    def close(self) -> None:
        """Commit what is open and close the file."""
        self._commit()
        self._db.close()

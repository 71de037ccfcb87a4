"""What the store holds: the schema, and the shape of a row."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rule (id INTEGER PRIMARY KEY AUTOINCREMENT, text TEXT NOT NULL, active INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS arrival (
    id INTEGER PRIMARY KEY,
    request INTEGER NOT NULL,
    at_us INTEGER NOT NULL,
    route TEXT NOT NULL,
    operation_key TEXT NOT NULL,
    attempt INTEGER,
    verdict TEXT NOT NULL,
    status INTEGER NOT NULL,
    accepted INTEGER NOT NULL,
    fault TEXT,
    rule INTEGER,
    body_hash BLOB,
    recipients INTEGER NOT NULL,
    recipient_hash BLOB,
    message_id TEXT
);
CREATE INDEX IF NOT EXISTS arrival_key ON arrival (operation_key, accepted);
"""


class Verdict(StrEnum):
    """What became of one message of one request."""

    ACCEPTED = "accepted"
    REPLAYED = "replayed"
    DUPLICATE = "duplicate"
    MISMATCH = "mismatch"
    IN_FLIGHT = "in_flight"
    INVALID = "invalid"
    FAULT = "fault"
    THROTTLED = "throttled"
    UNAUTHORIZED = "unauthorized"
    LOOKED_UP = "looked_up"


class Arrival(NamedTuple):
    """One message of one request, or one look-up. ``attempt`` counts the key's judged requests.

    ``status`` is 0 when no answer was given. ``at_us`` is wall time in microseconds.
    """

    request: int
    at_us: int
    route: str
    operation_key: str
    attempt: int | None
    verdict: Verdict
    status: int
    accepted: int = 0
    fault: str | None = None
    rule: int | None = None
    body_hash: bytes | None = None
    recipients: int = 0
    recipient_hash: bytes | None = None
    message_id: str | None = None


class Earlier(NamedTuple):
    """An earlier judged arrival of a key."""

    at_us: int
    accepted: int
    body_hash: bytes | None
    message_id: str | None

"""What the provider really accepted, read from its store without asking the server.

All readings stream: memory does not grow with the number of messages.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from digest_pipeline.lab.sandbox.records import Verdict


class Duplicate(NamedTuple):
    """A key that was accepted more than once."""

    operation_key: str
    times: int


class Acceptance(NamedTuple):
    """One message the provider took responsibility for. Hashes are SHA-256 in hex."""

    operation_key: str
    message_id: str
    at_us: int
    body_hash: str
    recipients: int
    recipient_hash: str
    fault: str | None


_ACCEPTANCE = """
SELECT operation_key, message_id, at_us, lower(hex(body_hash)), recipients, lower(hex(recipient_hash)), fault
FROM arrival WHERE accepted = 1
"""
_INSTANTS = "SELECT at_us FROM arrival WHERE route IN ('send', 'batch') OR ? ORDER BY at_us"
_KEYS = (
    "SELECT operation_key FROM arrival GROUP BY operation_key HAVING max(accepted) = 1 ORDER BY operation_key"
)
_DUPLICATES = """
SELECT operation_key, sum(accepted) FROM arrival
GROUP BY operation_key HAVING sum(accepted) > 1 ORDER BY operation_key
"""


class Oracle:
    """A read-only view of one store; each call sees the last commit."""

    def __init__(self, store: Path) -> None:
        if not store.exists():
            raise FileNotFoundError(f"there is no sandbox store at {store}")
        self._uri = f"{store.absolute().as_uri()}?mode=ro"

    def _rows(self, sql: str, *values: object) -> Iterator[tuple[object, ...]]:
        with closing(sqlite3.connect(self._uri, uri=True)) as connection:
            yield from connection.execute(sql, values)

    def _count(self, sql: str, *values: object) -> int:
        with closing(sqlite3.connect(self._uri, uri=True)) as connection:
            return int(connection.execute(sql, values).fetchone()[0] or 0)

    def duplicates(self) -> Iterator[Duplicate]:
        """Yield every key accepted more than once, with how often, in key order."""
        for key, times in self._rows(_DUPLICATES):
            yield Duplicate(str(key), int(str(times)))

    def accepted_keys(self) -> Iterator[str]:
        """Yield each accepted key once, in key order."""
        for (key,) in self._rows(_KEYS):
            yield str(key)

    def accepted_count(self) -> int:
        """Return how many messages were accepted, duplicates counted."""
        return self._count("SELECT count(*) FROM arrival WHERE accepted = 1")

    def acceptances(self, key: str | None = None) -> Iterator[Acceptance]:
        """Yield acceptances of one key, or of all, oldest first."""
        if key is None:
            rows = self._rows(f"{_ACCEPTANCE} ORDER BY id")
        else:
            rows = self._rows(f"{_ACCEPTANCE} AND operation_key = ? ORDER BY id", key)
        for row in rows:
            yield Acceptance(*row)  # type: ignore[arg-type]  # the columns above, in this order

    def recipients_other_than_one(self) -> int:
        """Return how many accepted messages had more or fewer than one recipient."""
        return self._count("SELECT count(*) FROM arrival WHERE accepted = 1 AND recipients <> 1")

    def attempts(self, key: str) -> int:
        """Return how many judged requests the key had: not those the rate limit or the door kept out."""
        return self._count("SELECT count(*) FROM arrival WHERE operation_key = ? AND attempt > 0", key)

    def verdicts(self) -> dict[Verdict, int]:
        """Return how many messages met each verdict."""
        rows = self._rows("SELECT verdict, count(*) FROM arrival GROUP BY verdict")
        return {Verdict(str(verdict)): int(str(count)) for verdict, count in rows}

    def faults_hit(self) -> dict[str, int]:
        """Return how many requests each scripted fault has hit."""
        rows = self._rows(
            "SELECT fault, count(*) FROM arrival WHERE rule IS NOT NULL GROUP BY fault ORDER BY fault"
        )
        return {str(fault): int(str(count)) for fault, count in rows}

    def max_arrivals(self, window_seconds: float, look_ups: bool = True) -> int:
        """Return the most messages (and look-ups) that arrived within any half-open window this long.

        Those that got 429 count too: they arrived.
        """
        width, count, most = round(window_seconds * 1e6), 0, 0
        last = self._rows(_INSTANTS, look_ups)
        oldest: int | None = None
        for (at,) in self._rows(_INSTANTS, look_ups):
            while oldest is None or oldest <= int(str(at)) - width:
                count -= oldest is not None
                oldest = int(str(next(last)[0]))
            count += 1
            most = max(most, count)
        return most

    def throttled(self) -> int:
        """Return how many messages and look-ups the rate limit turned away."""
        return self.verdicts().get(Verdict.THROTTLED, 0)

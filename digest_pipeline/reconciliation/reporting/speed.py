"""How fast a period was sent: accepted attempts, run by run, as the ledger has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from digest_pipeline.ledger.schema import attempt

MICROS = 1_000_000


@dataclass(frozen=True, slots=True)
class Speed:
    """``seconds`` from the first claim to the last answer of what was accepted."""

    accepted: int = 0
    seconds: float = 0.0

    @property
    def messages_per_second(self) -> float:
        """Accepted messages a second; 0 when nothing was accepted."""
        return self.accepted / self.seconds if self.seconds > 0 else 0.0


def in_all(runs: Iterable[Speed]) -> Speed:
    """Return several runs as one, without the time between them."""
    each = list(runs)
    return Speed(sum(one.accepted for one in each), sum(one.seconds for one in each))


def read_speed(conn: Connection, ids: Sequence[int]) -> dict[str, Speed]:
    """Return the speed of each run that got something accepted, by its id, over all of its senders."""
    a = attempt.c
    query = (
        select(a.claimed_by, func.count(), func.min(a.claimed_at), func.max(a.ended_at))
        .where(a.manifest_id.in_(ids), a.outcome == "accepted")
        .group_by(a.claimed_by)
    )
    spans: dict[str, list[tuple[int, int, int]]] = {}
    for claimed_by, count, first, last in conn.execute(query):
        spans.setdefault(claimed_by.partition("/")[0], []).append((count, first, last))
    return {run: _over(senders) for run, senders in spans.items()}


def _over(senders: Sequence[tuple[int, int, int]]) -> Speed:
    first, last = min(one[1] for one in senders), max(one[2] for one in senders)
    return Speed(sum(one[0] for one in senders), (last - first) / MICROS)

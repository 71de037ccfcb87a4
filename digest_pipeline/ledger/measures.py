"""What a report counts and measures over some manifests: every answer is a handful of numbers.

``listing`` is the one that is not, and comes page by page. Nothing here returns an address.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, and_, case, func, select

from digest_pipeline.ledger.schema import attempt, delivery, manifest, manifest_entry, rate_gate
from digest_pipeline.states import REACHED

_d = delivery.c
Ids = Sequence[int]


def entry_rows(conn: Connection, ids: Ids) -> dict[int, int]:
    """Return how many entries each manifest has, counted."""
    column = manifest_entry.c.manifest_id
    query = select(column, func.count()).where(column.in_(ids)).group_by(column)
    return dict(conn.execute(query).tuples().all())


def state_rows(conn: Connection, ids: Ids) -> dict[int, dict[str, int]]:
    """Return how many deliveries of each manifest are in which state."""
    query = select(_d.manifest_id, _d.state, func.count()).where(_d.manifest_id.in_(ids))
    found: dict[int, dict[str, int]] = defaultdict(dict)
    for manifest_id, state, count in conn.execute(query.group_by(_d.manifest_id, _d.state)):
        found[manifest_id][state] = count
    return found


def reached_on_time(conn: Connection, ids: Ids) -> dict[int, int]:
    """Return how many of each manifest were sent inside its window, or a granted lateness."""
    closes, late = manifest.c.window_closes_at, manifest.c.late_until
    deadline = case((late > closes, late), else_=closes)
    query = (
        select(_d.manifest_id, func.count())
        .join(manifest, manifest.c.id == _d.manifest_id)
        .where(_d.manifest_id.in_(ids), _d.state.in_(sorted(REACHED)), _d.finished_at <= deadline)
        .group_by(_d.manifest_id)
    )
    return dict(conn.execute(query).tuples().all())


@dataclass(frozen=True, slots=True)
class Tries:
    """How many attempts ended this way, and after how many of them another one was made."""

    outcome: str
    failure_class: str | None
    attempts: int
    tried_again: int

    @property
    def retry_rate(self) -> float:
        """The share of these attempts that another one followed."""
        return self.tried_again / self.attempts if self.attempts else 0.0


def tries(conn: Connection, ids: Ids) -> list[Tries]:
    """Return the attempts by how they ended, the most frequent first."""
    later = func.lead(attempt.c.token).over(
        partition_by=(attempt.c.manifest_id, attempt.c.ordinal), order_by=attempt.c.token
    )
    each = (
        select(attempt.c.outcome, attempt.c.failure_class, later.label("later"))
        .where(attempt.c.manifest_id.in_(ids))
        .subquery()
    )
    query = select(each.c.outcome, each.c.failure_class, func.count(), func.count(each.c.later))
    grouped = query.group_by(each.c.outcome, each.c.failure_class)
    found = [Tries(*row) for row in conn.execute(grouped)]
    return sorted(found, key=lambda one: (-one.attempts, one.outcome, one.failure_class or ""))


@dataclass(frozen=True, slots=True)
class Delays:
    """Seconds: the median, the 95th percentile and the longest."""

    p50: float
    p95: float
    longest: float


def claim_delays(conn: Connection, ids: Ids) -> Delays | None:
    """Return how long deliveries waited for their first claim; None when nothing was ever claimed.

    Counted from when a row could first be claimed: its content sealed and its window open.
    """
    sealed, opens = manifest.c.content_sealed_at, manifest.c.window_opens_at
    ready = case((opens > sealed, opens), else_=sealed)
    first = (
        select(attempt.c.manifest_id, func.min(attempt.c.claimed_at).label("claimed_at"))
        .where(attempt.c.manifest_id.in_(ids))
        .group_by(attempt.c.manifest_id, attempt.c.ordinal)
        .subquery()
    )
    delay = (first.c.claimed_at - ready).label("delay")
    numbered = (
        select(
            delay,
            func.row_number().over(order_by=delay).label("number"),
            func.count().over().label("total"),
        )
        .join(manifest, manifest.c.id == first.c.manifest_id)
        .where(sealed.is_not(None))
        .subquery()
    )
    total = numbered.c.total
    ranks = ((total + 1) // 2, (total * 95 + 99) // 100, total)
    picks = [func.max(case((numbered.c.number == rank, numbered.c.delay))) for rank in ranks]
    row = conn.execute(select(*picks)).one()
    return None if row[2] is None else Delays(*(max(0.0, value / 1e6) for value in row))


def reached_between(conn: Connection, ids: Ids) -> tuple[int, int] | None:
    """Return the instants of the first and the last send; None when nothing was sent."""
    query = select(func.min(_d.finished_at), func.max(_d.finished_at)).where(
        _d.manifest_id.in_(ids), _d.state.in_(sorted(REACHED))
    )
    first, last = conn.execute(query).one()
    return None if first is None else (first, last)


def reached_per(conn: Connection, ids: Ids, origin: int, width: int) -> dict[int, int]:
    """Return sends by how many ``width`` microseconds after ``origin`` they were accepted."""
    step = ((_d.finished_at - origin) // width).label("step")
    query = select(step, func.count()).where(_d.manifest_id.in_(ids), _d.state.in_(sorted(REACHED)))
    return {int(number): count for number, count in conn.execute(query.group_by(step))}


def halted_gates(conn: Connection, gateway: str) -> dict[str, str]:
    """Return the halted gates of one kind of gateway, with why."""
    query = select(rate_gate.c.name, rate_gate.c.halt_reason).where(
        rate_gate.c.halt_reason.is_not(None), rate_gate.c.name.startswith(f"{gateway}:", autoescape=True)
    )
    return dict(conn.execute(query.order_by(rate_gate.c.name)).tuples().all())


def listing(conn: Connection, manifest_id: int, page: int) -> Iterator[Sequence[Row[Any]]]:
    """Yield a manifest's entries in pages by ordinal, each with its delivery (NULLs: it has none).

    Columns: ordinal, operation_key, customer_id, state, proof, attempts, reason, finished_at.
    """
    entry = manifest_entry.c
    query = (
        select(
            entry.ordinal,
            entry.operation_key,
            entry.customer_id,
            _d.state,
            _d.proof,
            func.coalesce(_d.attempts, 0).label("attempts"),
            func.coalesce(_d.suppression, _d.hold_reason, _d.failure_class).label("reason"),
            _d.finished_at,
        )
        .select_from(manifest_entry)
        .outerjoin(delivery, and_(_d.manifest_id == entry.manifest_id, _d.ordinal == entry.ordinal))
        .where(entry.manifest_id == manifest_id)
        .order_by(entry.ordinal)
        .limit(page)
    )
    after = 0
    while rows := conn.execute(query.where(entry.ordinal > after)).all():
        yield rows
        after = rows[-1].ordinal

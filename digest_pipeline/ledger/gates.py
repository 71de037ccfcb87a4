"""The rate gates' rows: locked, read and written inside the transaction that claims."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, select, update

from digest_pipeline.ledger.dialects import insert_new, ledger_now, locked
from digest_pipeline.ledger.schema import rate_gate


@dataclass(frozen=True, slots=True)
class GateState:
    """One gate as stored. Instants in microseconds; ``next_free_at`` is GCRA's arrival time."""

    name: str
    per_second: float
    burst: int
    next_free_at: int
    closed_until: int = 0
    halt_reason: str | None = None
    probe_at: int | None = None

    @property
    def is_sound(self) -> bool:
        """Whether the stored numbers can be used; a gate that is not sound lets one through a second."""
        return math.isfinite(self.per_second) and self.per_second > 0 and self.burst > 0


def configure(conn: Connection, name: str, per_second: float, burst: int) -> None:
    """Set a gate's budget, keeping what it has already granted and whether it is closed or halted."""
    budget = {"per_second": per_second, "burst": burst}
    change = update(rate_gate).where(rate_gate.c.name == name).values(budget)
    if conn.execute(change).rowcount == 0:
        fresh = {"name": name, **budget, "next_free_at": ledger_now(), "closed_until": 0}
        # Senders that start at the same moment all find none: one makes it, the others change it.
        if not insert_new(conn, rate_gate, fresh):
            conn.execute(change)


def lock(conn: Connection, names: Iterable[str]) -> tuple[int, dict[str, GateState]]:
    """Lock gates in name order (so that two claims never wait for each other); return the ledger's
    time and the gates.
    """
    query = select(ledger_now().label("now"), rate_gate).where(rate_gate.c.name.in_(sorted(names)))
    rows = conn.execute(locked(conn, query.order_by(rate_gate.c.name))).all()
    gates = {
        row.name: GateState(
            row.name,
            row.per_second if row.per_second is not None else math.nan,
            row.burst,
            row.next_free_at,
            row.closed_until,
            row.halt_reason,
            row.probe_at,
        )
        for row in rows
    }
    # Read again after the locks are held: waiting for one may have taken a while.
    now = conn.execute(select(ledger_now())).scalar_one()
    return now, gates


def save(conn: Connection, gate: GateState) -> None:
    """Write a gate that this transaction has locked."""
    conn.execute(
        update(rate_gate)
        .where(rate_gate.c.name == gate.name)
        .values(
            next_free_at=gate.next_free_at,
            closed_until=gate.closed_until,
            halt_reason=gate.halt_reason,
            probe_at=gate.probe_at,
        )
    )


def read(conn: Connection, name: str) -> GateState | None:
    """Return a gate without locking it."""
    row = conn.execute(select(rate_gate).where(rate_gate.c.name == name)).one_or_none()
    return GateState(**row._mapping) if row else None

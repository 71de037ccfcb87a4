"""One claim transaction: gate, rows, charge, commit. Nothing else is ever in it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from digest_pipeline import faults
from digest_pipeline.delivery import rate_gate
from digest_pipeline.delivery.plan import MICROS, SendPlan
from digest_pipeline.ledger import claims, gates
from digest_pipeline.ledger.claims import Batch, Claimed

HORIZON = 400_000
"""Microseconds ahead for which permits are taken: long enough to keep a sender busy over a claim."""

LOOK_FOR_UNKNOWN = 0.5
"""Seconds between searches for unknown rows that may be sent again, while others are due."""


@dataclass(frozen=True, slots=True)
class Permitted:
    """A claimed row and when it may go out, on this process's monotonic clock (seconds)."""

    claimed: Claimed
    start: float
    fence: float
    """No request may start after this, on ``delivery.clock``: its time-out would outlive the lease."""
    probe: bool = False
    """Sent to see whether a halted account works again."""


@dataclass(slots=True)
class Taken:
    """What a claim brought. ``again_in``: seconds until the gate grants; None: the gate is not why."""

    rows: list[Permitted] = field(default_factory=list)
    suppressed: int = 0
    again_in: float | None = None
    halted: str | None = None
    seen_at: float = 0.0
    """When the gate was read, on the monotonic clock."""


@dataclass(slots=True)
class Turns:
    """Whose turn it is: manifests one after another, each with its place in the open-work index.

    A held-open snapshot elsewhere keeps settled rows' index entries alive; starting past them keeps
    a claim as cheap at the end as at the start. ``rewind`` looks at everything once more.
    """

    manifest_ids: Sequence[int]
    cursors: dict[int, tuple[int, int]] = field(default_factory=dict)
    first: int = 0
    looked: dict[int, float] = field(default_factory=dict)
    """When each manifest was searched for unknown rows."""
    skipped: bool = False

    def order(self) -> list[int]:
        """Return the manifests, another one first each time."""
        ids = list(self.manifest_ids)
        self.first = (self.first + 1) % max(1, len(ids))
        return ids[self.first :] + ids[: self.first]

    def rewind(self) -> bool:
        """Forget the places; returns whether there were any."""
        had = bool(self.cursors) or self.skipped
        self.cursors.clear()
        self.looked.clear()
        self.skipped = False
        return had

    def time_for_unknown(self, manifest_id: int) -> bool:
        """Whether to search for unknown rows now: nearly always there are none, and it is a query."""
        now = time.monotonic()
        if now - self.looked.get(manifest_id, -math.inf) < LOOK_FOR_UNKNOWN:
            self.skipped = True
            return False
        self.looked[manifest_id] = now
        return True


def claim(
    conn: Connection, plan: SendPlan, turns: Turns, wanted: int, anchor: float, lead: float = 0.0
) -> Taken:
    """Take up to ``wanted`` permits and as many due rows. Commit before any of them is sent.

    ``anchor``: ``delivery.clock`` read before this transaction began; leases are counted from it.
    ``lead``: seconds this transaction will still take, so that permits aren't old when it commits.
    """
    now, locked = gates.lock(conn, [plan.gate])
    read_at = time.monotonic()
    faults.reach(faults.Point.AFTER_GATE)
    gate = locked[plan.gate]
    grant = rate_gate.grant(gate, now + int(lead * MICROS), wanted, HORIZON)
    if not grant.starts:
        again_in = None if grant.again_at is None else max(0.0, (grant.again_at - now) / MICROS)
        return Taken(again_in=again_in, halted=gate.halt_reason if grant.halted else None)
    # The gate let some start: if none is claimed, it is because none is due, not because of the gate.
    taken = Taken(seen_at=read_at)
    rows: list[Claimed] = []
    for manifest_id in turns.order():
        for batch in _claim_in(conn, plan, turns, manifest_id, len(grant.starts) - len(rows)):
            rows.extend(batch.claimed)
            taken.suppressed += batch.suppressed
    used = grant.starts[: len(rows)]
    gates.save(conn, rate_gate.charge(gate, used, now))
    sending = plan.digest.sending
    fence = anchor + sending.lease_seconds - sending.timeout_seconds - 1.0
    taken.rows = [
        Permitted(row, read_at + (start - now) / MICROS, fence, grant.probe)
        for row, start in zip(rows, used, strict=True)
    ]
    return taken


def renew(conn: Connection, plan: SendPlan, wanted: int, lead: float) -> list[float]:
    """Take new permits for claimed rows that waited too long for theirs; return when they start.

    Those they had stay charged, so the gate lets through less than it could and never more. Fewer
    than wanted, or none, come from a gate that is closed, halted or used up.
    """
    now, locked = gates.lock(conn, [plan.gate])
    read_at = time.monotonic()
    gate = locked[plan.gate]
    grant = rate_gate.grant(gate, now + int(lead * MICROS), wanted, HORIZON)
    if grant.probe or not grant.starts:
        return []
    gates.save(conn, rate_gate.charge(gate, grant.starts, now))
    return [read_at + (start - now) / MICROS for start in grant.starts]


def _claim_in(conn: Connection, plan: SendPlan, turns: Turns, manifest_id: int, limit: int) -> list[Batch]:
    if limit <= 0:
        return []
    batches: list[Batch] = []
    lifetime = plan.resend_lifetime
    if lifetime is not None and turns.time_for_unknown(manifest_id):
        batches.append(claims.claim_unknown(conn, manifest_id, limit, plan.claimer, lifetime))
        limit -= len(batches[0].claimed)
    if limit > 0:
        batch = claims.claim_due(conn, manifest_id, limit, plan.claimer, turns.cursors.get(manifest_id))
        if batch.cursor is not None:
            turns.cursors[manifest_id] = batch.cursor
        batches.append(batch)
    return batches

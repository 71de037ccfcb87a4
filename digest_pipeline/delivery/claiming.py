"""One claim transaction: gate, rows, charge, commit. Nothing else is ever in it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from sqlalchemy import Connection

from digest_pipeline import faults
from digest_pipeline.delivery import rate_gate
from digest_pipeline.delivery.plan import MICROS, SendPlan
from digest_pipeline.delivery.rate_gate import Grant
from digest_pipeline.delivery.turns import Turns
from digest_pipeline.ledger import batches, claims, gates
from digest_pipeline.ledger.claims import Batch, Claimed
from digest_pipeline.ledger.gates import GateState

HORIZON = 400_000
"""Microseconds ahead for which permits are taken: long enough to keep a sender busy over a claim."""

BATCH_HORIZON = 1_000_000
"""The same where a call carries several messages, so that a slow gate lets fuller calls come together."""


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

    calls: list[list[Permitted]] = field(default_factory=list)
    """What each provider call carries: one row, or several that start at the same instant."""
    suppressed: int = 0
    again_in: float | None = None
    halted: str | None = None
    seen_at: float = 0.0
    """When the gate was read, on the monotonic clock."""

    @property
    def rows(self) -> list[Permitted]:
        """Every row that was claimed."""
        return [row for call in self.calls for row in call]


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
    at = _Moment(now, read_at, anchor, lead)
    repeat = _claim_batch(conn, plan, turns, gate, at) if plan.keyed_batches else None
    if repeat is not None and repeat.calls:
        return repeat
    grant = rate_gate.grant(
        gate, now + int(lead * MICROS), wanted, HORIZON if plan.batch_size == 1 else BATCH_HORIZON
    )
    if not grant.starts:
        again_in = None if grant.again_at is None else max(0.0, (grant.again_at - now) / MICROS)
        return Taken(again_in=again_in, halted=gate.halt_reason if grant.halted else None)
    # The gate let some start: if none is claimed, it is because none is due, or a batch needs more permits.
    taken = Taken(seen_at=read_at, again_in=None if repeat is None else repeat.again_in)
    rows: list[Claimed] = []
    for manifest_id in turns.order():
        for batch in _claim_in(conn, plan, turns, manifest_id, len(grant.starts) - len(rows)):
            rows.extend(batch.claimed)
            taken.suppressed += batch.suppressed
    used = grant.starts[: len(rows)]
    gates.save(conn, rate_gate.charge(gate, used, now))
    calls = list(_calls(plan, rows, rate_gate.most_at_once(gate)))
    starts = iter(rate_gate.together(used, [len(call) for call in calls]))
    taken.calls = [[_permitted(plan, row, next(starts), at, grant.probe) for row in call] for call in calls]
    return taken


@dataclass(frozen=True, slots=True)
class _Moment:
    """When a claim looked at the gate: by the ledger's clock, by this process's, and by ``delivery.clock``."""

    now: int
    read_at: float
    anchor: float
    lead: float


def _permitted(plan: SendPlan, row: Claimed, start: int, at: _Moment, probe: bool) -> Permitted:
    sending = plan.digest.sending
    fence = at.anchor + sending.lease_seconds - sending.timeout_seconds - 1.0
    return Permitted(row, at.read_at + (start - at.now) / MICROS, fence, probe)


def _calls(plan: SendPlan, rows: Sequence[Claimed], most: int) -> Iterator[Sequence[Claimed]]:
    """Divide claimed rows into calls, in order."""
    size = min(plan.batch_size, most)
    if size == 1:
        yield from ([row] for row in rows)
        return

    def apart(row: Claimed) -> tuple[int, int]:
        # One key for all: a batch is repeated by manifest, and what is in doubt under its own key goes alone.
        return (row.manifest_id, row.token if row.is_ambiguous else 0) if plan.keyed_batches else (0, 0)

    for _, alike in groupby(rows, apart):
        together = list(alike)
        yield from (together[first : first + size] for first in range(0, len(together), size))


def _claim_batch(
    conn: Connection, plan: SendPlan, turns: Turns, gate: GateState, at: _Moment
) -> Taken | None:
    """Claim one whole batch that is in doubt, for the same call again; None: there is none that may go.

    Its size is what it is, so its permits are taken further ahead than others; all start with the last.
    """
    lifetime = plan.resend_lifetime
    if lifetime is None:
        return None
    for manifest_id in plan.manifest_ids:
        if not turns.time_for_unknown(manifest_id, batches=True):
            continue
        batch = batches.repeatable(conn, manifest_id, plan.claimer, lifetime)
        if batch is None:
            continue
        if batch.size > rate_gate.most_at_once(gate):  # the rate was lowered since its first call
            batches.hold(conn, manifest_id, batch.id)
            continue
        grant = _grant_whole(plan, gate, batch.size, at)
        starts = grant.starts
        if len(starts) < batch.size:
            return Taken(again_in=max(0.0, ((grant.again_at or at.now) - at.now) / MICROS))
        claimed = batches.claim(conn, manifest_id, batch.id, plan.claimer)
        turns.look_for_batches_again(manifest_id)
        if claimed:
            gates.save(conn, rate_gate.charge(gate, starts, at.now))
            return Taken(
                [[_permitted(plan, row, starts[-1], at, grant.probe) for row in claimed]], seen_at=at.read_at
            )
    return None


def _grant_whole(plan: SendPlan, gate: GateState, size: int, at: _Moment) -> Grant:
    """Return the permits of a call that goes whole or not; as a halted account's probe, too, all of them."""
    now, horizon = at.now + int(at.lead * MICROS), int(plan.digest.sending.lease_seconds * MICROS) // 4
    grant = rate_gate.grant(gate, now, size, horizon)
    if not grant.probe:
        return grant
    return replace(rate_gate.grant(replace(gate, halt_reason=None), now, size, horizon), probe=True)


def renew(conn: Connection, plan: SendPlan, wanted: int, lead: float, horizon: int = HORIZON) -> list[float]:
    """Take new permits for claimed rows that waited too long for theirs; return when they start.

    Those they had stay charged, so the gate lets through less than it could and never more. Fewer
    than wanted, or none, come from a gate that is closed, halted or used up.
    """
    now, locked = gates.lock(conn, [plan.gate])
    read_at = time.monotonic()
    gate = locked[plan.gate]
    grant = rate_gate.grant(gate, now + int(lead * MICROS), wanted, horizon)
    if grant.probe or not grant.starts:
        return []
    gates.save(conn, rate_gate.charge(gate, grant.starts, now))
    return [read_at + (start - now) / MICROS for start in grant.starts]


def _claim_in(conn: Connection, plan: SendPlan, turns: Turns, manifest_id: int, limit: int) -> list[Batch]:
    if limit <= 0:
        return []
    found: list[Batch] = []
    lifetime = plan.resend_lifetime
    if lifetime is not None and turns.time_for_unknown(manifest_id):
        found.append(
            claims.claim_unknown(
                conn, manifest_id, limit, plan.claimer, lifetime, keyed_batches=plan.keyed_batches
            )
        )
        limit -= len(found[0].claimed)
    if limit > 0:
        batch = claims.claim_due(conn, manifest_id, limit, plan.claimer, turns.cursors.get(manifest_id))
        if batch.cursor is not None:
            turns.cursors[manifest_id] = batch.cursor
        found.append(batch)
    return found

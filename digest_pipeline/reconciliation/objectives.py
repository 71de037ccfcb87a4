"""The promises to customers as invariants: enough of them reached in time, and nobody waiting unseen."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sqlalchemy import ColumnElement, Connection, and_, case, func, or_, select

from digest_pipeline.ledger import reads
from digest_pipeline.ledger.reads import Summary
from digest_pipeline.ledger.schema import delivery, manifest, manifest_entry
from digest_pipeline.reconciliation.invariants import SHOWN, Ids, Verdict, which
from digest_pipeline.spec import Digest
from digest_pipeline.states import CLAIMABLE, DEAD_LETTERS, REACHED, HoldReason, State

_d = delivery.c
_e = manifest_entry.c
BY_ITSELF = frozenset({HoldReason.WINDOW_NOT_OPEN, HoldReason.CONTENT_NOT_SEALED})
"""What holds deliveries and ends without anybody's doing."""
_WHOLE_MANIFEST = frozenset(
    {HoldReason.WINDOW_CLOSED, HoldReason.SENDING_DISABLED, HoldReason.RESTORED, HoldReason.PAUSED}
)
"""What holds all of a manifest that waits, until somebody decides."""


def coverage_meets_objective(conn: Connection, digest: Digest, ids: Ids) -> Verdict:
    """Enough of those who were to be reached got their digest in time; held and unknown count against.

    No more than a warning while enough of them wait that may still be reached in time.
    """
    summary = reads.summarise(conn, ids, sends=digest.sending.enabled, gateway=digest.gateway.kind)
    objective = digest.objective.coverage
    owed = summary.entries - summary.states[State.SUPPRESSED]
    short = 0
    if summary.coverage < objective:
        short = max(1, math.ceil(objective * owed) - summary.on_time)
    why = (
        f"coverage {summary.coverage:.4f} is below the objective {objective:g}: "
        f"{summary.on_time} of {owed} were reached in time, {short} too few"
    )
    if summary.held:
        why += "; held: " + _listed(summary.held)
    coming = _coming(summary)
    if short and coming:
        why += f"; {coming} wait and may still be"
    facts = (
        ("coverage", summary.coverage),
        ("objective", objective),
        ("to_be_reached", owed),
        ("reached_in_time", summary.on_time),
    )
    keys = tuple(_not_in_time(conn, ids)) if short else ()
    command = _next(summary, digest, which(conn, digest, ids))
    return Verdict(short, keys, why, command, facts, is_final=coming < short)


def nothing_is_held(conn: Connection, digest: Digest, ids: Ids) -> Verdict:
    """No delivery waits for a person: its window closed, sending paused or disabled, no evidence to be had."""
    summary = reads.summarise(conn, ids, sends=digest.sending.enabled, gateway=digest.gateway.kind)
    held = {reason: n for reason, n in summary.held.items() if n and reason not in BY_ITSELF}
    waiting = sum(summary.states[state] for state in (*CLAIMABLE, State.UNKNOWN))
    keys = tuple(_held_keys(conn, digest, ids)) if held else ()
    why = f"held, and nothing sends them until somebody decides ({_listed(held)})"
    command = _next(summary, digest, which(conn, digest, ids))
    return Verdict(sum(held.values()), keys, why, command, (("waiting", waiting),))


def _coming(summary: Summary) -> int:
    """How many wait, and are held by nothing that only a person ends. Rows of closed windows are held."""
    waiting = sum(summary.states[state] for state in (*CLAIMABLE, State.CLAIMED, State.UNKNOWN))
    return waiting - sum(n for reason, n in summary.held.items() if reason not in BY_ITSELF)


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in counts.items())


def _next(summary: Summary, digest: Digest, period: str) -> str:
    """Return the command for whatever keeps most of them."""
    held = summary.held
    if held.get(HoldReason.WINDOW_CLOSED):
        return f'digest run{period} --allow-late "REASON"'
    if held.get(HoldReason.PAUSED):
        return resume_command(summary)
    if summary.states[State.UNKNOWN]:
        return f"digest unknowns list{period}"
    if any(summary.states[state] for state in DEAD_LETTERS):
        return f"digest dead-letters list{period}"
    return f"digest status{period}"


def resume_command(summary: Summary) -> str:
    """Return the command that ends the first pause of what is held; another one shows when that is over."""
    kind, name = summary.paused[0]
    digest, _, tenant = name.partition("/")
    scope = {"gateway": f"--gateway {name}", "digest": f"--digest {name}"}
    return f'digest resume {scope.get(kind, f"--digest {digest} --tenant {tenant}")} --reason "REASON"'


def _not_in_time(conn: Connection, ids: Ids) -> Iterator[str]:
    closes, late = manifest.c.window_closes_at, manifest.c.late_until
    deadline = case((late > closes, late), else_=closes)
    missed = and_(
        func.coalesce(_d.state, State.PENDING) != State.SUPPRESSED,
        or_(_d.state.is_(None), _d.state.not_in(sorted(REACHED)), _d.finished_at > deadline),
    )
    yield from _keys(conn, ids, missed, SHOWN)


def _held_keys(conn: Connection, digest: Digest, ids: Ids) -> Iterator[str]:
    left = SHOWN
    for manifest_id in ids:
        reasons = reads.summarise(
            conn, [manifest_id], sends=digest.sending.enabled, gateway=digest.gateway.kind
        ).held
        held = and_(_d.state == State.UNKNOWN, _d.hold_reason.is_not(None))
        if _WHOLE_MANIFEST & set(reasons):
            held = or_(held, _d.state.in_(sorted(CLAIMABLE)))
        for key in _keys(conn, [manifest_id], held, left):
            left -= 1
            yield key
        if left == 0:
            return


def _keys(conn: Connection, ids: Ids, which_ones: ColumnElement[bool], limit: int) -> list[str]:
    query = (
        select(_e.operation_key)
        .select_from(manifest_entry)
        .join(manifest, manifest.c.id == _e.manifest_id)
        .outerjoin(delivery, and_(_d.manifest_id == _e.manifest_id, _d.ordinal == _e.ordinal))
        .where(_e.manifest_id.in_(ids), which_ones)
    )
    return list(conn.execute(query.order_by(_e.operation_key).limit(limit)).scalars())

"""Replay: an order to try dead letters again, under their own keys."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row

from digest_pipeline.errors import InputError
from digest_pipeline.ledger import audit, reads, transitions
from digest_pipeline.ledger.audit import Action
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.operations.decisions import Decision, Order, judge
from digest_pipeline.operations.late import MOST_HOURS
from digest_pipeline.spec import Digest
from digest_pipeline.states import DEAD_LETTERS, State

CAP = 1_000
MICROS_PER_HOUR = 3_600_000_000
REPLAYED_ALREADY = "it is being replayed already"


def replay(ledger: Ledger, order: Order, *, apply: bool, hours: float = 24.0) -> Decision:
    """Return, and with ``apply`` carry out, what a replay of these keys comes to.

    A dead letter goes back to ``retry`` with a fresh budget and a permission to be sent for some hours,
    whatever its window. Nothing is sent here: the next run of the period does that. Refused, each by
    name: what was ever accepted, what is unknown (nobody knows whether it went out), suppressed, erased,
    waiting or being replayed already, or not of this period and tenant. Above the digest's
    ``replay.approve_above`` keys it only takes effect once somebody else approves it. Of two replays
    of one key at once, one wins; the other finds it being replayed.
    """
    order.require_bounds(CAP)
    if not 0 < hours <= MOST_HOURS:
        raise InputError(f"a permission lasts from 0 to {MOST_HOURS} hours, not {hours:g}")
    if not apply:
        with ledger.read() as conn:
            return _would(conn, order)
    if _needs_approval(order):
        return ledger.transact(lambda conn: _propose(conn, order, hours))
    return ledger.transact(lambda conn: _apply(conn, order, hours))


def approve(
    ledger: Ledger,
    digests: dict[str, Digest],
    number: int,
    *,
    who: str,
    apply: bool,
    reason: str = "",
) -> Decision:
    """Return, and with ``apply`` carry out, a replay that waits for approval, judged anew.

    Raises InputError unless it waits and somebody else asked for it. ``reason``: why it is approved,
    written to the trail beside the order's own reason.
    """
    if not who.strip():
        raise InputError("an approval needs to say who gives it: --by")

    def work(conn: Connection) -> Decision:
        found = audit.waiting(conn, number)
        if found is None:
            raise InputError(f"no replay number {number} waits for approval")
        if found.who.strip().casefold() == who.strip().casefold():
            raise InputError(f"{found.who} asked for this replay; somebody else has to approve it")
        order = _order_of(found, digests)
        if not apply:
            return replace(_would(conn, order), needs_approval=False)
        audit.close_waiting(conn, found, who)
        approval = {"order": number, **({"approved_because": reason} if reason.strip() else {})}
        return _apply(conn, order, float(json.loads(found.effect)["hours"]), who, approval)

    return ledger.transact(work)


def _order_of(waiting: Row[Any], digests: dict[str, Digest]) -> Order:
    digest = digests.get(waiting.digest)
    if digest is None:
        raise InputError(f"the digest {waiting.digest!r} of replay {waiting.id} is not configured here")
    keys = tuple(json.loads(waiting.keys))
    period = digest.period(waiting.period)
    return Order(digest, period, keys, waiting.who, waiting.reason, waiting.tenant)


def _needs_approval(order: Order) -> bool:
    return len(order.keys) > order.digest.replay.approve_above


def _would(conn: Connection, order: Order) -> Decision:
    return _judged(conn, order)[0]


def _judged(conn: Connection, order: Order) -> tuple[Decision, list[Row[Any]]]:
    good, refused = judge(conn, order, partial(_why_not, conn))
    ids = reads.manifest_ids(conn, order.digest.name, order.period.label)
    decision = Decision(
        "replay",
        False,
        order,
        [row.operation_key for row in good],
        refused,
        needs_approval=_needs_approval(order),
        late=bool(reads.closed_windows(conn, ids)),
    )
    return decision, good


def _propose(conn: Connection, order: Order, hours: float) -> Decision:
    decision = _would(conn, order)
    if decision.changed:
        effect = {"status": audit.WAITING, "hours": hours, "keys": len(decision.changed)}
        decision.approval = audit.record(conn, _action(order, decision.changed), effect)
    return decision


def _apply(
    conn: Connection,
    order: Order,
    hours: float,
    approver: str | None = None,
    approval: dict[str, Any] | None = None,
) -> Decision:
    decision, good = _judged(conn, order)
    decision.applied = True
    late = int(hours * MICROS_PER_HOUR)
    moved = transitions.replay(conn, [{**_place(row), "late": late} for row in good])
    decision.changed = [row.operation_key for row in good if row.token in moved]
    decision.refused |= {row.operation_key: REPLAYED_ALREADY for row in good if row.token not in moved}
    if decision.changed:
        effect = {"replayed": len(decision.changed), **(approval or {})}
        audit.record(conn, _action(order, decision.changed), effect, approver=approver)
    return decision


def _place(row: Row[Any]) -> dict[str, int]:
    return {"manifest_id": row.manifest_id, "ordinal": row.ordinal, "token": row.token}


def _action(order: Order, keys: list[str]) -> Action:
    return Action(
        "replay", order.who, order.reason, order.digest.name, order.period.label, order.tenant, keys
    )


def _why_not(conn: Connection, row: Row[Any]) -> str | None:
    if row.was_accepted:
        return "an attempt was accepted: a replay could be a second mail"
    if row.is_erased:
        return "the customer was erased"
    if row.state in (State.RETRY, State.CLAIMED) and _was_replayed(conn, row):
        return REPLAYED_ALREADY
    if row.state in (State.PENDING, State.RETRY, State.CLAIMED):
        return "it waits to be sent already"
    if row.state not in DEAD_LETTERS:
        return f"it is {row.state}"
    if row.before_restore:
        return "it stopped before the ledger was restored: the lost copy may have sent it"
    return None if row.has_content else "its generated rows are gone (retention)"


def _was_replayed(conn: Connection, row: Row[Any]) -> bool:
    return reads.find_entry(conn, row.operation_key).late_until is not None

"""Replay: an order to try dead letters again, under their own keys."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection, Row

from digest_pipeline.errors import InputError
from digest_pipeline.ledger import audit, letters, transitions
from digest_pipeline.ledger.audit import Action
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.operations.decisions import Decision, Order
from digest_pipeline.operations.late import MOST_HOURS
from digest_pipeline.spec import Digest
from digest_pipeline.states import DEAD_LETTERS

CAP = 1_000
MICROS_PER_HOUR = 3_600_000_000


def replay(ledger: Ledger, order: Order, *, apply: bool, hours: float = 24.0) -> Decision:
    """Return, and with ``apply`` carry out, what a replay of these keys comes to.

    A dead letter goes back to ``retry`` with a fresh budget and a permission to be sent for some hours,
    whatever its window. Refused, each by name: what was ever accepted, what is unknown (nobody knows
    whether it went out), suppressed, erased, waiting already, or not of this period. Above the
    digest's ``replay.approve_above`` keys it only takes effect once somebody else approves it. Of two
    replays of one key at once, one wins; the other finds it waiting.
    """
    order.require_bounds(CAP)
    if not 0 < hours <= MOST_HOURS:
        raise InputError(f"a permission lasts from 0 to {MOST_HOURS} hours, not {hours:g}")
    needs_approval = len(order.keys) > order.digest.replay.approve_above
    if apply and needs_approval:
        return _propose(ledger, order, hours)
    if apply:
        return ledger.transact(lambda conn: _apply(conn, order, hours, approver=None))
    with ledger.read() as conn:
        good, refused = _judge(conn, order)
    return Decision("replay", False, [row.operation_key for row in good], refused)


def approve(ledger: Ledger, digests: dict[str, Digest], action_id: int, *, who: str) -> Decision:
    """Carry out a replay that waits for approval. Raises InputError unless somebody else asked for it."""

    def work(conn: Connection) -> Decision:
        found = audit.waiting(conn, action_id)
        if found is None:
            raise InputError(f"no replay number {action_id} waits for approval")
        if found.who == who:
            raise InputError(f"{who} asked for this replay; somebody else has to approve it")
        digest = digests.get(found.digest)
        if digest is None:
            raise InputError(f"the digest {found.digest!r} of replay {action_id} is not configured here")
        keys = tuple(json.loads(found.keys))
        order = Order(digest, digest.period(found.period), keys, found.who, found.reason)
        hours = float(json.loads(found.effect)["hours"])
        audit.close_waiting(conn, found, who)
        return _apply(conn, order, hours, approver=who)

    return ledger.transact(work)


def _propose(ledger: Ledger, order: Order, hours: float) -> Decision:
    def work(conn: Connection) -> Decision:
        good, refused = _judge(conn, order)
        keys = [row.operation_key for row in good]
        effect = {"status": audit.WAITING, "hours": hours, "keys": len(keys)}
        number = audit.record(conn, _action(order, keys), effect)
        return Decision("replay", False, keys, refused, approval=number)

    return ledger.transact(work)


def _apply(conn: Connection, order: Order, hours: float, approver: str | None) -> Decision:
    good, refused = _judge(conn, order)
    rows = [
        {
            "manifest_id": row.manifest_id,
            "ordinal": row.ordinal,
            "token": row.token,
            "late": int(hours * MICROS_PER_HOUR),
        }
        for row in good
    ]
    moved = transitions.replay(conn, rows)
    changed = [row.operation_key for row in good if row.token in moved]
    for row in good:
        if row.token not in moved:
            refused[row.operation_key] = "somebody else is replaying it"
    if changed:
        audit.record(conn, _action(order, changed), {"replayed": len(changed)}, approver=approver)
    return Decision("replay", True, changed, refused)


def _action(order: Order, keys: list[str]) -> Action:
    return Action("replay", order.who, order.reason, order.digest.name, order.period.label, None, keys)


def _judge(conn: Connection, order: Order) -> tuple[list[Row[Any]], dict[str, str]]:
    found = letters.by_keys(conn, order.digest.name, order.period.label, order.keys)
    good: list[Row[Any]] = []
    refused: dict[str, str] = {}
    for key in order.keys:
        row = found.get(key)
        reason = "not a delivery of this period" if row is None else _why_not(row)
        if row is not None and reason is None:
            good.append(row)
        else:
            refused[key] = reason or ""
    return good, refused


def _why_not(row: Row[Any]) -> str | None:
    if row.was_accepted:
        return "an attempt was accepted: a replay could be a second mail"
    if row.is_erased:
        return "the customer was erased"
    if not row.has_content:
        return "its generated rows are gone (retention)"
    if row.state in DEAD_LETTERS:
        return None
    waits = {"pending", "retry", "claimed"}
    return "it waits to be sent already" if row.state in waits else f"it is {row.state}"

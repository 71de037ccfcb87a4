"""Resolve: a person settles unknowns, knowing what the machine cannot."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Row

from digest_pipeline.ledger import audit, transitions
from digest_pipeline.ledger.audit import Action
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.operations.decisions import Decision, Order, judge
from digest_pipeline.outcomes import Proof
from digest_pipeline.states import State

CAP = 10_000


class Verdict(StrEnum):
    """What a person knows: it was sent, it was not (and may be now), or nobody ever will."""

    SENT = "sent"
    NOT_SENT = "not-sent"
    WRITTEN_OFF = "written-off"


def resolve(ledger: Ledger, order: Order, verdict: Verdict, *, apply: bool) -> Decision:
    """Return, and with ``apply`` carry out, what settling these unknowns comes to.

    ``not-sent`` makes the delivery sendable again under its own key, in its window: say it only with
    evidence, it is the one decision here that can cause a second mail. Anything that is not unknown
    is refused by name.
    """
    order.require_bounds(CAP)
    if not apply:
        with ledger.read() as conn:
            good, refused = judge(conn, order, _why_not)
        return Decision("resolve", False, order, [row.operation_key for row in good], refused)
    return ledger.transact(lambda conn: _apply(conn, order, verdict))


def _apply(conn: Connection, order: Order, verdict: Verdict) -> Decision:
    good, refused = judge(conn, order, _why_not)
    rows = [{"manifest_id": row.manifest_id, "ordinal": row.ordinal, "token": row.token} for row in good]
    moved = _move(conn, verdict, rows)
    changed = [row.operation_key for row in good if row.token in moved]
    for row in good:
        if row.token not in moved:
            refused[row.operation_key] = "evidence, or somebody else, settled it meanwhile"
    if changed:
        name, label = order.digest.name, order.period.label
        action = Action("resolve", order.who, order.reason, name, label, order.tenant, changed)
        audit.record(conn, action, {"as": str(verdict), "resolved": len(changed)})
    return Decision("resolve", True, order, changed, refused)


def _move(conn: Connection, verdict: Verdict, rows: list[dict[str, Any]]) -> set[int]:
    match verdict:
        case Verdict.SENT:
            known = [{**row, "message_id": None, "proof": Proof.ACCEPTED} for row in rows]
            return transitions.resolve_sent(conn, known)
        case Verdict.NOT_SENT:
            return transitions.disprove_unknown(conn, [{**row, "delay": 0} for row in rows])
        case Verdict.WRITTEN_OFF:
            return transitions.write_off(conn, rows)


def _why_not(row: Row[Any]) -> str | None:
    return None if row.state == State.UNKNOWN else f"it is {row.state}"

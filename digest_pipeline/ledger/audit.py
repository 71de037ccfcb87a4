"""The audit trail, and what an action changes on a manifest's header."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select, update

from digest_pipeline.ledger.dialects import ledger_now, locked
from digest_pipeline.ledger.schema import delivery, manifest, operator_action
from digest_pipeline.states import HoldReason, State


@dataclass(frozen=True, slots=True)
class Action:
    """Who did what, and why. ``who`` is declared (an OS user, a Dagster user), not proven."""

    kind: str
    who: str
    reason: str
    digest: str | None = None
    period: str | None = None
    tenant: str | None = None
    keys: Sequence[str] | None = None


WAITING = "waits for approval"


def record(conn: Connection, action: Action, effect: dict[str, Any], approver: str | None = None) -> int:
    """Write an action with its effect, in the transaction that has the effect; return its number."""
    written = conn.execute(
        insert(operator_action)
        .values(
            approver=approver,
            kind=action.kind,
            at=ledger_now(),
            who=action.who,
            reason=action.reason,
            digest=action.digest,
            period=action.period,
            tenant=action.tenant,
            keys=None if action.keys is None else json.dumps(list(action.keys)),
            effect=json.dumps(effect, sort_keys=True),
        )
        .returning(operator_action.c.id)
    )
    return int(written.scalar_one())


def waiting(conn: Connection, number: int) -> Row[Any] | None:
    """Return an action that waits for approval, locked until this transaction ends."""
    query = select(operator_action).where(operator_action.c.id == number)
    found = conn.execute(locked(conn, query)).one_or_none()
    if found is None or json.loads(found.effect).get("status") != WAITING:
        return None
    return found


def all_waiting(conn: Connection) -> list[Row[Any]]:
    """Return every action that waits for somebody else's approval, oldest first."""
    query = select(operator_action).where(operator_action.c.effect.contains(WAITING, autoescape=True))
    rows = conn.execute(query.order_by(operator_action.c.id))
    return [row for row in rows if json.loads(row.effect).get("status") == WAITING]


def close_waiting(conn: Connection, action: Row[Any], approver: str) -> None:
    """Mark an action that waited as approved; what it asked for stays in its effect."""
    effect = {**json.loads(action.effect), "status": "approved"}
    conn.execute(
        update(operator_action)
        .where(operator_action.c.id == action.id)
        .values(approver=approver, effect=json.dumps(effect, sort_keys=True))
    )


def extend_lateness(conn: Connection, ids: Sequence[int], duration: int) -> int:
    """Let manifests be sent for ``duration`` microseconds from now although their window closes before.

    A window or a permission that lasts longer already is left alone. Unknowns that were held for the
    closed window may be asked about again. Returns how many manifests changed.
    """
    until = ledger_now() + duration
    changed = conn.execute(
        update(manifest)
        .where(
            manifest.c.id.in_(ids),
            func.coalesce(manifest.c.late_until, manifest.c.window_closes_at) < until,
        )
        .values(late_until=until)
    ).rowcount
    if changed:
        conn.execute(
            update(delivery)
            .where(
                delivery.c.manifest_id.in_(ids),
                delivery.c.state == State.UNKNOWN,
                delivery.c.hold_reason == HoldReason.WINDOW_CLOSED,
            )
            .values(hold_reason=None, due_at=ledger_now())
        )
    return changed

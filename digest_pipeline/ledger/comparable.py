"""The deliveries a provider is worth asking about: all the doubtful ones, and a sample of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, exists, func, or_, select, tuple_

from digest_pipeline.ledger.dialects import ledger_now
from digest_pipeline.ledger.schema import attempt, delivery, manifest_entry
from digest_pipeline.outcomes import Stage
from digest_pipeline.states import REACHED, State

_d = delivery.c
_DOUBTED = (State.UNKNOWN, State.FAILED, State.DEAD, State.WRITTEN_OFF, State.RETRY)
_its_attempts = and_(attempt.c.manifest_id == _d.manifest_id, attempt.c.ordinal == _d.ordinal)
_first_at = func.coalesce(_d.budget_from, _d.claimed_at, _d.finished_at)


def doubtful(
    conn: Connection, manifest_id: int, after: int, gateway: str, account: str, limit: int
) -> Sequence[Row[Any]]:
    """Return deliveries past the ordinal ``after`` that may be at the provider otherwise than we say.

    Those that were on the wire twice or more, and those that did not end as sent although an attempt
    was ambiguous or outlived its lease. Only of this gateway and account.
    """
    lost = _d.state.in_(sorted(_DOUBTED)) & exists().where(
        _its_attempts, attempt.c.outcome.in_(("ambiguous", "expired"))
    )
    query = _rows(gateway, account).where(_d.manifest_id == manifest_id, _d.ordinal > after)
    return conn.execute(query.where(or_(_on_wire_twice(), lost)).order_by(_d.ordinal).limit(limit)).all()


def spread_sample(
    conn: Connection,
    ids: Sequence[int],
    gateway: str,
    account: str,
    visible: int,
    retention: int,
    size: int,
) -> Sequence[Row[Any]]:
    """Return ``size`` sent deliveries, evenly spread over the manifests: the same ones every time.

    None that ``doubtful`` returns, and none the provider may not list any more or not yet.
    """
    now = ledger_now()
    sent = (
        select(
            _d.manifest_id,
            _d.ordinal,
            func.row_number().over(order_by=(_d.manifest_id, _d.ordinal)).label("number"),
            func.count().over().label("total"),
        )
        .where(
            _d.manifest_id.in_(ids),
            _d.state.in_(sorted(REACHED)),
            _d.gateway == gateway,
            _d.account == account,
            _d.finished_at < now - visible,
            now - retention < _first_at,
            ~_on_wire_twice(),
        )
        .subquery("sent")
    )
    # Row n of N is taken where n * size / N passes a whole number: exactly min(size, N) rows.
    step = (sent.c.number * size) // sent.c.total > ((sent.c.number - 1) * size) // sent.c.total
    chosen = (
        select(sent.c.manifest_id, sent.c.ordinal).where(or_(sent.c.total <= size, step)).subquery("chosen")
    )
    query = _rows(gateway, account).join(
        chosen, and_(chosen.c.manifest_id == _d.manifest_id, chosen.c.ordinal == _d.ordinal)
    )
    return conn.execute(query.order_by(_d.manifest_id, _d.ordinal).limit(size)).all()


def read_again(conn: Connection, rows: Sequence[Row[Any]]) -> dict[tuple[int, int], Row[Any]]:
    """Return the state and message id of deliveries as they are now, by (manifest, ordinal)."""
    if not rows:
        return {}
    wanted = tuple_(_d.manifest_id, _d.ordinal).in_([(row.manifest_id, row.ordinal) for row in rows])
    query = select(_d.manifest_id, _d.ordinal, _d.state, _d.message_id).where(wanted)
    return {(row.manifest_id, row.ordinal): row for row in conn.execute(query)}


def _rows(gateway: str, account: str) -> Select[Any]:
    ended = select(func.max(attempt.c.ended_at)).where(_its_attempts).scalar_subquery()
    return (
        select(
            _d.manifest_id,
            _d.ordinal,
            _d.state,
            _d.message_id,
            manifest_entry.c.operation_key,
            _first_at.label("first_at"),
            func.coalesce(_d.finished_at, ended, _d.claimed_at).label("last_at"),
            ledger_now().label("now"),
        )
        .select_from(delivery)
        .join(
            manifest_entry,
            and_(manifest_entry.c.manifest_id == _d.manifest_id, manifest_entry.c.ordinal == _d.ordinal),
        )
        .where(_d.gateway == gateway, _d.account == account)
    )


def _on_wire_twice() -> ColumnElement[bool]:
    # The second row is looked for, not all of them counted.
    second = (
        select(attempt.c.token).where(_its_attempts, attempt.c.stage != Stage.BEFORE_WIRE).offset(1).limit(1)
    )
    return exists(second)

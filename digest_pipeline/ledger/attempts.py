"""The record of attempts: one row per claim that ended, written once, in the transition's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Connection, Row, Text, select, update

from digest_pipeline.ledger.dialects import bulk_insert, ledger_now, rowset, rowset_value
from digest_pipeline.ledger.schema import attempt
from digest_pipeline.outcomes import FailureClass, Stage

_COLUMNS = (
    "token",
    "manifest_id",
    "ordinal",
    "claimed_by",
    "gateway",
    "account",
    "batch_id",
    "claimed_at",
    "ended_at",
    "stage",
    "outcome",
    "failure_class",
    "charged",
    "message_id",
    "replayed",
    "detail",
)
MAX_DETAIL = 200


@dataclass(frozen=True, slots=True)
class Attempt:
    """How one claim ended. Instants in microseconds; ``detail`` is sanitised by whoever made it."""

    token: int
    manifest_id: int
    ordinal: int
    claimed_by: str
    gateway: str
    account: str
    claimed_at: int
    stage: Stage
    outcome: str
    failure_class: FailureClass | None = None
    charged: bool = True
    message_id: str | None = None
    replayed: bool = False
    detail: str | None = None
    batch_id: str | None = None


def record(conn: Connection, attempts: Sequence[Attempt]) -> None:
    """Write attempts that ended now."""
    if not attempts:
        return
    now = conn.execute(select(ledger_now())).scalar_one()
    rows = [
        (
            a.token,
            a.manifest_id,
            a.ordinal,
            a.claimed_by,
            a.gateway,
            a.account,
            a.batch_id,
            a.claimed_at,
            now,
            a.stage,
            a.outcome,
            a.failure_class,
            a.charged,
            a.message_id,
            a.replayed,
            a.detail[:MAX_DETAIL] if a.detail else None,
        )
        for a in attempts
    ]
    bulk_insert(conn, attempt, _COLUMNS, rows)


SUPERSEDED = "superseded"
"""How a claim's attempt ends that was under way when an older attempt turned out to be accepted."""


def record_expired(conn: Connection, expired: Iterable[Row[Any]]) -> None:
    """Write the attempts of leases that ended without a word from their senders."""
    record(conn, [_unheard(row, "expired", charged=True) for row in expired])


def record_superseded(conn: Connection, claimed: Iterable[Row[Any]]) -> None:
    """Write the attempts of claims that an older attempt's acceptance has overtaken."""
    why = "an older attempt turned out to be accepted"
    record(conn, [_unheard(row, SUPERSEDED, charged=False, detail=why) for row in claimed])


def _unheard(row: Row[Any], outcome: str, *, charged: bool, detail: str | None = None) -> Attempt:
    """The attempt of a claim (a delivery's row) whose sender has said nothing of it."""
    return Attempt(
        token=row.token,
        manifest_id=row.manifest_id,
        ordinal=row.ordinal,
        claimed_by=row.claimed_by,
        gateway=row.gateway,
        account=row.account,
        claimed_at=row.claimed_at,
        stage=Stage.ON_WIRE,
        outcome=outcome,
        failure_class=FailureClass.AMBIGUOUS,
        charged=charged,
        detail=detail,
        batch_id=row.batch_id,
    )


def record_late(conn: Connection, attempts: Sequence[Attempt]) -> set[int]:
    """Add what came back after a claim was lost to its attempt; return the tokens that were late.

    A token whose attempt already says the same was settled before: the commit's answer was lost on
    the way, and nothing is late.
    """
    if not attempts:
        return set()
    query = select(attempt.c.token, attempt.c.outcome)
    rows = conn.execute(query.where(attempt.c.token.in_([a.token for a in attempts])))
    known: dict[int, str] = {token: outcome for token, outcome in rows}  # noqa: C416 - rows are no pairs
    late = [a for a in attempts if known.get(a.token) != a.outcome]
    if not late:
        return set()
    r = rowset(conn, "r", {"token": BigInteger(), "outcome": Text(), "message_id": Text()})
    conn.execute(
        update(attempt)
        .where(attempt.c.token == r.c.token, attempt.c.late_outcome.is_(None))
        .values(late_outcome=r.c.outcome, late_message_id=r.c.message_id, late_at=ledger_now()),
        {
            "r": rowset_value(
                [{"token": a.token, "outcome": late_word(a), "message_id": a.message_id} for a in late]
            )
        },
    )
    missing = [a for a in late if a.token not in known]
    record(conn, missing)
    return {a.token for a in late}


def late_word(late: Attempt) -> str:
    """Return what a late result is called: a replayed answer is no second acceptance."""
    return "replayed" if late.replayed else late.outcome


def of_delivery(conn: Connection, manifest_id: int, ordinal: int) -> list[Row[Any]]:
    """Return every attempt of a delivery, oldest first."""
    query = select(attempt).where(attempt.c.manifest_id == manifest_id, attempt.c.ordinal == ordinal)
    return list(conn.execute(query.order_by(attempt.c.token)))

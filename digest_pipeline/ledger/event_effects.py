"""What the events about one message come to: always judged together, so that their order cannot matter.

What weighs most decides: accepted < rejected before sending < delivered < bounced < complained.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Row, select, update

from digest_pipeline.ledger import acceptances, attempts, suppressions, transitions
from digest_pipeline.ledger.attempts import Attempt
from digest_pipeline.ledger.dialects import ledger_now, locked, next_tokens
from digest_pipeline.ledger.schema import attempt, delivery, provider_event
from digest_pipeline.outcomes import FailureClass, Proof, Stage
from digest_pipeline.spec_suppression import Suppression
from digest_pipeline.states import CLAIMABLE, REACHED, State, SuppressionReason

_d, _v, _a = delivery.c, provider_event.c, attempt.c


class EventKind(StrEnum):
    """What providers report, in our words. Openings and clicks are none of ours."""

    ACCEPTED = "accepted"
    DEFERRED = "deferred"
    DELIVERED = "delivered"
    BOUNCED = "bounced"
    COMPLAINED = "complained"
    REJECTED = "rejected"
    UNSUBSCRIBED = "unsubscribed"

    @property
    def proof(self) -> Proof | None:
        """What it proves about the send. Who defers a message has it; who rejects it had it."""
        match self:
            case EventKind.ACCEPTED | EventKind.DEFERRED | EventKind.REJECTED:
                return Proof.ACCEPTED
            case EventKind.DELIVERED:
                return Proof.DELIVERED
            case EventKind.BOUNCED:
                return Proof.BOUNCED
            case EventKind.COMPLAINED:
                return Proof.COMPLAINED
            case EventKind.UNSUBSCRIBED:
                return None


def apply(conn: Connection, message: Row[Any], limits: Suppression) -> list[str] | None:
    """Apply every event about a message; return the keys it overtook, or None while a claim is live.

    ``message``: manifest_id, ordinal, operation_key, tenant, address_hash. The suppression list hears of
    complaints, opt-outs and bounces at once, whatever becomes of the delivery.
    """
    here = (_d.manifest_id == message.manifest_id, _d.ordinal == message.ordinal)
    row = conn.execute(locked(conn, select(delivery).where(*here))).one_or_none()
    events = conn.execute(
        select(provider_event)
        .where(_v.operation_key == message.operation_key)
        .order_by(_v.received_at, _v.provider, _v.event_id)
    ).all()
    for event in events:
        if event.applied_at is None:
            suppress(conn, message, event, limits)
    if row is None or row.state == State.CLAIMED:
        return None
    effect, overtaken = _settle(conn, row, events)
    conn.execute(
        update(provider_event)
        .where(_v.operation_key == message.operation_key, _v.applied_at.is_(None))
        .values(applied_at=ledger_now(), effect=effect)
    )
    return overtaken


def _settle(conn: Connection, row: Row[Any], events: Sequence[Row[Any]]) -> tuple[str, list[str]]:
    events = [event for event in events if _is_about(event, row)]
    proofs = [proof for event in events if (proof := EventKind(event.kind).proof) is not None]
    if not proofs:
        return "none", []
    proof = max(proofs, key=lambda p: p.rank)
    rejections = [event for event in events if event.kind == EventKind.REJECTED]
    known = Proof(row.proof) if row.state in REACHED else Proof.ACCEPTED
    # What no claim was ever made for has no token, and nothing of ours that could have been rejected.
    if rejections and row.token is not None and max(proof.rank, known.rank) == Proof.ACCEPTED.rank:
        return _reject(conn, row, rejections[0], events)
    if not any(event.kind != EventKind.REJECTED and EventKind(event.kind).proof for event in events):
        return "none", []
    if row.state in REACHED:
        return ("raised" if transitions.raise_proof(conn, *_place(row), proof) else "none"), []
    return "settled", _accept(conn, row, proof, events)


def _is_about(event: Row[Any], row: Row[Any]) -> bool:
    """Whether an event still says something: a rejection that was applied is of an attempt before a replay."""
    if event.kind != EventKind.REJECTED or event.applied_at is None:
        return True
    return row.state not in CLAIMABLE and bool(event.received_at >= (row.claimed_at or 0))


def _reject(
    conn: Connection, row: Row[Any], rejection: Row[Any], events: Sequence[Row[Any]]
) -> tuple[str, list[str]]:
    """The provider took it and says that it never left."""
    if row.state in (State.FAILED, State.CLEANED):
        return "none", []
    overtaken = [] if row.state == State.SENT else _accept(conn, row, Proof.ACCEPTED, events)
    failure = FailureClass.RECIPIENT if rejection.permanent else FailureClass.CONTENT
    transitions.fail_sent(conn, [{**_named(row), "token": row.token, "failure_class": failure}])
    return "failed", overtaken


def _accept(conn: Connection, row: Row[Any], proof: Proof, events: Sequence[Row[Any]]) -> list[str]:
    """Settle a delivery as sent, and see that an attempt of it says so."""
    message_id = next((event.message_id for event in events if event.message_id), None)
    tried = conn.execute(
        select(attempt)
        .where(_a.manifest_id == row.manifest_id, _a.ordinal == row.ordinal)
        .order_by(_a.token.desc())
    ).all()
    named = [one for one in tried if message_id is not None and one.message_id == message_id]
    on_the_wire = [one for one in tried if one.stage != Stage.BEFORE_WIRE]
    accepted = next(iter([*named, *on_the_wire, *tried]), None)
    _put_on_record(conn, row, accepted, message_id, events[0])
    entry = {"message_id": message_id or row.message_id, "proof": proof}
    sent_again = accepted is not None and any(one.token > accepted.token for one in on_the_wire)
    token = accepted.token if accepted is not None and sent_again else row.token or 0
    return acceptances.apply(conn, [{**_named(row), "token": token, **entry}])


_MAY_BE_IT = ("accepted", "ambiguous", "expired", "restored", attempts.SUPERSEDED)


def _put_on_record(
    conn: Connection, row: Row[Any], accepted: Row[Any] | None, message_id: str | None, event: Row[Any]
) -> None:
    if accepted is None:
        attempts.record(conn, [_unclaimed(conn, row, message_id, event)])
    elif accepted.outcome not in _MAY_BE_IT and accepted.late_outcome is None:
        conn.execute(
            update(attempt)
            .where(_a.token == accepted.token, _a.late_outcome.is_(None))
            .values(late_outcome="accepted", late_message_id=message_id, late_at=ledger_now())
        )


def _unclaimed(conn: Connection, row: Row[Any], message_id: str | None, event: Row[Any]) -> Attempt:
    """An acceptance that no attempt of this ledger explains: a lost copy of it has sent the message."""
    (token,) = next_tokens(conn, 1)
    return Attempt(
        token=token,
        manifest_id=row.manifest_id,
        ordinal=row.ordinal,
        claimed_by="provider event",
        gateway=event.provider,
        account=row.account or event.account or "",
        claimed_at=event.received_at,
        stage=Stage.ON_WIRE,
        outcome="accepted",
        charged=False,
        message_id=message_id,
        detail="reported by the provider; no attempt of this ledger",
    )


def suppress(conn: Connection, message: Row[Any], event: Any, limits: Suppression) -> None:
    """Let the suppression list hear of an event: ``event`` has a kind, and says whether it is permanent.

    ``message``: tenant, address_hash, operation_key.
    """
    tenant, address, key = message.tenant, message.address_hash, message.operation_key
    match EventKind(event.kind):
        case EventKind.COMPLAINED:
            reason = SuppressionReason.COMPLAINED
        case EventKind.UNSUBSCRIBED:
            reason = SuppressionReason.OPTED_OUT
        case EventKind.BOUNCED | EventKind.REJECTED if event.kind == EventKind.BOUNCED or event.permanent:
            suppressions.count_bounces(conn, tenant, address, limits, key)
            return
        case _:
            return
    suppressions.add(conn, tenant, address, reason, lasts=None, source="provider event", operation_key=key)


def _place(row: Row[Any]) -> tuple[int, int]:
    return row.manifest_id, row.ordinal


def _named(row: Row[Any]) -> dict[str, Any]:
    return {"manifest_id": row.manifest_id, "ordinal": row.ordinal}

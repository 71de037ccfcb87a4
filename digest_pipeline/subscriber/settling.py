"""What a provider call ends as for a pushed key: one arrow, one answer, and word to the rate gate."""

from __future__ import annotations

from typing import assert_never

from sqlalchemy import Connection

from digest_pipeline.delivery import gate_keeping
from digest_pipeline.delivery.plan import MICROS, SendPlan
from digest_pipeline.delivery.retry_policy import believed
from digest_pipeline.ledger import receipts
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.outcomes import (
    Accepted,
    AccountRefused,
    Ambiguous,
    NotSent,
    Outcome,
    Refused,
    Throttled,
)
from digest_pipeline.subscriber import replies
from digest_pipeline.subscriber.claiming import Claim
from digest_pipeline.subscriber.replies import HALTED, INTEGRITY, Reply

AGAIN = 1.0
"""Seconds after which an unknown that its gateway can settle is worth another push."""

_LOST = replies.unknown(AGAIN)
"""The lease ended before the answer came: somebody else may be at it."""


def settle(conn: Connection, plan: SendPlan, claim: Claim, outcome: Outcome | None) -> Reply:
    """Write how a claim ended and return the answer; None: it was released before the wire.

    While a key is in doubt, nothing but an acceptance ends that: a refusal of the second attempt says
    nothing about the first.
    """
    key, token, ambiguous = claim.key, claim.token, claim.is_ambiguous
    match outcome if outcome is None else believed(outcome, tried=ambiguous):
        case Accepted(message_id=message_id, replayed=replayed, proof=proof):
            receipts.complete(conn, key, message_id, proof)
            return replies.complete(message_id, replayed=replayed)
        case Ambiguous(integrity=True, detail=detail):
            receipts.doubt(conn, key, token, delay=None, again=True, charged=True, detail=detail)
            return INTEGRITY
        case Ambiguous(detail=detail):
            return _doubt(conn, plan, claim, detail, again=True)
        case Refused(failure_class=failure_class, detail=detail, suppressed=suppressed):
            if ambiguous:
                return _doubt(conn, plan, claim, detail)
            kept = receipts.reject(conn, key, token, failure_class, detail, suppressed=suppressed)
            # Not kept, and rejected under our token: an earlier try's commit, whose answer was lost.
            kept = kept or receipts.is_rejected(conn, key, token)
            return replies.rejected(failure_class, suppressed=suppressed) if kept else _LOST
        case NotSent(detail=detail, retry_after=wait):
            if ambiguous:
                return _doubt(conn, plan, claim, detail)
            kept = receipts.release(conn, key, token, delay=int((wait or 0.0) * MICROS), charged=True)
            return replies.retry(wait) if kept else _LOST
        case Throttled(detail=detail, retry_after=wait):
            kept = _give_back(conn, claim, detail)
            return replies.throttled(gate_keeping.pause_for(wait)) if kept else _LOST
        case AccountRefused(detail=detail):
            return HALTED if _give_back(conn, claim, detail) else _LOST
        case None:
            kept = _give_back(conn, claim, "released before the wire")
            return replies.throttled(AGAIN) if kept else _LOST
        case _:
            assert_never(outcome)


def _doubt(conn: Connection, plan: SendPlan, claim: Claim, detail: str, *, again: bool = False) -> Reply:
    delay = plan.evidence.delay
    micros = None if delay is None else int(delay * MICROS)
    receipts.doubt(conn, claim.key, claim.token, delay=micros, again=again, charged=True, detail=detail)
    return replies.unknown(None if delay is None else max(AGAIN, delay))


def _give_back(conn: Connection, claim: Claim, detail: str) -> bool:
    """Nobody's attempt: back to where it was. False: the claim was lost meanwhile."""
    if claim.is_ambiguous:
        return receipts.doubt(
            conn, claim.key, claim.token, delay=0, again=False, charged=False, detail=detail
        )
    return receipts.release(conn, claim.key, claim.token, delay=0, charged=False)


def tell_the_gate(ledger: Ledger, plan: SendPlan, claim: Claim, outcome: Outcome | None) -> None:
    """Close, halt or reopen the account's gate, for everybody who sends through it."""
    match outcome:
        case Throttled(retry_after=wait):
            gate_keeping.close_gate(ledger, plan.gate, gate_keeping.pause_for(wait))
        case AccountRefused(detail=detail):
            # Free text of the provider stays in the receipt: this one reaches reports.
            gate_keeping.halt_gate(ledger, plan.gate, f"account: {' '.join(detail.split()[:2])}")
    if claim.probe and isinstance(outcome, Accepted | Refused | Throttled):
        # A verdict about a message, or about speed, means that the account works again.
        gate_keeping.reopen_gate(ledger, plan.gate)

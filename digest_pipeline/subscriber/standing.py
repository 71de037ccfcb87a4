"""What is known of a pushed key before anything is done: often that is the whole answer."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection

from digest_pipeline.delivery.plan import MICROS, SendPlan
from digest_pipeline.ledger import provider_events, receipts
from digest_pipeline.ledger.receipts import Receipt, ReceiptState
from digest_pipeline.outcomes import FailureClass
from digest_pipeline.subscriber import replies
from digest_pipeline.subscriber.pushes import Push
from digest_pipeline.subscriber.replies import INTEGRITY, Reply


def needs_writing(receipt: Receipt | None) -> bool:
    """Whether ``stand`` may change something: a lease that is over, an event about what is unknown."""
    if receipt is None or receipt.state is ReceiptState.RECEIVED:
        return False
    lease_over = receipt.state is ReceiptState.SENDING and receipt.lease_left <= 0
    return lease_over or receipt.state is ReceiptState.UNKNOWN


def stand(conn: Connection, push: Push, plans: Iterable[SendPlan]) -> Reply | Receipt | None:
    """Return the answer that a key has already, or what is to be worked on: its receipt, None for a new key.

    Expires a claim whose lease is over, and applies what events prove about one that is unknown.
    """
    receipt = receipts.lock(conn, push.key)
    if receipt is None:
        return None
    if receipt.state is ReceiptState.SENDING and receipt.lease_left <= 0:
        receipts.expire(conn, push.key, receipt.token, delay=_delay(receipt, plans))
        receipt = receipts.read(conn, push.key)
        assert receipt is not None
    if receipt.state is ReceiptState.UNKNOWN and receipt.payload_hash == push.payload_hash:
        proved = provider_events.proof_of(conn, push.key)
        if proved is not None:
            proof, message_id = proved
            receipts.complete(conn, push.key, message_id, proof)
            return replies.complete(message_id, replayed=True)
    return answer_of(receipt, push)


def answer_of(receipt: Receipt | None, push: Push) -> Reply | Receipt | None:
    """Return what a receipt answers as it stands, or itself where something can be done about it."""
    if receipt is None:
        return None
    if receipt.payload_hash != push.payload_hash:
        return INTEGRITY
    wait = None if receipt.due_at is None else (receipt.due_at - receipt.now) / MICROS
    match receipt.state:
        case ReceiptState.COMPLETE:
            return replies.complete(receipt.message_id, replayed=True)
        case ReceiptState.REJECTED:
            return replies.rejected(
                receipt.failure_class or FailureClass.CONTENT, suppressed=receipt.suppressed
            )
        case ReceiptState.SENDING if receipt.lease_left > 0:
            return replies.busy(receipt.lease_left / MICROS)
        case ReceiptState.RECEIVED if wait is not None and wait > 0:
            return replies.retry(wait)
        case ReceiptState.UNKNOWN if wait is None or wait > 0:
            return replies.unknown(wait)
    return receipt


def plan_of(receipt: Receipt, plans: Iterable[SendPlan]) -> SendPlan | None:
    """Return a plan of the gateway and account at which a receipt is in doubt; None where it is not here."""
    for plan in plans:
        if (plan.gateway.name, plan.gateway.account) == (receipt.gateway, receipt.account):
            return plan
    return None


def _delay(receipt: Receipt, plans: Iterable[SendPlan]) -> int | None:
    """Return the microseconds until an expired claim can be asked about; None: by nothing of ours."""
    plan = plan_of(receipt, plans)
    delay = 0.0 if plan is None else plan.evidence.delay
    return None if delay is None else int(delay * MICROS)

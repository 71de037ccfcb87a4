"""Settling an unknown receipt by asking its provider, under the same rules as a delivery's."""

from __future__ import annotations

import time
from typing import assert_never

from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool

from digest_pipeline.delivery.plan import MICROS, SendPlan
from digest_pipeline.ledger import receipts
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.receipts import Receipt
from digest_pipeline.outcomes import Absent, Found, LookUp
from digest_pipeline.reconciliation.asking import ask, take_permits
from digest_pipeline.reconciliation.evidence import Doubt, Finding, apart, judge
from digest_pipeline.subscriber import replies
from digest_pipeline.subscriber.replies import Reply

ASK_AGAIN = 30.0
"""Seconds after a question that settled nothing."""


def can_resend(plan: SendPlan, receipt: Receipt) -> bool:
    """Whether the same key again is safe: the provider surely remembers it, and repeats its answer."""
    lifetime, since = plan.resend_lifetime, receipt.ambiguous_at
    return lifetime is not None and since is not None and since > receipt.now - lifetime


async def seek(ledger: Ledger, plan: SendPlan, receipt: Receipt) -> Reply:
    """Ask the provider about an unknown key and write what the answer proves; the answer to the push.

    A key that is disproved is sent by the next push of it.
    """
    if not plan.gateway.capabilities.look_up:
        await run_in_threadpool(ledger.transact, lambda conn: receipts.hold(conn, receipt))
        return replies.unknown(None)
    permits = await run_in_threadpool(take_permits, ledger, plan, 1)
    if not permits.starts:
        return replies.unknown(permits.again_in or ASK_AGAIN)
    read_at = time.monotonic()
    (reply,) = await ask(ledger, plan, [receipt.operation_key], permits.starts)
    asked_at = receipt.now + int((reply.began - read_at) * MICROS)
    control_found = isinstance(reply.answer, Absent) and await _control_found(ledger, plan)
    doubt = Doubt(receipt.ambiguous_at or 0, receipt.ended_at or receipt.claimed_at or 0, receipt.absent_at)
    can, timeout = plan.gateway.capabilities, plan.digest.sending.timeout_seconds
    finding = judge(reply.answer, doubt, can, timeout, asked_at, control_found=control_found)
    return await run_in_threadpool(
        ledger.transact, lambda conn: _apply(conn, receipt, finding, reply.answer, apart(can))
    )


async def _control_found(ledger: Ledger, plan: SendPlan) -> bool:
    """Whether look-ups work at all just now: a key that was surely sent must be found."""
    can = plan.gateway.capabilities
    assert can.visibility_delay is not None
    assert can.look_up_retention is not None
    visible, retention = (
        int(one.total_seconds() * MICROS) for one in (can.visibility_delay, can.look_up_retention)
    )
    with ledger.read() as conn:
        key = receipts.known_sent_key(conn, plan.gateway.name, plan.gateway.account, visible, retention)
    if key is None:
        return False
    starts = (await run_in_threadpool(take_permits, ledger, plan, 1)).starts
    answers = await ask(ledger, plan, [key] * len(starts), starts)
    return any(isinstance(one.answer, Found) for one in answers)


def _apply(conn: Connection, receipt: Receipt, finding: Finding, answer: LookUp, between: int) -> Reply:
    match finding:
        case Finding.SENT:
            assert isinstance(answer, Found)
            receipts.complete(conn, receipt.operation_key, answer.message_id, answer.proof)
            return replies.complete(answer.message_id, replayed=True)
        case Finding.ABSENT_ONCE:
            receipts.note_absence(conn, receipt, between)
            return replies.unknown(between / MICROS)
        case Finding.DISPROVED:
            # Not "retry": what this push stands for was in doubt, and its sender still says so.
            receipts.disprove(conn, receipt)
            return replies.unknown(1.0)
        case Finding.ASK_LATER:
            wait = max(ASK_AGAIN, between / MICROS)
            receipts.ask_later(conn, receipt, int(wait * MICROS))
            return replies.unknown(wait)
        case Finding.NO_EVIDENCE:
            receipts.hold(conn, receipt)
            return replies.unknown(None)
        case _:
            assert_never(finding)

"""Deciding about a push: once per key, durably, before it is answered.

Read from ``Receiver.take`` downwards. No transaction is held while content is fetched or a message is sent;
a process that dies in between leaves a claim whose lease ends as unknown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool

from digest_pipeline.content.message import unpack
from digest_pipeline.delivery import clock, rate_gate
from digest_pipeline.delivery.plan import MICROS, SendPlan
from digest_pipeline.errors import EnvironmentMismatchError, LedgerIntegrityError
from digest_pipeline.gateways.base import Envelope
from digest_pipeline.ledger import migrate, receipts
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.frozen_content import Frozen, Gone
from digest_pipeline.ledger.receipts import Receipt, ReceiptState
from digest_pipeline.outcomes import Ambiguous, FailureClass, Outcome
from digest_pipeline.subscriber import claiming, evidence, log, replies, settling, standing
from digest_pipeline.subscriber.claiming import Claim, Wanted
from digest_pipeline.subscriber.content import Contents, ContentUnavailableError
from digest_pipeline.subscriber.pushes import Push
from digest_pipeline.subscriber.replies import HALTED, INTEGRITY, Reply

T = TypeVar("T")
PATIENCE = 5.0
"""Seconds for which a busy ledger is tried before anything was sent; afterwards longer."""

OTHER_ACCOUNT = 300.0
"""Seconds until a key that is in doubt at an account of another configuration is worth another push."""

_SLACK = rate_gate.SLACK / MICROS


class Receiver:
    """Takes pushes for the digests of ``plans``, whose gateways are entered."""

    def __init__(
        self, ledger: Ledger, plans: Mapping[str, SendPlan], contents: Contents, environment: str
    ) -> None:
        self._ledger, self._plans = ledger, plans
        self._contents, self._environment = contents, environment

    async def take(self, push: Push) -> Reply:
        """Return the decision about a push. Its message goes out at most once per key, whoever else takes it."""
        try:
            seen = await run_in_threadpool(self._stand, push)
            if isinstance(seen, Reply):
                return seen
            if seen is not None and seen.state is ReceiptState.UNKNOWN:
                return await self._settle_unknown(push, seen)
            return await self._send(push, seen)
        except EnvironmentMismatchError as error:
            log.ledger_refuses(type(error).__name__)
            return HALTED

    def _stand(self, push: Push) -> Reply | Receipt | None:
        with self._ledger.read() as conn:
            receipt = receipts.read(conn, push.key)
        if not standing.needs_writing(receipt):
            return standing.answer_of(receipt, push)
        return self._write(lambda conn: standing.stand(conn, push, self._plans.values()))

    async def _settle_unknown(self, push: Push, receipt: Receipt) -> Reply:
        plan = standing.plan_of(receipt, self._plans.values())
        if plan is None:
            return replies.unknown(OTHER_ACCOUNT)
        if evidence.can_resend(plan, receipt):
            return await self._send(push, receipt)
        return await evidence.seek(self._ledger, plan, receipt)

    async def _send(self, push: Push, seen: Receipt | None) -> Reply:
        in_doubt = seen is not None and seen.ambiguous_at is not None
        try:
            found = await self._contents.fetch(push.key)
        except ContentUnavailableError as error:
            log.content_unavailable(str(error))
            return replies.unknown(settling.AGAIN) if in_doubt else replies.retry()
        if not isinstance(found, Frozen):
            return await self._without_content(push, seen, found)
        wanted = self._wanted(push, found)
        if isinstance(wanted, Reply):
            return wanted
        claim = await run_in_threadpool(self._write, partial(claiming.claim, wanted=wanted, seen=seen))
        if isinstance(claim, Reply):
            return claim
        return await self._deliver(wanted, claim)

    def _wanted(self, push: Push, found: Frozen) -> Wanted | Reply:
        """Return what to send, if content and push are about the same message and it is sent from here."""
        named = (push.digest, push.tenant)
        if any(
            name not in (None, given) for name, given in zip(named, (found.digest, found.tenant), strict=True)
        ):
            return INTEGRITY
        try:
            message = unpack(found.document, push.payload_hash)
        except LedgerIntegrityError:
            return INTEGRITY
        plan = self._plans.get(found.digest)
        if plan is None:
            return replies.refused(404)
        return Wanted(push, plan, found.tenant, Envelope(push.key, found.recipient, message))

    async def _without_content(self, push: Push, seen: Receipt | None, found: Gone | None) -> Reply:
        if seen is not None and seen.ambiguous_at is not None:
            return replies.unknown(None)
        if found is None:  # another pipeline's ledger, or one that is behind
            log.content_unavailable("no content: nobody has sealed it")
            return replies.retry()
        return await run_in_threadpool(self._write, partial(_refuse_gone, push=push))

    async def _deliver(self, wanted: Wanted, claim: Claim) -> Reply:
        outcome = await self._offer(wanted, claim)
        settled = partial(settling.settle, plan=wanted.plan, claim=claim, outcome=outcome)
        reply = await run_in_threadpool(self._ledger.transact, settled)
        await run_in_threadpool(settling.tell_the_gate, self._ledger, wanted.plan, claim, outcome)
        return reply

    async def _offer(self, wanted: Wanted, claim: Claim) -> Outcome | None:
        """Make the one provider call of a claim; None: it was given back before the wire."""
        start = claim.start
        await asyncio.sleep(max(0.0, start - time.monotonic()))
        while time.monotonic() > start + _SLACK and clock.now() < claim.fence:
            start = await run_in_threadpool(self._write, partial(claiming.fresh_start, plan=wanted.plan))
            if start > time.monotonic() + wanted.plan.digest.sending.timeout_seconds:
                return None
            await asyncio.sleep(max(0.0, start - time.monotonic()))
        if clock.now() > claim.fence:
            return None
        try:
            return await wanted.plan.gateway.send(wanted.envelope)
        except Exception as error:  # noqa: BLE001
            # A gateway's bug: the message may have gone out.
            return Ambiguous(f"the gateway raised {type(error).__name__}")

    def _write(self, work: Callable[[Connection], T]) -> T:
        def checked(conn: Connection) -> T:
            # Every time: a connection may come back to a restored database.
            migrate.require_same_environment(conn, self._environment)
            return work(conn)

        return self._ledger.transact(checked, patience=PATIENCE)


def _refuse_gone(conn: Connection, push: Push) -> Reply:
    """The pipeline has erased or settled it: nothing is sent, now or later."""
    receipts.receive(conn, push.key, push.payload_hash)
    receipt = receipts.lock(conn, push.key)
    assert receipt is not None
    answer = standing.answer_of(receipt, push)
    if isinstance(answer, Reply):
        return answer
    if receipt.state is not ReceiptState.RECEIVED:
        return replies.busy(1.0)
    receipts.refuse(conn, receipt, FailureClass.CONTENT, "its content is gone", suppressed=False)
    return replies.rejected(FailureClass.CONTENT, suppressed=False)

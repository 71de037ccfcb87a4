"""A sample of a customer's mail to an address that a person names: through the real gateway, as no delivery."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass, replace
from typing import assert_never

from sqlalchemy import Connection, or_, select

from digest_pipeline.addresses import Rejection, address_hash, check_address
from digest_pipeline.delivery import rate_gate
from digest_pipeline.delivery.gate_keeping import close_gate, pause_for, permit_one
from digest_pipeline.delivery.plan import MICROS, gate_name
from digest_pipeline.delivery.run import require_may_send
from digest_pipeline.eligibility.source import Source
from digest_pipeline.errors import DeliveryHaltedError, InputError
from digest_pipeline.gateways.base import Envelope, Gateway
from digest_pipeline.ledger import audit, gates, pauses
from digest_pipeline.ledger.audit import Action
from digest_pipeline.ledger.dialects import ledger_now
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.schema import suppression
from digest_pipeline.ledger.witness import Witness
from digest_pipeline.operations.decisions import require_signed
from digest_pipeline.operations.preview import sample_message
from digest_pipeline.outcomes import (
    Accepted,
    AccountRefused,
    Ambiguous,
    FailureClass,
    NotSent,
    Outcome,
    Refused,
    Throttled,
)
from digest_pipeline.periods import Period
from digest_pipeline.spec import Digest

KEY_PREFIX = "test:"
"""An operation key has two colons, or none; a sample's has one: it can never be a delivery's."""
MARK = "[test]"
HORIZON_SECONDS = 10.0
_SLACK = rate_gate.SLACK / MICROS


@dataclass(frozen=True, slots=True)
class Sample:
    """What is sent as whom: one customer's mail of a period, by a person, from this host."""

    digest: Digest
    period: Period
    customer_id: str
    who: str
    reason: str
    environment: str
    witness: Witness


@dataclass(frozen=True, slots=True)
class Sent:
    """What came of it. ``key`` is what the provider was given; nothing in the ledger has it."""

    key: str
    outcome: Outcome

    @property
    def arrived(self) -> bool:
        """Whether the provider took it for sure."""
        return isinstance(self.outcome, Accepted)

    def facts(self) -> dict[str, str | None]:
        """Return it in words, without the address."""
        match self.outcome:
            case Accepted(message_id=message_id):
                return {"key": self.key, "outcome": "accepted", "message_id": message_id}
            case (
                Refused(failure_class=failure_class, detail=detail)
                | NotSent(failure_class=failure_class, detail=detail)
            ):
                word = "refused" if isinstance(self.outcome, Refused) else "not sent"
                return {"key": self.key, "outcome": f"{word} ({failure_class})", "detail": detail}
            case Throttled(detail=detail):
                return {"key": self.key, "outcome": "throttled, not sent", "detail": detail}
            case AccountRefused(detail=detail):
                return {"key": self.key, "outcome": "the account is refused, not sent", "detail": detail}
            case Ambiguous(detail=detail):
                return {"key": self.key, "outcome": "unknown: it may have been sent", "detail": detail}
            case _:
                assert_never(self.outcome)


def send_test(ledger: Ledger, source: Source, gateway: Gateway, sample: Sample, address: str) -> Sent:
    """Send a customer's mail of a period to ``address``, marked as a test, and return what became of it.

    It has a key of its own, is no delivery, marks none as sent, and its unsubscribe link is nobody's. It
    takes a permit of the rate gate and is written to the audit trail, without the address, before it goes
    out. Raises InputError where sending is disabled, the gateway is paused or the address cannot be or does
    not want to be written to; EnvironmentMismatchError in another environment's ledger; DeliveryHaltedError
    while the gate lets nothing through.
    """
    require_signed("a test mail", sample.who, sample.reason)
    recipient = _require_sendable(sample.digest, gateway, address)
    key = KEY_PREFIX + secrets.token_hex(16)
    message, tenant = sample_message(ledger, source, sample.digest, sample.period, sample.customer_id, key)
    marked = replace(message, subject=f"{MARK} {message.subject}")
    return Sent(key, asyncio.run(_send(ledger, gateway, sample, tenant, Envelope(key, recipient, marked))))


def _require_sendable(digest: Digest, gateway: Gateway, address: str) -> str:
    if not digest.sending.enabled:
        raise InputError("sending is disabled (sending.enabled, or DIGEST_SENDING=off): no test mail is sent")
    if gateway.name == "https_push":
        raise InputError(
            "the https_push gateway carries no content: send the test where the subscriber's gateway is"
        )
    checked = check_address(address)
    if isinstance(checked, Rejection):
        raise InputError(f"--to: not one address that can be written to ({checked.reason})")
    return checked.value


async def _send(ledger: Ledger, gateway: Gateway, sample: Sample, tenant: str, envelope: Envelope) -> Outcome:
    async with gateway:  # before the permit: it is good for a quarter of a second
        start = ledger.transact(lambda conn: _begin(conn, gateway, sample, tenant, envelope))
        await asyncio.sleep(max(0.0, start - time.monotonic()))
        if time.monotonic() > start + _SLACK:
            return NotSent(FailureClass.CONNECT, "its permit came too late; try again")
        outcome = await gateway.send(envelope)
    if isinstance(outcome, Throttled):
        close_gate(ledger, gate_name(gateway), pause_for(outcome.retry_after))
    return outcome


def _begin(conn: Connection, gateway: Gateway, sample: Sample, tenant: str, envelope: Envelope) -> float:
    """Take a permit and write down who sends what, together; return when it may go out."""
    require_may_send(conn, sample.environment, sample.witness)
    if pauses.gateway_is_paused(conn, gateway.name):
        raise InputError(f"the gateway {gateway.name} is paused: nothing goes through it")
    if _is_suppressed(conn, tenant, address_hash(envelope.recipient)):
        raise InputError("--to: this address is on the suppression list, which test mails respect, too")
    start = permit_one(conn, gate_name(gateway), sample.digest.rate, HORIZON_SECONDS)
    if start is None:
        gate = gates.read(conn, gate_name(gateway))
        halted = gate.halt_reason if gate is not None else None
        why = f"sending is halted ({halted})" if halted else "the rate gate is closed or busy"
        raise DeliveryHaltedError(f"{why}: no test mail was sent; try again later")
    action = Action("send_test", sample.who, sample.reason, sample.digest.name, sample.period.label, tenant)
    audit.record(conn, action, {"key": envelope.operation_key, "customer": sample.customer_id})
    return start


def _is_suppressed(conn: Connection, tenant: str, hashed: str) -> bool:
    query = select(suppression.c.reason).where(
        suppression.c.tenant == tenant,
        suppression.c.address_hash == hashed,
        or_(suppression.c.expires_at.is_(None), suppression.c.expires_at > ledger_now()),
    )
    return conn.execute(query).first() is not None

"""One claim of a pushed key: everything that could forbid it, the rate gate, and the mark "about to send"."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from sqlalchemy import Connection

from digest_pipeline.addresses import Address, address_hash, check_address
from digest_pipeline.delivery import clock, rate_gate
from digest_pipeline.delivery.plan import MICROS, SendPlan
from digest_pipeline.gateways.base import Envelope
from digest_pipeline.ledger import frozen_content, gates, pauses, receipts
from digest_pipeline.ledger.gates import GateState
from digest_pipeline.ledger.receipts import Receipt, ReceiptState
from digest_pipeline.outcomes import FailureClass
from digest_pipeline.subscriber import replies
from digest_pipeline.subscriber.pushes import Push
from digest_pipeline.subscriber.replies import HALTED, Reply
from digest_pipeline.subscriber.standing import answer_of

HORIZON = 1_000_000
"""Microseconds for which a push waits for its permit; beyond them it is denied and comes again."""

PROBES_APART = 2 * MICROS
"""Between two tries of a halted account, in microseconds."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A key that this process may send now. ``start`` is on the monotonic clock, ``fence`` on ``delivery.clock``."""

    key: str
    token: int
    start: float
    fence: float
    probe: bool
    is_ambiguous: bool


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be sent: the push, its message, and by which plan."""

    push: Push
    plan: SendPlan
    tenant: str
    envelope: Envelope


def claim(conn: Connection, wanted: Wanted, seen: Receipt | None) -> Claim | Reply:
    """Claim a key, or return why not. ``seen``: the receipt that this was decided by; another one is answered.

    Commit before the message goes out. A denial of the rate gate changes no receipt.
    """
    anchor = clock.now()
    receipt = _current(conn, wanted.push, seen)
    if not isinstance(receipt, Receipt):
        return receipt
    if forbidden := _forbidden(conn, wanted, receipt):
        return forbidden
    plan = wanted.plan
    now, locked = gates.lock(conn, [plan.gate])
    read_at = time.monotonic()
    gate = _probed(locked[plan.gate], now)
    grant = rate_gate.grant(gate, now, 1, HORIZON)
    if not grant.starts:
        if grant.halted:
            return HALTED
        return replies.throttled(((grant.again_at or now) - now) / MICROS)
    gates.save(conn, rate_gate.charge(gate, grant.starts, now))
    sending = plan.digest.sending
    lease = int(sending.lease_seconds * MICROS)
    token = receipts.claim(conn, receipt, plan.gateway.name, plan.gateway.account, lease)
    if token is None:  # in doubt at another account: nothing of ours may be sent
        return replies.unknown(None)
    hashed = address_hash(wanted.envelope.recipient)
    receipts.address(conn, receipt.operation_key, token, plan.digest.name, wanted.tenant, hashed)
    return Claim(
        key=receipt.operation_key,
        token=token,
        start=read_at + (grant.starts[0] - now) / MICROS,
        fence=anchor + sending.lease_seconds - sending.timeout_seconds - 1.0,
        probe=grant.probe,
        is_ambiguous=receipt.ambiguous_at is not None,
    )


def _current(conn: Connection, push: Push, seen: Receipt | None) -> Receipt | Reply:
    """Return the locked receipt, made where the key is new, if it still is what was seen."""
    receipts.receive(conn, push.key, push.payload_hash)
    receipt = receipts.lock(conn, push.key)
    assert receipt is not None
    answer = answer_of(receipt, push)
    if isinstance(answer, Reply):
        return answer
    before = (ReceiptState.RECEIVED, 0) if seen is None else (seen.state, seen.token)
    if (receipt.state, receipt.token) != before:
        return replies.busy(1.0)  # it moved under our feet: decide anew
    return receipt


def _forbidden(conn: Connection, wanted: Wanted, receipt: Receipt) -> Reply | None:
    digest, gateway = wanted.plan.digest, wanted.plan.gateway
    if not digest.sending.enabled or pauses.covering(conn, digest.name, wanted.tenant, gateway.name):
        return HALTED
    address = check_address(wanted.envelope.recipient)
    # What is no address at all is the gateway's to refuse.
    if not isinstance(address, Address) or not frozen_content.is_suppressed(
        conn, wanted.tenant, address_hash(address.value)
    ):
        return None
    if receipt.ambiguous_at is not None:
        receipts.hold(conn, receipt)
        return replies.unknown(None)
    receipts.refuse(conn, receipt, FailureClass.RECIPIENT, "the address is suppressed here", suppressed=True)
    return replies.rejected(FailureClass.RECIPIENT, suppressed=True)


def _probed(gate: GateState, now: int) -> GateState:
    """Let a push try a halted account: whoever pushes is halted by our answer, and comes to try again."""
    if gate.probe_at is None or now < gate.probe_at - rate_gate.PROBE_EVERY + PROBES_APART:
        return gate
    return rate_gate.allow_probe(gate, now)


def fresh_start(conn: Connection, plan: SendPlan) -> float:
    """Return when another permit starts, for a claim that was late for its own; infinite where there is none."""
    now, locked = gates.lock(conn, [plan.gate])
    read_at = time.monotonic()
    gate = locked[plan.gate]
    grant = rate_gate.grant(gate, now, 1, HORIZON)
    if grant.probe or not grant.starts:
        return math.inf
    gates.save(conn, rate_gate.charge(gate, grant.starts, now))
    return read_at + (grant.starts[0] - now) / MICROS

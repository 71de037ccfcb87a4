"""Asking the provider about keys: a permit for each question, side by side, never raising."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from digest_pipeline.delivery import gate_keeping, rate_gate
from digest_pipeline.delivery.plan import MICROS, SendPlan
from digest_pipeline.ledger import gates
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.outcomes import LookUp, LookUpFailed

HORIZON = 1.0
"""Seconds ahead for which permits are taken."""


@dataclass(frozen=True, slots=True)
class Permits:
    """When questions may go out, on this process's monotonic clock (seconds).

    Without any, ``again_in`` says in how many seconds to ask the gate again; None with ``halted``:
    the account is refused, and what may try it again is a send, not a question.
    """

    starts: tuple[float, ...] = ()
    again_in: float | None = None
    halted: str | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What the provider said about one key, and when it was asked (monotonic clock, seconds)."""

    answer: LookUp
    began: float


def take_permits(ledger: Ledger, plan: SendPlan, wanted: int, horizon: float = HORIZON) -> Permits:
    """Take up to ``wanted`` permits from the gate that sends go through, and charge it for them."""
    return ledger.transact(lambda conn: _take(conn, plan, wanted, int(horizon * MICROS)))


def _take(conn: Connection, plan: SendPlan, wanted: int, horizon: int) -> Permits:
    now, locked = gates.lock(conn, [plan.gate])
    if plan.gate not in locked:
        gates.configure(conn, plan.gate, plan.digest.rate.per_second, plan.digest.rate.burst)
        now, locked = gates.lock(conn, [plan.gate])
    gate = locked[plan.gate]
    if gate.halt_reason is not None:
        return Permits(halted=gate.halt_reason)
    grant = rate_gate.grant(gate, now, wanted, horizon)
    gates.save(conn, rate_gate.charge(gate, grant.starts, now))
    read_at = time.monotonic()
    again_in = None if grant.again_at is None else max(0.0, (grant.again_at - now) / MICROS)
    return Permits(tuple(read_at + (start - now) / MICROS for start in grant.starts), again_in)


async def ask(ledger: Ledger, plan: SendPlan, keys: Sequence[str], starts: Sequence[float]) -> list[Reply]:
    """Ask about each key at its start; return the replies in the order of the keys.

    At most the digest's ``concurrency`` questions are under way. A provider that asks for a pause
    closes the gate for everyone, as it does for a send.
    """
    limit = asyncio.Semaphore(plan.digest.sending.concurrency)

    async def one(key: str, start: float) -> Reply:
        await asyncio.sleep(max(0.0, start - time.monotonic()))
        async with limit:
            began = time.monotonic()
            return Reply(await _look_up(plan, key), began)

    replies = await asyncio.gather(*(one(key, start) for key, start in zip(keys, starts, strict=True)))
    pauses = [
        reply.answer.retry_after
        for reply in replies
        if isinstance(reply.answer, LookUpFailed) and reply.answer.retry_after is not None
    ]
    if pauses:
        gate_keeping.close_gate(ledger, plan.gate, max(pauses))
    return replies


async def _look_up(plan: SendPlan, key: str) -> LookUp:
    try:
        return await plan.gateway.look_up(key)
    except Exception as error:  # noqa: BLE001
        # A gateway's bug answers nothing, and must not keep the other keys from being asked about.
        return LookUpFailed(f"the gateway raised {type(error).__name__}")

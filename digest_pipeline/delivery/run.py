"""Delivering a period: passes of the send loop until nothing is left that this run may do.

A pass first turns leases that have run out into unknown, sends what is due, then asks the provider
about what is unknown. The run waits only for what comes due soon; later due times stay in the ledger
for the next run. It returns a value for whatever happened and never raises for the provider.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import Connection

from digest_pipeline import telemetry
from digest_pipeline.delivery import gate_keeping, rate_gate
from digest_pipeline.delivery.loop import Sender, Tally
from digest_pipeline.delivery.plan import MICROS, SendPlan
from digest_pipeline.ledger import (
    attempts,
    claims,
    doubts,
    gates,
    migrate,
    provider_events,
    reads,
    restored,
    transitions,
)
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.witness import Witness
from digest_pipeline.reconciliation.evidence import Finding
from digest_pipeline.reconciliation.settle import settle_unknowns

T = TypeVar("T")
OTHERS_LEASES = 1.0
"""Seconds between looks at leases that other senders hold."""

ASKED_IN_VAIN = 3
"""Passes without any progress, because no look-up could be used, after which a run gives up for now."""


@dataclass(slots=True)
class Delivered:
    """What one run did. ``incomplete``: rows of open manifests are left that need another run."""

    accepted: int = 0
    suppressed: int = 0
    expired: int = 0
    lost_claims: int = 0
    window_closed: int = 0
    doubted: int = 0
    findings: Counter[Finding] = field(default_factory=Counter)
    halted: str | None = None
    out_of_time: bool = False
    seconds: float = 0.0

    def add(self, tally: Tally) -> None:
        """Add one pass of the send loop."""
        self.accepted += tally.accepted
        self.suppressed += tally.suppressed
        self.lost_claims += tally.lost_claims
        self.halted = tally.halted
        self.out_of_time = tally.out_of_time


def deliver(ledger: Ledger, plan: SendPlan) -> Delivered:
    """Send what is due in the plan's manifests and settle what is unknown; safe to run at any time.

    With sending disabled nothing is claimed; what is unknown is still asked about.
    Another run for the same period, before, after or at the same moment, sends nothing twice: the
    ledger's claims decide. Ends early, with ``halted``, when the provider refuses the account.
    """
    with rare_collections():
        return asyncio.run(deliver_until(ledger, plan))


@contextmanager
def rare_collections() -> Iterator[None]:
    """Keep the garbage collector from walking all that start-up made again every few thousand messages.

    It takes a quarter of a send loop's time otherwise, and more the more the process has imported.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


async def deliver_until(ledger: Ledger, plan: SendPlan, stop: asyncio.Event | None = None) -> Delivered:
    """Deliver on the caller's event loop, as ``deliver`` does, and come to an end soon after ``stop`` is set.

    Calls under way are then waited for and settled; claims that have not gone out are released.
    """
    began = time.monotonic()
    deadline = began + plan.digest.sending.run_limit_seconds
    done = Delivered()
    in_vain = 0
    stop = stop or asyncio.Event()
    async with plan.gateway:
        while not stop.is_set():
            ledger.transact(lambda conn: _begin_pass(conn, plan, done))
            tally = await _send(ledger, plan, deadline, stop) if plan.digest.sending.enabled else Tally()
            done.add(tally)
            if done.halted is not None or done.out_of_time:
                break
            findings = await unless_stopped(settle_unknowns(ledger, plan), stop) or Counter()
            done.findings += findings
            in_vain = in_vain + 1 if set(findings) == {Finding.ASK_LATER} and not tally.settled else 0
            if in_vain >= ASKED_IN_VAIN or not plan.digest.sending.enabled:
                break
            wait = _next_pass_in(ledger, plan)
            if wait is None or time.monotonic() + wait > deadline:
                break
            await unless_stopped(asyncio.sleep(wait), stop)
    if plan.witness is not None:
        with ledger.read() as conn:
            plan.witness.check(conn)  # the last pass's attempts, too
    done.seconds = time.monotonic() - began
    return done


async def _send(ledger: Ledger, plan: SendPlan, deadline: float, stop: asyncio.Event) -> Tally:
    sender = Sender(ledger, plan, deadline)

    async def stopping() -> None:
        await stop.wait()
        sender.stop()

    watching = asyncio.create_task(stopping())
    try:
        return await sender.run()
    finally:
        watching.cancel()


async def unless_stopped(work: Coroutine[Any, Any, T], stop: asyncio.Event) -> T | None:
    """Wait for some work and return its result; give it up, with None, as soon as ``stop`` is set.

    For what may end anywhere: questions to the provider, and waits.
    """
    task, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        task.cancel()
        stopped.cancel()
        await asyncio.wait((task, stopped))  # what is given up must not outlive the gateway it uses


def prepare(conn: Connection, plan: SendPlan) -> None:
    """Set the gate's budget from the specification, and let a halted account be tried once."""
    rate = plan.digest.rate
    gate_keeping.prepare_gate(conn, plan.gate, rate.per_second, rate.burst)


def require_may_send(conn: Connection, environment: str | None, witness: Witness | None) -> None:
    """Raise EnvironmentMismatchError for a ledger that is a copy, another environment's, or restored."""
    migrate.require_same_environment(conn, environment)
    if witness is not None:
        witness.check(conn)


def _begin_pass(conn: Connection, plan: SendPlan, done: Delivered) -> None:
    # Every pass, not only in a step of its own: Dagster may re-execute a run from its middle, and a
    # connection may come back to a restored database.
    require_may_send(conn, plan.environment, plan.witness)
    done.doubted += restored.settle_doubt(conn, plan.manifest_ids, plan.gateway.name, plan.gateway.account)
    delay = plan.evidence.delay
    expired = transitions.expire_lease(
        conn,
        plan.manifest_ids,
        plan.gateway.name,
        plan.gateway.account,
        None if delay is None else int(delay * MICROS),
    )
    attempts.record_expired(conn, expired)
    done.expired += len(expired)
    if expired:
        telemetry.leases_expired(len(expired))
    # After the leases, before anything is claimed: an event may prove that an expired claim was sent.
    limits = plan.digest.suppression
    telemetry.overtaken(provider_events.apply_parked(conn, plan.manifest_ids, lambda _digest: limits))
    doubts.resume(
        conn,
        plan.manifest_ids,
        plan.gateway.name,
        plan.gateway.account,
        can_resend=plan.resend_lifetime is not None,
    )
    for manifest_id in reads.closed_windows(conn, plan.manifest_ids):
        done.window_closed += transitions.close_window(conn, manifest_id)


def _next_pass_in(ledger: Ledger, plan: SendPlan) -> float | None:
    """Seconds until another pass has work; None when this run should end."""
    with ledger.read() as conn:
        due = claims.next_due(conn, plan.manifest_ids, plan.gateway.name)
        live, lease_left = claims.live_leases(conn, plan.manifest_ids)
        gate = gates.read(conn, plan.gate)
        now = reads.now(conn)
    sending = plan.digest.sending
    if due is not None and gate is not None:
        # What is due must also be let through: without this, a gate that is closed for an hour keeps
        # the run turning on the spot.
        due = max(due, (rate_gate.grant(gate, now, 1, 0).again_at or now) - now)
    if due is not None and due <= sending.in_run_wait_seconds * MICROS:
        return max(0.05, due / MICROS)
    if live and lease_left <= sending.lease_seconds * MICROS:
        # Another sender works, or died: its claims end in a result or in an expired lease, and
        # this run may not call the period done before.
        return min(OTHERS_LEASES, lease_left / MICROS + 0.05)
    return None

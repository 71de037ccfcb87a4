"""The pull worker: a sender's work without Dagster and without an open port, from the same ledger.

It looks for periods in which a delivery has work (sealed content that was not sent, retries and evidence that
came due, leases of dead senders that are over) and delivers them, again and again. It never freezes, renders,
reports or cleans: who seals a period does that, before and after. Any number of workers, and Dagster's runs,
may work on the same ledger at once: its claims decide who sends what.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from digest_pipeline import telemetry
from digest_pipeline.delivery import gate_keeping
from digest_pipeline.delivery.due_work import sending_of, through_the_gate
from digest_pipeline.delivery.plan import SendPlan, gate_name
from digest_pipeline.delivery.run import (
    Delivered,
    deliver_until,
    rare_collections,
    require_may_send,
    unless_stopped,
)
from digest_pipeline.errors import PeriodError
from digest_pipeline.gateways.base import Gateway
from digest_pipeline.ledger import follow_ups, gates, reads
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.follow_ups import FollowUp, Reason
from digest_pipeline.ledger.witness import Witness
from digest_pipeline.reconciliation.invariants import manifest_is_frozen
from digest_pipeline.spec import Digest


@dataclass(frozen=True, slots=True)
class Duty:
    """One digest that a worker sends. ``begin`` is called with each period before it is delivered: for what
    its specification permits.
    """

    digest: Digest
    make_gateway: Callable[[], Gateway]
    begin: Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Work:
    """What there is to do in one digest: period -> reason, and the periods' manifests."""

    gateway: Gateway
    periods: dict[str, Reason]
    manifest_ids: tuple[int, ...]
    note: str = ""


@dataclass(slots=True)
class Worked:
    """What a worker did. ``halted``: digest -> why its account is refused; ``refused``: manifests left alone."""

    accepted: int = 0
    rounds: int = 0
    halted: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


class Worker:
    """Delivers what is due in its digests, all at once, until it is stopped.

    ``environment`` and ``witness``: as in SendPlan. ``poll``: seconds between looks that find nothing.
    """

    def __init__(
        self,
        ledger: Ledger,
        duties: Sequence[Duty],
        environment: str | None,
        witness: Witness | None,
        poll: float,
        watch: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.ledger, self.duties, self.environment, self.witness = ledger, duties, environment, witness
        self.poll, self.watch = poll, watch
        self.run_id = f"worker-{secrets.token_hex(4)}"
        self.done = Worked()
        self._frozen: set[int] = set()

    async def run(self, stop: asyncio.Event, *, once: bool = False) -> Worked:
        """Work until ``stop`` is set, or, with ``once``, through what is due now.

        After ``stop``, calls under way are settled and claims that have not gone out are released. A ledger
        that cannot be reached is tried again, but for ``once``. Raises EnvironmentMismatchError for a ledger
        that this process may not send from.
        """
        telemetry.worker_started([duty.digest.name for duty in self.duties], self.run_id)
        with rare_collections():
            served = [asyncio.create_task(self._serve(duty, stop, once)) for duty in self.duties]
            ended = await asyncio.gather(*served, return_exceptions=True)
        for result in ended:
            if isinstance(result, BaseException):
                raise result
        telemetry.worker_stopped(self.done.accepted)
        return self.done

    async def _serve(self, duty: Duty, stop: asyncio.Event, once: bool) -> None:
        try:
            await self._rounds(duty, stop, once)
        except BaseException:
            stop.set()  # the others end in order before the error is told
            raise

    async def _rounds(self, duty: Duty, stop: asyncio.Event, once: bool) -> None:
        is_prepared = False
        while not stop.is_set():
            try:
                if not is_prepared:
                    await asyncio.to_thread(self._prepare, duty)
                    is_prepared = True
                progress, note = await self._round(duty, stop)
            except DBAPIError as error:
                if once:
                    raise
                telemetry.worker_looks_again(duty.digest.name, type(error.orig).__name__)
                progress, note = False, "the ledger cannot be reached"
            if once:
                return
            if not progress:
                telemetry.worker_waits(duty.digest.name, self.poll, note)
                self.watch(f"{duty.digest.name}: {note or 'nothing is due'}; looks every {self.poll:g} s")
                await unless_stopped(asyncio.sleep(self.poll), stop)

    async def _round(self, duty: Duty, stop: asyncio.Event) -> tuple[bool, str]:
        """Deliver what is due in a digest; return whether anything came of it, and else why not."""
        work = await asyncio.to_thread(self._look, duty)
        if not work.manifest_ids or stop.is_set():
            return False, work.note
        name = duty.digest.name
        telemetry.work_found(name, {period: str(reason) for period, reason in work.periods.items()})
        self.watch(f"{name}: delivers {', '.join(work.periods)}")
        for period in work.periods:
            await asyncio.to_thread(duty.begin, period)
        delivered = await deliver_until(self.ledger, self._plan(duty, work), stop)
        self._note(name, delivered)
        came_of_it = (
            delivered.accepted, delivered.suppressed, delivered.expired, delivered.window_closed,
            delivered.doubted, sum(delivered.findings.values()),
        )  # fmt: skip
        return any(came_of_it) and delivered.halted is None, work.note or delivered.halted or ""

    def _prepare(self, duty: Duty) -> None:
        """Set the gate's budget. Whoever starts a worker may have mended the account: it is tried at once."""
        name, rate = gate_name(duty.make_gateway()), duty.digest.rate

        def work(conn: Connection) -> None:
            require_may_send(conn, self.environment, self.witness)
            gate_keeping.prepare_gate(conn, name, rate.per_second, rate.burst)

        self.ledger.transact(work)

    def _look(self, duty: Duty) -> Work:
        gateway, digest = duty.make_gateway(), duty.digest
        with self.ledger.read() as conn:
            require_may_send(conn, self.environment, self.witness)
            found = follow_ups.deliveries(conn, digest.name, sending_of(digest, gateway, timedelta(0)))
            found, note = through_the_gate(found, gates.read(conn, gate_name(gateway)), reads.now(conn))
            # Content that is not sealed is for whoever builds it: a worker has no customer source.
            sealed = [
                one for one in found if one.reason is not Reason.CONTENT_NOT_SEALED and _is_of(digest, one)
            ]
            periods: dict[str, Reason] = {one.period: one.reason for one in sealed}
            ids = {period: reads.manifest_ids(conn, digest.name, period) for period in periods}
        sound = {period: reason for period, reason in periods.items() if self._is_sound(digest, ids[period])}
        return Work(gateway, sound, tuple(one for period in sound for one in ids[period]), note)

    def _is_sound(self, digest: Digest, ids: Sequence[int]) -> bool:
        """Whether manifests are what was sealed: what stops a period's run in Dagster stops it here."""
        new = [one for one in ids if one not in self._frozen]
        if not new:
            return True
        with self.ledger.read() as conn:
            verdict = manifest_is_frozen(conn, digest, new)
        if verdict.holds:
            self._frozen.update(new)
        elif self.done.refused.get(digest.name) != verdict.why:
            telemetry.work_refused(digest.name, verdict.why)
            self.done.refused[digest.name] = verdict.why
        return verdict.holds

    def _plan(self, duty: Duty, work: Work) -> SendPlan:
        return SendPlan(
            duty.digest,
            work.manifest_ids,
            work.gateway,
            self.run_id,
            duty.digest.name,
            self.environment,
            self.witness,
        )

    def _note(self, name: str, delivered: Delivered) -> None:
        self.done.accepted += delivered.accepted
        self.done.rounds += 1
        if delivered.halted is None:
            self.done.halted.pop(name, None)
        else:
            self.done.halted[name] = delivered.halted
        findings = {str(kind): count for kind, count in delivered.findings.items()}
        telemetry.work_done(name, delivered.accepted, findings, delivered.halted, delivered.seconds)


def _is_of(digest: Digest, one: FollowUp) -> bool:
    """Whether the specification still has this period: it may have been frozen under an earlier one."""
    try:
        return digest.period(one.period).label == one.period
    except PeriodError:
        return False

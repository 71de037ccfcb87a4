"""The send loop: claim, send, settle, until nothing is due.

Read this file from ``Sender.run`` downwards. A claim is committed before its request starts; no
transaction and no connection is held during a provider call; results are written in small groups as
they arrive; whatever is left when the process dies is found as an expired lease and becomes unknown.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeVar

from sqlalchemy import Connection

from digest_pipeline import faults
from digest_pipeline.delivery import claiming, clock, gate_keeping, rate_gate
from digest_pipeline.delivery.batching import Batches
from digest_pipeline.delivery.claiming import Permitted, Taken
from digest_pipeline.delivery.opening import envelope_of
from digest_pipeline.delivery.pace import Pace
from digest_pipeline.delivery.plan import MICROS, SendPlan
from digest_pipeline.delivery.retry_policy import Budget, Settlement, believed, settlement
from digest_pipeline.delivery.settling import Result, give_back, settle, unsent
from digest_pipeline.delivery.turns import Turns
from digest_pipeline.gateways.base import Envelope
from digest_pipeline.ledger.claims import Claimed
from digest_pipeline.ledger.engine import Ledger
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

P = ParamSpec("P")
T = TypeVar("T")
SETTLE_EVERY = 0.1
SLACK = rate_gate.SLACK / MICROS
IDLE_LOOK = 0.25
UNSEEN_FOR = 10.0
"""Seconds for which claims are looked for whose commit was answered by an error."""


@dataclass(slots=True)
class Tally:
    """What one sender did. ``halted``: why it stopped before the work was done."""

    accepted: int = 0
    settled: int = 0
    suppressed: int = 0
    lost_claims: int = 0
    expired: int = 0
    halted: str | None = None
    out_of_time: bool = False


class Sender:
    """One sender: lanes that claim, calls under way, one settler. Used once, on one event loop."""

    def __init__(self, ledger: Ledger, plan: SendPlan, deadline: float) -> None:
        self.ledger, self.plan, self.deadline = ledger, plan, deadline
        self.tally = Tally()
        under_way = plan.digest.sending.concurrency * plan.batch_size
        self.pace = Pace(under_way, SLACK, plan.digest.rate.per_second)
        self._claimed: asyncio.Queue[Sequence[Permitted] | None] = asyncio.Queue()
        self._batches = Batches(self)
        self._results: asyncio.Queue[Result | None] = asyncio.Queue()
        self._threads = ThreadPoolExecutor(plan.digest.sending.lanes + 2, thread_name_prefix="ledger")
        self._late = 0
        self._renewal: asyncio.Task[list[float]]
        self._evidence = plan.evidence
        self._gate_calls: list[asyncio.Future[None]] = []
        self._closed_until = 0.0
        self._connect_failures = 0
        self._unseen: dict[int, Claimed] = {}
        self._unseen_until = 0.0

    async def run(self) -> Tally:
        """Send what is due now, and return when nothing is; never waits for a later due time.

        Raises the ledger's error when it cannot be reached for longer than a write's patience: then
        nothing more is claimed, and what was under way becomes unknown when its lease ends.
        """
        turns = Turns(self.plan.manifest_ids)
        faults.reach(faults.Point.BEFORE_FIRST_CLAIM)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._settle_results())
                async with asyncio.TaskGroup() as calls:
                    for _ in range(self.plan.digest.sending.concurrency):
                        calls.create_task(self._send_claimed())
                    async with asyncio.TaskGroup() as lanes:
                        for _ in range(self.plan.digest.sending.lanes):
                            lanes.create_task(self._lane(turns))
                    for _ in range(self.plan.digest.sending.concurrency):
                        self._claimed.put_nowait(None)
                self._results.put_nowait(None)
            await asyncio.gather(*self._gate_calls)
        except BaseExceptionGroup as failures:
            # Not `except*`: what that raises comes out as a group again, which no caller expects.
            raise _first(failures) from failures
        finally:
            self._threads.shutdown()
        return self.tally

    def stop(self) -> None:
        """Claim nothing more and release what has not gone out; calls under way end as they end."""
        self.deadline, self._closed_until = 0.0, math.inf

    async def _lane(self, turns: Turns) -> None:
        while not self._must_stop():
            wanted = await self.pace.reserve()
            taken = Taken()
            try:
                taken = await self.in_ledger(self._claim, turns, wanted)
            finally:
                took = time.monotonic() - taken.seen_at if taken.calls else None
                self.pace.claimed(wanted, len(taken.rows), took)
            faults.reach(faults.Point.AFTER_CLAIM_COMMIT)
            self.tally.suppressed += taken.suppressed
            for call in taken.calls:
                self._claimed.put_nowait(call)
            if not taken.calls and not taken.suppressed and not await self._more(taken, turns):
                return

    def _claim(self, turns: Turns, wanted: int) -> Taken:
        anchor = clock.now()
        tried: dict[int, Claimed] = {}

        def work(conn: Connection) -> tuple[Taken, set[int]]:
            # An earlier try's commit may have taken effect although its answer was lost: nobody would
            # send those rows, and they would be unknown when their lease ends.
            found = give_back(conn, self.plan.claimer, [*self._unseen.values(), *tried.values()])
            taken = claiming.claim(conn, self.plan, turns, wanted, anchor, self.pace.lead)
            tried.update((row.claimed.token, row.claimed) for row in taken.rows)
            return taken, found

        taken, found = self.ledger.transact(work, patience=5.0)
        for row in taken.rows:
            del tried[row.claimed.token]
        self._remember_unseen(tried, found)
        return taken

    def _remember_unseen(self, unseen: dict[int, Claimed], found: set[int]) -> None:
        """Look for lost commits a little longer: the server may still have been at it when we looked."""
        if not unseen and not self._unseen:
            return
        if unseen:
            self._unseen_until = time.monotonic() + UNSEEN_FOR
            self._unseen.update(unseen)
        if time.monotonic() > self._unseen_until:
            found = found | set(self._unseen)
        for token in found:
            self._unseen.pop(token, None)

    async def _more(self, taken: Taken, turns: Turns) -> bool:
        """Nothing was claimed: wait for the gate, look once from the start, or be done."""
        if taken.halted is not None:
            if await self.pace.wait_a_moment():  # a probe is under way
                return True
            self.tally.halted = taken.halted
            return False
        if taken.again_in is not None:
            if taken.again_in > self.plan.digest.sending.in_run_wait_seconds:
                return False
            await asyncio.sleep(min(taken.again_in, IDLE_LOOK) or 0.01)
            return True
        if turns.rewind():
            return True
        # Calls under way may end as released rows that are due again at once.
        return await self.pace.wait_a_moment()

    async def _send_claimed(self) -> None:
        """Hold one of the concurrent calls: make one after another, of one claimed row as a rule."""
        while (call := await self._claimed.get()) is not None:
            row = call[0]
            if len(call) > 1 or row.claimed.batch_id is not None:
                await self._batches.send(call)
                continue
            early = row.start - time.monotonic()
            if early > 0:
                await asyncio.sleep(early)
            self.pace.begun(-early)
            await self._send(await self._with_good_permit(row))

    async def _with_good_permit(self, row: Permitted) -> Permitted:
        """Exchange a permit that got old while the row waited: cheaper than releasing the claim."""
        while row.start + SLACK < time.monotonic() and clock.now() < row.fence:
            if self._late == 0:
                self._renewal = asyncio.create_task(self._renew())
            place, renewal = self._late, self._renewal
            self._late += 1
            starts = await renewal
            if place >= len(starts):
                break
            row = replace(row, start=starts[place])
            await asyncio.sleep(max(0.0, row.start - time.monotonic()))
        return row

    async def _renew(self) -> list[float]:
        wanted, self._late = self._late, 0
        return await self.in_ledger(
            self.ledger.transact, lambda conn: claiming.renew(conn, self.plan, wanted, self.pace.lead)
        )

    async def _send(self, row: Permitted) -> None:
        began, outcome = time.monotonic(), None
        try:
            outcome = await self._call(row)
            await self.finish([row], [outcome])
        finally:
            self.pace.ended(None if outcome is None else time.monotonic() - began)

    async def _call(self, row: Permitted) -> Outcome | None:
        """Make the one provider call of this claim; None: it was released before the wire."""
        if not self.may_start(row):
            return None
        envelope = envelope_of(row.claimed)
        if not isinstance(envelope, Envelope):
            return envelope
        return await self.offer(self.plan.gateway.send, envelope)

    def may_start(self, row: Permitted) -> bool:
        """Whether a request may leave now: its permit is good, its answer comes inside the lease, nothing says stop."""
        now = time.monotonic()
        too_late = clock.now() > row.fence or now > row.start + SLACK
        return not (too_late or now < self._closed_until or self.tally.halted is not None)

    def is_closed_at(self, start: float) -> bool:
        """Whether it is known by now that nothing may leave at that instant."""
        return start < self._closed_until or self.tally.halted is not None

    async def offer(
        self, send: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T | Ambiguous:
        """Make one provider call, once."""
        faults.reach(faults.Point.BEFORE_PROVIDER_CALL)
        try:
            answer = await send(*args, **kwargs)
        except Exception as error:  # noqa: BLE001
            # A gateway's bug: its own message may have gone out, and no other may suffer for it.
            return Ambiguous(f"the gateway raised {type(error).__name__}")
        faults.reach(faults.Point.AFTER_PROVIDER_CALL)
        return answer

    async def finish(self, call: Sequence[Permitted], outcomes: Sequence[Outcome | None]) -> None:
        """Hand what became of each row of a call to the settler; None: released before the wire."""
        outcomes = [_as_known(row.claimed, outcome) for row, outcome in zip(call, outcomes, strict=True)]
        for row, outcome in zip(call, outcomes, strict=True):
            self._results.put_nowait(Result(row.claimed, outcome, self._judge(row.claimed, outcome)))
        for said in dict.fromkeys(outcomes):  # once, however many messages one answer was about
            if said is not None:
                self._tell_the_gate(said)
        self.tally.accepted += sum(isinstance(outcome, Accepted) for outcome in outcomes)
        if call[0].probe and any(isinstance(outcome, Accepted | Refused | Throttled) for outcome in outcomes):
            # A verdict about a message, or about speed, means that the account works again.
            await self.in_ledger(gate_keeping.reopen_gate, self.ledger, self.plan.gate)

    def _judge(self, claimed: Claimed, outcome: Outcome | None) -> Settlement:
        if outcome is None:
            return unsent(claimed)
        since = claimed.budget_from or claimed.claimed_at
        return settlement(
            outcome,
            ambiguous=claimed.is_ambiguous,
            budget=Budget(claimed.attempts, (claimed.claimed_at - since) / 1_000_000),
            policy=self.plan.digest.retry,
            evidence=self._evidence,
            random=random.random(),
        )

    def _tell_the_gate(self, outcome: Outcome) -> None:
        match outcome:
            case Accepted():
                self._connect_failures = 0
            case Throttled(retry_after=wait):
                seconds = gate_keeping.pause_for(wait)
                until = time.monotonic() + seconds
                if until > self._closed_until + 0.1:  # fifty calls under way get the same answer
                    self._closed_until = until
                    self._tell(gate_keeping.close_gate, self.plan.gate, seconds)
            case AccountRefused(detail=detail):
                # Free text of the provider stays on the attempt: this one reaches Dagster and reports.
                self._halt(f"account: {' '.join(detail.split()[:2])}")
            case NotSent(failure_class=FailureClass.CONNECT):
                self._connect_failures += 1
                if self._connect_failures >= self.plan.digest.retry.connect_failures_to_halt:
                    self._halt("connect: the provider cannot be reached")
            case _:
                self._connect_failures = 0

    def _halt(self, reason: str) -> None:
        if self.tally.halted is None:
            self.tally.halted = reason
            self._tell(gate_keeping.halt_gate, self.plan.gate, reason)

    def _tell(self, act: Callable[..., None], *args: object) -> None:
        loop = asyncio.get_running_loop()
        self._gate_calls.append(loop.run_in_executor(self._threads, act, self.ledger, *args))

    async def _settle_results(self) -> None:
        ended = False
        while not ended:
            group = [await self._results.get()]
            if group[0] is not None:
                await asyncio.sleep(SETTLE_EVERY)
            while not self._results.empty():
                group.append(self._results.get_nowait())
            results = [result for result in group if result is not None]
            ended = len(results) < len(group)
            self.tally.lost_claims += await self.in_ledger(
                settle, self.ledger, self.plan.claimer, results, self.plan.digest.suppression
            )
            faults.reach(faults.Point.AFTER_SETTLE_COMMIT)
            self.tally.settled += len(results)
            self.pace.report(self.tally.settled)

    def _must_stop(self) -> bool:
        self.tally.out_of_time = time.monotonic() > self.deadline
        return self.tally.halted is not None or self.tally.out_of_time

    async def in_ledger(self, work: Callable[..., T], *args: object) -> T:
        """Do some work that waits for the ledger on a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)


def _as_known(claimed: Claimed, outcome: Outcome | None) -> Outcome | None:
    tried = claimed.is_ambiguous or claimed.attempts > 0
    return None if outcome is None else believed(outcome, tried=tried)


def _first(error: BaseException) -> BaseException:
    """Return the first error that is no group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

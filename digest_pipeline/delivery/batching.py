"""Provider calls that carry several messages: one outcome for each, and halves where the call was refused.

Each message is judged and settled as if it had gone alone. What is special: where one key covers the
whole call, its membership is committed before the wire and repeated as it was; and a refusal of the
whole call says nothing about any of several messages, so each half is offered as a call of its own.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from digest_pipeline.delivery import claiming, clock, rate_gate
from digest_pipeline.delivery.claiming import Permitted
from digest_pipeline.delivery.opening import envelope_of
from digest_pipeline.delivery.plan import MICROS
from digest_pipeline.gateways.base import BatchGateway, BatchRefused, Envelope
from digest_pipeline.gateways.envelopes import unsendable
from digest_pipeline.ledger import batches
from digest_pipeline.outcomes import Ambiguous, Outcome

if TYPE_CHECKING:
    from digest_pipeline.delivery.loop import Sender

SLACK = rate_gate.SLACK / MICROS
STEP = 0.25


@dataclass(frozen=True, slots=True)
class Letter:
    """One row of a call and its message, ready for the wire."""

    row: Permitted
    envelope: Envelope


class Batches:
    """The calls of one sender that carry several messages."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    async def send(self, call: Sequence[Permitted]) -> None:
        """Make a call and what follows from a refusal of it; every row of it is settled once.

        A call that was made before, and is in doubt, goes again as it was or not at all.
        """
        late = time.monotonic() - call[0].start
        for _ in call:
            self._sender.pace.begun(late)
        repeated = call[0].claimed.batch_id is not None
        letters, broken = self._opened(call)
        if repeated and broken:
            await self._finish(call, [broken.get(row.claimed.token) for row in call])
            return
        await self._judge_alone(call, broken)
        calls = [letters] if repeated else await self._frozen([letters])
        for ready in calls:
            await self._offer(ready, repeated=repeated)

    def _opened(self, call: Sequence[Permitted]) -> tuple[list[Letter], dict[int, Outcome]]:
        """Return what can go out, and by token what it means for each of the others that it can't."""
        letters: list[Letter] = []
        broken: dict[int, Outcome] = {}
        for row in call:
            found = envelope_of(row.claimed)
            if isinstance(found, Envelope):
                smtputf8 = self._sender.plan.gateway.capabilities.smtputf8
                refused = unsendable(found, smtputf8=smtputf8)
                if refused is None:
                    letters.append(Letter(row, found))
                    continue
                found = refused
            broken[row.claimed.token] = found
        return letters, broken

    async def _judge_alone(self, call: Sequence[Permitted], broken: dict[int, Outcome]) -> None:
        """Settle what can't go out: before the wire, or its verdict would break a batch that is repeated whole."""
        rows = [row for row in call if row.claimed.token in broken]
        if rows:
            await self._finish(rows, [broken[row.claimed.token] for row in rows])

    async def _frozen(self, calls: Sequence[Sequence[Letter]]) -> list[Sequence[Letter]]:
        """Return the calls with their members committed, where one key covers a call; none if that is too late."""
        calls = [call for call in calls if call]
        plan = self._sender.plan
        if not plan.keyed_batches or not calls:
            return list(calls)
        claims = [[letter.row.claimed for letter in call] for call in calls]
        ids = await self._sender.in_ledger(
            self._sender.ledger.transact, lambda conn: batches.freeze(conn, plan.claimer, claims)
        )
        if ids is None:
            for call in calls:
                await self._release(call)
            return []
        return [
            [_in_batch(letter, batch_id) for letter in call]
            for batch_id, call in zip(ids, calls, strict=True)
        ]

    async def _offer(self, call: Sequence[Letter], *, repeated: bool) -> None:
        rows = await self._in_time([letter.row for letter in call])
        if not self._sender.may_start(rows[0]):
            await self._release(call)
            return
        began = time.monotonic()
        gateway = cast(BatchGateway, self._sender.plan.gateway)
        envelopes = [letter.envelope for letter in call]
        found = await self._sender.offer(gateway.send_batch, envelopes, rows[0].claimed.batch_id)
        if isinstance(found, BatchRefused) and len(call) > 1 and not repeated:
            await self._halve(call)
            return
        await self._finish(rows, _outcomes(found, len(call)), time.monotonic() - began)

    async def _halve(self, call: Sequence[Letter]) -> None:
        """Nothing was taken, and nobody knows whose fault it is: offer each half, until it is one message's.

        Both are fixed at once, under keys of their own, so that whatever happens to the first, the second
        can be repeated. At most log2 of the call's size deep.
        """
        middle = (len(call) + 1) // 2
        for half in await self._frozen([call[:middle], call[middle:]]):
            unpermitted = [replace(letter, row=replace(letter.row, start=-math.inf)) for letter in half]
            await self._offer(unpermitted, repeated=False)

    async def _in_time(self, rows: Sequence[Permitted]) -> Sequence[Permitted]:
        """Wait for the call's start; a permit that got old, or was used up, is exchanged for a new one."""
        start = rows[0].start
        if start + SLACK < time.monotonic():
            horizon = max(0, int((rows[0].fence - clock.now()) * MICROS))
            starts = await self._sender.in_ledger(self._renew, len(rows), horizon)
            if len(starts) == len(rows):
                start = starts[-1]
        # In steps: a start may lie many seconds ahead, and a sender that is told to stop must not wait for it.
        while (wait := start - time.monotonic()) > 0 and not self._sender.is_closed_at(start):  # noqa: ASYNC110
            await asyncio.sleep(min(wait, STEP))
        return [replace(row, start=start) for row in rows]

    def _renew(self, wanted: int, horizon: int) -> list[float]:
        sender = self._sender
        return sender.ledger.transact(
            lambda conn: claiming.renew(conn, sender.plan, wanted, sender.pace.lead, horizon)
        )

    async def _release(self, call: Sequence[Letter]) -> None:
        await self._finish([letter.row for letter in call], [None] * len(call))

    async def _finish(
        self, rows: Sequence[Permitted], outcomes: Sequence[Outcome | None], seconds: float | None = None
    ) -> None:
        await self._sender.finish(rows, outcomes)
        for _ in rows:
            self._sender.pace.ended(seconds)


def _in_batch(letter: Letter, batch_id: str) -> Letter:
    claimed = replace(letter.row.claimed, batch_id=batch_id)
    return replace(letter, row=replace(letter.row, claimed=claimed))


def _outcomes(found: list[Outcome] | BatchRefused | Ambiguous, count: int) -> list[Outcome]:
    """Return one outcome for each message of a call that is not divided any more."""
    match found:
        case BatchRefused(alone=alone):
            return [alone] * count
        case Ambiguous():
            return [found] * count
        case _ if len(found) == count:
            return found
    return [Ambiguous("the gateway returned other than one outcome for each message")] * count

"""How many calls are under way, and how many rows are worth claiming now. Knows no clock but its caller's."""

from __future__ import annotations

import asyncio
import time

from digest_pipeline import telemetry

AHEAD = 0.1
"""Seconds of work that are claimed before a slot is free for it, while calls are short."""

MOST_AHEAD = 4
"""Times the concurrency: what is never exceeded by what waits for a slot."""

FIRST_BITE = 64
LEAST_BITE = 25
_PROGRESS_EVERY = 5.0
_MOMENT = 0.1


class Pace:
    """Keeps the provider calls of a sender at its concurrency, and the claims just ahead of them.

    A row that waits longer than ``patience`` seconds needs another permit. So what is claimed beyond
    the free slots is what they will take in the next moment, by how long calls last (nothing when that
    is long), and one claim takes at most a ``bite``, which halves when rows begin too late (the machine
    is busy) and grows while they don't.
    """

    def __init__(self, concurrency: int, patience: float, per_second: float) -> None:
        self.concurrency = concurrency
        self._per_second = per_second
        self.lead = 0.0
        """Seconds from a claim's look at the gate until its rows can begin: permits start after it."""
        self._patience = patience
        self._bite = FIRST_BITE
        self._waiting = 0
        self._calls = 0
        self._call_seconds = 0.0
        self._latest = 0.0
        self._changed = asyncio.Event()
        self._started = self._told = time.monotonic()

    def room(self) -> int:
        """Return how many rows are worth claiming now."""
        return min(self._bite, self.concurrency + self._ahead() - self._calls - self._waiting)

    async def reserve(self) -> int:
        """Wait until rows are worth claiming, count them as waiting and return how many.

        While calls are under way it waits a little longer than needed: few large claims are cheaper.
        """
        while True:
            if self._waiting + self._calls > 0 and self.room() > 0:
                # Bounded: a process that was stopped takes the length of its sleep for that of a call.
                await asyncio.sleep(max(self._ahead_seconds() / 3, min(0.25, self._call_seconds / 20)))
            if (wanted := self.room()) > 0:
                break
            self._changed.clear()
            await self._changed.wait()
        self._waiting += wanted
        self._adapt()
        return wanted

    def claimed(self, wanted: int, taken: int, seconds: float | None) -> None:
        """Of what was reserved, so much was claimed; ``seconds``: what ``lead`` foretells."""
        self._waiting -= wanted - taken
        if seconds is not None:
            # Down at once and up slowly: a permit that starts late leaves slots empty, an old one is good a while.
            self.lead = min(self._patience, seconds, (7 * self.lead + seconds) / 8)
        self._changed.set()

    def begun(self, late: float) -> None:
        """One claimed row takes a slot, this long after its permit's start."""
        self._waiting -= 1
        self._calls += 1
        self._latest = max(self._latest, late)

    def ended(self, seconds: float | None) -> None:
        """One row has its result; ``seconds``: how long its call took, None when none was made."""
        self._calls -= 1
        if seconds is not None:
            self._call_seconds = (19 * (self._call_seconds or seconds) + seconds) / 20
        self._changed.set()

    async def wait_a_moment(self) -> bool:
        """Wait for calls under way to get on; False when there are none."""
        if self._waiting + self._calls == 0:
            return False
        await asyncio.sleep(_MOMENT)
        return True

    def report(self, settled: int) -> None:
        """Log progress every few seconds."""
        now = time.monotonic()
        if now - self._told >= _PROGRESS_EVERY:
            self._told = now
            telemetry.progress(settled, settled / (now - self._started))

    def _ahead_seconds(self) -> float:
        # All calls may end at the same moment, so a row may wait for half a call or more.
        return max(0.0, AHEAD + self.lead - self._call_seconds / 2)

    def _ahead(self) -> int:
        if self._call_seconds <= 0:
            return 0
        calls = self.concurrency * min(MOST_AHEAD, self._ahead_seconds() / self._call_seconds)
        # What is claimed when a process dies is in doubt: no more of it than the gate will let through.
        return int(min(calls, self._per_second * self._ahead_seconds()))

    def _adapt(self) -> None:
        if self._latest > self._patience:
            self._bite = max(LEAST_BITE, self._bite // 2)
        else:
            self._bite = min(self._bite + self._bite // 4, max(FIRST_BITE, MOST_AHEAD * self.concurrency))
        self._latest = 0.0

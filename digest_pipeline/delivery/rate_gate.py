"""The rate gate's arithmetic: a GCRA whose permits carry the instant at which they may start.

For any number of senders and any window of w seconds, at most rate x w + burst requests start: the
state is one row per gate, and every permit ever granted went through it. A permit is good for
``SLACK`` after its start, so that the promise holds for arrivals at the provider too; the burst is
lowered by what the rate lets through in that time. All instants in microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from digest_pipeline.ledger.gates import GateState

SLACK = 250_000
PROBE_EVERY = 60_000_000


@dataclass(frozen=True, slots=True)
class Grant:
    """Permits: ``starts`` in order. Without any, ``again_at`` says when to ask again.

    ``halted``: the account is refused and no probe is due; ``probe``: the one permit given is one.
    """

    starts: tuple[int, ...] = ()
    again_at: int | None = None
    halted: bool = False
    probe: bool = False


def grant(gate: GateState, now: int, wanted: int, horizon: int) -> Grant:
    """Return the permits that may start between now and now + ``horizon``, at most ``wanted``."""
    if now < gate.closed_until:
        return Grant(again_at=gate.closed_until, halted=gate.halt_reason is not None)
    if gate.halt_reason is not None:
        return _probe(gate, now, wanted, horizon)
    interval, tolerance = _shape(gate)
    starts: list[int] = []
    arrival = gate.next_free_at
    while len(starts) < wanted:
        start = max(now, arrival - tolerance)
        if start > now + horizon:
            return Grant(tuple(starts), again_at=start - horizon)
        starts.append(start)
        arrival = max(arrival, start) + interval
    return Grant(tuple(starts))


def most_at_once(gate: GateState) -> int:
    """Return how many permits of a gate can start at the same instant: a call with more would break its promise."""
    interval, tolerance = _shape(gate)
    return tolerance // interval + 1


def together(starts: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return permits moved to the latest of their call; ``sizes``: how many each call takes, from the front.

    None of them starts earlier than it was granted, and those of later calls stay as they are: within
    ``most_at_once`` a call fits whole at the instant at which its last permit does.
    """
    ends = list(accumulate(sizes))
    return [starts[end - 1] for end, size in zip(ends, sizes, strict=True) for _ in range(size)]


def charge(gate: GateState, starts: tuple[int, ...], now: int) -> GateState:
    """Return the gate after these permits were used (some of a grant's, from its front)."""
    if not starts:
        return gate
    interval, _ = _shape(gate)
    arrival = gate.next_free_at
    for start in starts:
        arrival = max(arrival, start) + interval
    probe_at = gate.probe_at if gate.halt_reason is None else now + PROBE_EVERY
    return replace(gate, next_free_at=arrival, probe_at=probe_at)


def close(gate: GateState, now: int, seconds: float) -> GateState:
    """Return the gate closed for a time, for everyone. It reopens without a burst."""
    until = max(gate.closed_until, now + int(seconds * 1_000_000))
    _, tolerance = _shape(gate)
    return replace(gate, closed_until=until, next_free_at=max(gate.next_free_at, until + tolerance))


def halt(gate: GateState, now: int, reason: str) -> GateState:
    """Return the gate halted: nothing passes but one probe at a time, until one is accepted."""
    return replace(gate, halt_reason=reason, probe_at=now + PROBE_EVERY)


def reopen(gate: GateState) -> GateState:
    """Return the gate after an acceptance: a halt is over."""
    return replace(gate, halt_reason=None, probe_at=None)


def allow_probe(gate: GateState, now: int) -> GateState:
    """Return a halted gate that lets one probe through now: a person started a run to try again."""
    return replace(gate, probe_at=now) if gate.halt_reason is not None else gate


def _probe(gate: GateState, now: int, wanted: int, horizon: int) -> Grant:
    if gate.probe_at is None or now < gate.probe_at or wanted <= 0:
        return Grant(again_at=gate.probe_at, halted=True)
    # A probe is a request like any other: it waits its turn and is charged.
    _, tolerance = _shape(gate)
    start = max(now, gate.next_free_at - tolerance)
    if start > now + horizon:
        return Grant(again_at=start - horizon, halted=True)
    return Grant((start,), probe=True)


def _shape(gate: GateState) -> tuple[int, int]:
    """The interval between permits, and how far ahead of it a burst may run."""
    if not gate.is_sound:
        # A stored NaN or a negative rate must not open the gate: one a second, no burst.
        return 1_000_000, 0
    # Rounded up: a rounded-down interval lets more through than the rate, for as long as it lasts.
    interval = math.ceil(1_000_000 / gate.per_second)
    burst = max(1, gate.burst - math.ceil(gate.per_second * SLACK / 1_000_000))
    return interval, (burst - 1) * interval

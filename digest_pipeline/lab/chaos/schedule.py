"""What goes wrong and when: a pure function of the seed. The machine decides only what it meets."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from digest_pipeline.lab.sandbox.faults import Fault


class Act(StrEnum):
    """One kind of trouble."""

    KILL = "kill"
    """SIGKILL for a worker; another takes its place at once."""
    PAUSE = "pause"
    """SIGSTOP for a worker, for ``seconds``."""
    PROVIDER_FAULT = "provider_fault"
    """The provider meets a ``share`` of all new keys with a ``fault``, until the next of these."""
    PROVIDER_KILL = "provider_kill"
    """The provider dies, and starts again on the same store."""
    DATABASE_RESTART = "database_restart"
    """PostgreSQL ends in immediate mode and starts again."""


EVERY = {
    Act.KILL: 1.6,
    Act.PAUSE: 5.0,
    Act.PROVIDER_FAULT: 6.0,
    Act.PROVIDER_KILL: 23.0,
    Act.DATABASE_RESTART: 19.0,
}
"""Mean seconds between two of a kind."""

SHORT_PAUSE, LONG_PAUSE = (0.3, 4.0), (15.0, 20.0)
"""Seconds that a pause takes: inside a lease, and past it."""

FAULTS = (
    Fault.THROTTLED_429,
    Fault.UNAVAILABLE_503,
    Fault.RESET_BEFORE_ACCEPT,
    Fault.RESET_AFTER_ACCEPT,
    Fault.TIMEOUT_AFTER_ACCEPT,
    Fault.BAD_GATEWAY_502_AFTER_ACCEPT,
    Fault.TRUNCATED_JSON_AFTER_ACCEPT,
    Fault.CUT_BODY_AFTER_ACCEPT,
    Fault.SERVER_ERROR_500_BEFORE_ACCEPT,
    Fault.SERVER_ERROR_500_AFTER_ACCEPT,
    Fault.SLOW,
)


@dataclass(frozen=True, slots=True)
class Action:
    """One thing done, ``at`` seconds from the start. ``worker``: the place that a worker has."""

    at: float
    act: Act
    worker: int = 0
    seconds: float = 0.0
    fault: Fault | None = None
    share: float = 0.0
    seed: int = 0


def schedule(seed: int, seconds: float, workers: int, *, long_pauses: bool = True) -> list[Action]:
    """Return what happens, in order. The same seed and bounds give the same actions, on any machine.

    ``long_pauses``: whether a worker may be stopped past its leases. Of each kind at least one happens.
    """
    actions = [
        action
        for act in Act
        for action in _of_a_kind(random.Random(f"{seed}/{act}"), act, seconds, workers, long_pauses)
    ]
    return sorted(actions, key=lambda action: (action.at, action.act))


def _of_a_kind(
    rng: random.Random, act: Act, seconds: float, workers: int, long_pauses: bool
) -> Iterator[Action]:
    # Each worker more brings its own deaths and pauses; the provider and the database are one each.
    each = EVERY[act] * (4 / workers if act in (Act.KILL, Act.PAUSE) else 1)
    count = max(1, round(seconds / each))
    for number in range(count):
        # One in each stretch of the time: seldom bunched, never all at the end.
        at = round((number + rng.random()) * seconds / count, 3)
        worker = rng.randrange(workers)
        bounds = LONG_PAUSE if long_pauses and rng.random() < 0.3 else SHORT_PAUSE
        yield Action(
            at,
            act,
            worker if act in (Act.KILL, Act.PAUSE) else 0,
            round(rng.uniform(*bounds), 3) if act is Act.PAUSE else 0.0,
            rng.choice(FAULTS) if act is Act.PROVIDER_FAULT else None,
            round(rng.uniform(0.02, 0.15), 3) if act is Act.PROVIDER_FAULT else 0.0,
            rng.randrange(2**31) if act is Act.PROVIDER_FAULT else 0,
        )

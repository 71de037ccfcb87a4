"""What an attempt's end means: a pure decision over class, budget, ambiguity and time.

``POLICY`` is the one table of failure classes; docs/retry.md is drawn from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from digest_pipeline.outcomes import (
    Accepted,
    AccountRefused,
    Ambiguous,
    FailureClass,
    NotSent,
    Outcome,
    Proof,
    Refused,
    Stage,
    Throttled,
)
from digest_pipeline.spec import Retry
from digest_pipeline.states import HoldReason


@dataclass(frozen=True, slots=True)
class ClassPolicy:
    """What one failure class does: to the row, to its retry budget and to the gate."""

    row: str
    charged: bool
    gate: str = "-"


POLICY: dict[FailureClass, ClassPolicy] = {
    FailureClass.CONNECT: ClassPolicy("retry", True, "many in a row halt it"),
    FailureClass.THROTTLED: ClassPolicy("released", False, "closed for Retry-After"),
    FailureClass.TRANSIENT: ClassPolicy("retry", True),
    FailureClass.AMBIGUOUS: ClassPolicy("unknown", True),
    FailureClass.RECIPIENT: ClassPolicy("failed", True),
    FailureClass.CONTENT: ClassPolicy("failed", True),
    FailureClass.ACCOUNT: ClassPolicy("released", False, "halted"),
    FailureClass.WINDOW: ClassPolicy("dead, or held when never tried", False),
}

THROTTLE_DEFAULT = 5.0
"""Seconds a gate closes for when the provider gives no Retry-After."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a delivery has used: charged attempts before this one, and seconds since the first."""

    attempts: int
    age_seconds: float


def retry_delay(policy: Retry, attempt: int, random: float) -> float:
    """Return the seconds before attempt ``attempt + 1``: uniform in half to whole of the backoff."""
    # The exponent is bounded: 2.0 ** 1100 is an OverflowError.
    backoff = min(policy.cap_seconds, policy.base_seconds * 2.0 ** min(attempt - 1, 60))
    return float(backoff * (0.5 + 0.5 * random))


def is_used_up(policy: Retry, budget: Budget) -> bool:
    """Whether the attempt that just ended was the last one, by count or by age."""
    return budget.attempts + 1 >= policy.max_attempts or budget.age_seconds >= policy.max_age_hours * 3600


@dataclass(frozen=True, slots=True)
class Sent:
    """To ``sent``."""

    message_id: str | None
    proof: Proof


@dataclass(frozen=True, slots=True)
class Again:
    """To ``retry``, due after ``delay`` seconds."""

    delay: float
    failure_class: FailureClass


@dataclass(frozen=True, slots=True)
class Stop:
    """To ``failed`` (a verdict) or ``dead`` (the budget is used up)."""

    failure_class: FailureClass
    dead: bool


@dataclass(frozen=True, slots=True)
class Unknown:
    """To ``unknown``. ``delay`` seconds until evidence is sought; None: held for ``hold``."""

    delay: float | None
    failure_class: FailureClass
    hold: HoldReason | None = None
    charged: bool = True
    may_have_been_sent: bool = True


@dataclass(frozen=True, slots=True)
class Release:
    """Back where it was: no attempt was made of it."""

    delay: float


Settlement = Sent | Again | Stop | Unknown | Release


@dataclass(frozen=True, slots=True)
class Evidence:
    """How an unknown of this gateway gets settled: seconds until it is sought, or why it is not."""

    delay: float | None
    hold: HoldReason | None = None


def settlement(
    outcome: Outcome, *, ambiguous: bool, budget: Budget, policy: Retry, evidence: Evidence, random: float
) -> Settlement:
    """Return what becomes of a claimed delivery. ``ambiguous``: as it was claimed.

    While a delivery is ambiguous, nothing but an acceptance ends that: a refusal of the second
    attempt says nothing about the first.
    """
    match outcome:
        case Accepted(message_id=message_id, proof=proof):
            return Sent(message_id, proof)
        case Ambiguous(integrity=True):
            # Other bytes under our key: the first request may have been accepted. Never a new key.
            return Unknown(None, FailureClass.AMBIGUOUS, HoldReason.INTEGRITY)
        case Ambiguous():
            return _unknown(evidence, policy, budget, random, FailureClass.AMBIGUOUS)
        case Throttled(retry_after=wait):
            pause = THROTTLE_DEFAULT if wait is None else wait
            if ambiguous:
                return Unknown(pause, FailureClass.THROTTLED, charged=False, may_have_been_sent=False)
            return Release(pause)
        case AccountRefused():
            if ambiguous:
                return Unknown(0.0, FailureClass.ACCOUNT, charged=False, may_have_been_sent=False)
            return Release(0.0)
        case NotSent():
            return _not_sent(outcome, ambiguous, evidence, policy, budget, random)
        case Refused(failure_class=failure_class):
            if ambiguous:
                return _unknown(evidence, policy, budget, random, failure_class, sent=False)
            return Stop(failure_class, dead=False)
        case _:
            assert_never(outcome)


def believed(outcome: Outcome, *, tried: bool) -> Outcome:
    """Return what an outcome means, given whether an earlier attempt was made that may explain it.

    A provider that refuses a used key says that a message was taken under it. That was ours only if we
    made one: a key that is used although we never tried was used by somebody else, or counted with a call
    that was refused. Then nobody knows.
    """
    if isinstance(outcome, Accepted) and outcome.replayed and outcome.message_id is None and not tried:
        return Ambiguous("the key was used before, and by no attempt of ours")
    return outcome


def _not_sent(
    outcome: NotSent,
    ambiguous: bool,
    evidence: Evidence,
    policy: Retry,
    budget: Budget,
    random: float,
) -> Settlement:
    failure_class = outcome.failure_class
    if ambiguous:
        return _unknown(evidence, policy, budget, random, failure_class, sent=False)
    if is_used_up(policy, budget):
        return Stop(failure_class, dead=True)
    delay = retry_delay(policy, budget.attempts + 1, random)
    return Again(max(delay, outcome.retry_after or 0.0), failure_class)


def _unknown(
    evidence: Evidence,
    policy: Retry,
    budget: Budget,
    random: float,
    failure_class: FailureClass,
    *,
    sent: bool = True,
) -> Unknown:
    if evidence.delay is None:
        return Unknown(None, failure_class, evidence.hold, may_have_been_sent=sent)
    wait = max(evidence.delay, retry_delay(policy, budget.attempts + 1, random))
    return Unknown(wait, failure_class, may_have_been_sent=sent)


def describe(outcome: Outcome) -> tuple[str, FailureClass | None, Stage]:
    """Return how an attempt's record names an outcome: word, class and stage."""
    match outcome:
        case Accepted():
            return "accepted", None, Stage.AFTER_WIRE
        case Refused(failure_class=failure_class):
            return "refused", failure_class, Stage.AFTER_WIRE
        case NotSent(failure_class=failure_class, stage=stage):
            return "not_sent", failure_class, stage
        case Throttled():
            return "throttled", FailureClass.THROTTLED, Stage.AFTER_WIRE
        case Ambiguous():
            return "ambiguous", FailureClass.AMBIGUOUS, Stage.ON_WIRE
        case AccountRefused():
            return "account_refused", FailureClass.ACCOUNT, Stage.AFTER_WIRE
        case _:
            assert_never(outcome)

"""The decisions that the model does not make itself: it asks the package's own pure functions.

A worker's result goes through ``delivery.retry_policy.settlement``, a look-up's answer through
``reconciliation.evidence.judge``. A guard that lives in one of them is taken away by what it is told.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import Final, NamedTuple

from digest_pipeline.delivery.retry_policy import (
    Again,
    Budget,
    Evidence,
    Release,
    Sent,
    Settlement,
    Stop,
    settlement,
)
from digest_pipeline.lab.model import model
from digest_pipeline.lab.model.row import Row
from digest_pipeline.lab.model.rules import TIMEOUT_SECONDS, VISIBILITY, Guard, Rules
from digest_pipeline.outcomes import (
    Absent,
    Accepted,
    Ambiguous,
    FailureClass,
    Found,
    NotSent,
    Outcome,
    Refused,
    Throttled,
)
from digest_pipeline.reconciliation.evidence import Doubt, Finding, apart, judge
from digest_pipeline.spec import Retry
from digest_pipeline.states import State

SECOND = 1_000_000


class Answer(StrEnum):
    """What a worker has in hand when its call is over."""

    NONE = "none"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    NOT_SENT = "not_sent"
    THROTTLED = "throttled"
    AMBIGUOUS = "ambiguous"
    RELEASED = "released"
    """It never began the call."""


OUTCOMES: Final[dict[Answer, Outcome]] = {
    Answer.ACCEPTED: Accepted("m"),
    Answer.REFUSED: Refused(FailureClass.RECIPIENT, "5.1.1"),
    Answer.NOT_SENT: NotSent(FailureClass.TRANSIENT, "450"),
    Answer.THROTTLED: Throttled("429"),
    Answer.AMBIGUOUS: Ambiguous("lost reply"),
}


class Taken(NamedTuple):
    """An arrow, and the row after it: None where its guard refused."""

    arrow: str
    row: Row | None


def settled(
    row: Row, token: int, answer: Answer, came_from: State, *, ambiguous: bool, last: bool, rules: Rules
) -> Taken:
    """Settle a claim's end. ``ambiguous`` and ``last`` (attempt of the budget) as they were at the claim."""
    if not rules.has(Guard.STICKY_AMBIGUITY):
        ambiguous = False
    match _meaning(answer, ambiguous=ambiguous, last=last, rules=rules):
        case Sent():
            return Taken("settle_sent", model.settle_sent(row, token, rules))
        case Again():
            return Taken("settle_retry", model.settle_retry(row, token, rules))
        case Stop(dead=dead):
            if dead:
                return Taken("settle_dead", model.settle_dead(row, token, rules))
            return Taken("settle_failed", model.settle_failed(row, token, rules))
        case Release() | None if not ambiguous:
            if came_from is State.PENDING:
                return Taken("release_pending", model.release_pending(row, token, rules))
            return Taken("release_retry", model.release_retry(row, token, rules))
        case None | Release():
            unsent = model.settle_unknown(row, token, rules, sent=False, charged=False)
            return Taken("settle_unknown", unsent)
        case unknown:
            sent, charged = unknown.may_have_been_sent, unknown.charged
            return Taken(
                "settle_unknown", model.settle_unknown(row, token, rules, sent=sent, charged=charged)
            )


@cache
def _meaning(answer: Answer, *, ambiguous: bool, last: bool, rules: Rules) -> Settlement | None:
    if answer is Answer.RELEASED:
        return None
    policy = Retry(max_attempts=rules.budget)
    budget = Budget(rules.budget - 1 if last else 0, 0.0)
    return settlement(
        OUTCOMES[answer],
        ambiguous=ambiguous,
        budget=budget,
        policy=policy,
        evidence=Evidence(0.0),
        random=0.5,
    )


@cache
def finding(found: bool, absent: int, *, visible: bool, retained: bool, rules: Rules) -> Finding:
    """Judge an answer by flags instead of instants: ``absent`` as read with the row, the others as asked."""
    can = rules.can.capabilities
    visible_after = int(TIMEOUT_SECONDS * SECOND) + int(VISIBILITY.total_seconds() * SECOND)
    asked_at = 100 * visible_after if retained else 3 * 24 * 3_600 * SECOND
    counts = visible or not rules.has(Guard.VISIBILITY)
    if not rules.has(Guard.TWO_ABSENCES):
        absent = 2
    absent_at = {0: None, 1: asked_at - apart(can) + 1, 2: asked_at - apart(can)}[absent]
    doubt = Doubt(0, asked_at - visible_after if counts else asked_at, absent_at)
    answer = Found("m") if found else Absent()
    return judge(answer, doubt, can, TIMEOUT_SECONDS, asked_at, control_found=True)

"""Whether an answer about a key agrees with what the ledger says: a pure decision."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any, assert_never

from digest_pipeline.delivery.plan import MICROS
from digest_pipeline.gateways.base import Capabilities
from digest_pipeline.outcomes import Absent, Found, LookUp, LookUpFailed
from digest_pipeline.states import REACHED, State


class Agreement(Enum):
    """What one answer says about one delivery."""

    CONFIRMED = auto()
    MISSING = auto()
    UNEXPECTED = auto()
    UNANSWERED = auto()
    OUTSIDE_WINDOW = auto()


def judge(
    row: Any, answer: LookUp, asked_at: int, capabilities: Capabilities, latest: Any = None
) -> Agreement:
    """Return whether an answer agrees with the ledger, whose state and message id are ``latest``'s.

    ``row`` says when: ``first_at``, the first claim that may have been accepted, and ``last_at``,
    the end. A claimed delivery is on its way: neither answer contradicts it.
    """
    now = latest or row
    sent = now.state in REACHED
    match answer:
        case LookUpFailed():
            return Agreement.UNANSWERED
        case Found():
            # Accepted and later reported as never left: failed, and rightly listed.
            left = now.state == State.FAILED and now.message_id is not None
            agrees = sent or left or now.state == State.CLAIMED
            return Agreement.CONFIRMED if agrees else Agreement.UNEXPECTED
        case Absent():
            if not sent:
                return Agreement.CONFIRMED
            visible, retention = bounds(capabilities)
            listed = row.last_at + visible <= asked_at <= row.first_at + retention
            return Agreement.MISSING if listed else Agreement.OUTSIDE_WINDOW
        case _:
            assert_never(answer)


def bounds(capabilities: Capabilities) -> tuple[int, int]:
    """Return the microseconds after which, and until which, an accepted key is listed."""
    assert capabilities.visibility_delay is not None
    assert capabilities.look_up_retention is not None
    return (
        int(capabilities.visibility_delay.total_seconds() * MICROS),
        int(capabilities.look_up_retention.total_seconds() * MICROS),
    )

"""Reading a subscriber's answers to a push (docs/push.md): status and ``outcome`` must say the same.

Nothing of a body is repeated in a detail but words that are listed here.
"""

from __future__ import annotations

from datetime import datetime

from digest_pipeline.gateways.http import Answer, by_status, retry_after
from digest_pipeline.outcomes import (
    Accepted,
    AccountRefused,
    Ambiguous,
    FailureClass,
    NotSent,
    Outcome,
    Refused,
    Stage,
)

OUTCOMES = frozenset(
    {"complete", "busy", "unknown", "integrity", "throttled", "rejected", "retry", "halted", "refused"}
)
_CLASSES = frozenset({FailureClass.RECIPIENT, FailureClass.CONTENT})
_MOST_ID = 256


def verdict(answer: Answer, now: datetime) -> Outcome:
    """Return what a subscriber decided about a push."""
    said = answer.fields() or {}
    word = said.get("outcome")
    word = word if isinstance(word, str) and word in OUTCOMES else ""
    detail = f"{answer.status} {word}".strip()
    match answer.status, word:
        case 200, "complete":
            return Accepted(_id(said.get("message_id")), said.get("replayed") is True)
        case 409, "integrity":
            return Ambiguous(detail, integrity=True)
        case 422, "rejected" if said.get("class") in _CLASSES:
            failure_class = FailureClass(said["class"])
            return Refused(failure_class, f"{detail} ({failure_class})", said.get("suppressed") is True)
        case 503, "retry":
            # The subscriber's word that it has not sent it, and keeps the key open.
            return NotSent(FailureClass.TRANSIENT, detail, Stage.AFTER_WIRE, retry_after(answer, now))
        case 503, "halted":
            return AccountRefused(detail)
        case 400 | 413 | 422, _:
            # A push has one shape: what is wrong with it is wrong with all of them.
            return AccountRefused(detail)
    return by_status(answer, detail, now, from_api=False)


def _id(value: object) -> str | None:
    is_one = isinstance(value, str) and 0 < len(value) <= _MOST_ID and value.isprintable()
    return str(value) if is_one else None

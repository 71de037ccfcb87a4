"""Reading Postmark's answers: each message has an ``ErrorCode``, in a call of its own or in a batch.

The codes are documented (https://postmarkapp.com/developer/api/overview#error-codes). Code 300 covers
sender and recipient alike; only its message tells them apart. An accepted message whose delivery is
delayed comes without a code (seen, not documented); its MessageID is a clear yes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from digest_pipeline.gateways.http import Answer, by_status
from digest_pipeline.gateways.json_api import Fields, matched, text_of
from digest_pipeline.gateways.look_ups import look_up_in
from digest_pipeline.gateways.sanitise import sanitise
from digest_pipeline.outcomes import (
    Accepted,
    AccountRefused,
    Ambiguous,
    FailureClass,
    LookUp,
    Outcome,
    Refused,
    Throttled,
)

# Invalid JSON, incompatible JSON, JSON required, too many messages, forbidden attachment type.
_CONTENT = frozenset({402, 403, 409, 410, 411})

_ABOUT_TO = re.compile(r"'(?:To|Cc|Bcc)'|\bto address\b", re.I).search
_ABOUT_ACCOUNT = re.compile(r"'(?:From|Reply-?To|MessageStream)'", re.I).search


def verdict(answer: Answer, now: datetime, hide: Sequence[str]) -> Outcome:
    """Return what an answer says about the one message, or the one call, it is about."""
    said = answer.fields()
    if answer.status == 200:
        return item_verdict(said, hide)
    code = _code(said)
    detail = _detail(answer.status, code, said, hide)
    if answer.status == 422 and code:
        return _refusal(code, text_of(said or {}, "Message"), detail)
    return by_status(answer, detail, now, from_api=code is not None)


def batch_verdicts(answer: Answer, recipients: Sequence[str], hide: Sequence[str]) -> list[Outcome]:
    """Return the outcomes of a batch that was answered with 200, in the order of the call."""
    items = answer.array()
    if items is None:
        return [Ambiguous("200 without a readable list")] * len(recipients)
    names = [recipient.lower() for recipient in recipients]
    return [item_verdict(item, hide) for item in matched(names, items, _recipient_of)]


def item_verdict(item: Any, hide: Sequence[str]) -> Outcome:
    """Return what was said about one message; without a readable verdict Ambiguous."""
    if not isinstance(item, dict):
        return Ambiguous("the answer has no verdict for this message")
    code = _code(item) if "ErrorCode" in item else 0
    if code is None:
        return Ambiguous("the answer has no readable code for this message")
    if code:
        return _refusal(code, text_of(item, "Message"), _detail(200, code, item, hide))
    message_id = text_of(item, "MessageID")
    return Accepted(message_id) if message_id else Ambiguous("accepted without a readable MessageID")


def look_up_result(answer: Answer, field: str, value: str, now: datetime) -> LookUp:
    """Return what a search by metadata says."""
    return look_up_in(
        answer,
        (answer.fields() or {}).get("Messages"),
        lambda one: bool(_metadata(one).get(field) == value),
        lambda one: text_of(one, "MessageID") or None,
        now,
    )


def _refusal(code: int, message: str, detail: str) -> Outcome:
    match code:
        case 406:
            return Refused(FailureClass.RECIPIENT, detail, suppressed=True)
        case 300 if _ABOUT_TO(message):
            return Refused(FailureClass.RECIPIENT, detail)
        case 300 if not _ABOUT_ACCOUNT(message):
            return Refused(FailureClass.CONTENT, detail)
        case 429:
            return Throttled(detail)
        case 100:
            return Ambiguous(detail)  # maintenance: not documented that nothing was taken
        case known if known in _CONTENT:
            return Refused(FailureClass.CONTENT, detail)
    # Signatures, tokens, streams, approval: every code that is about one message is above.
    return AccountRefused(detail)


def _code(said: Fields | None) -> int | None:
    code = (said or {}).get("ErrorCode")
    return code if isinstance(code, int) and not isinstance(code, bool) else None


def _detail(status: int, code: int | None, said: Fields | None, hide: Sequence[str]) -> str:
    return sanitise(f"{status} code {code} {text_of(said or {}, 'Message')}", hide)


def _metadata(item: Fields) -> Mapping[str, Any]:
    found = item.get("Metadata")
    return found if isinstance(found, dict) else {}


def _recipient_of(item: Any) -> str | None:
    """Return the address that an item names, in lower case; a refused one names none."""
    to = text_of(item, "To") if isinstance(item, dict) else ""
    return to.rpartition("<")[2].rstrip("> ").lower() or None

"""Reading Amazon SES's answers: {"MessageId"}, or an error named in ``x-amzn-errortype`` or ``__type``.

Documented: the errors of SendEmail and their statuses; the texts "Maximum sending rate exceeded" and
"Daily message quota exceeded" of a throttling error
(https://docs.aws.amazon.com/ses/latest/dg/manage-sending-quotas-errors.html); "Email address is not
verified" (.../troubleshoot-error-messages.html). Assumed: the texts about addresses. No text says
whose address is meant; the sender's was checked before it was frozen, so it is the recipient's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from digest_pipeline.gateways.http import Answer, by_status, retry_after
from digest_pipeline.gateways.json_api import text_of
from digest_pipeline.gateways.sanitise import sanitise
from digest_pipeline.outcomes import (
    Accepted,
    AccountRefused,
    Ambiguous,
    FailureClass,
    Outcome,
    Refused,
    Throttled,
)

_THROTTLING = frozenset({"TooManyRequestsException", "ThrottlingException", "Throttling"})
# Only these are about the one message; every other named error is the account's.
_ABOUT_MESSAGE = frozenset({"MessageRejected", "BadRequestException", "ValidationException"})

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]{0,63}").fullmatch
_QUOTA = re.compile(r"\bquota\b", re.I).search
_ABOUT_ACCOUNT = re.compile(
    r"\bnot verified\b|\bnot authorized\b|\bpaused\b|\bsuspended\b|\bdisabled\b|\bconfiguration set\b", re.I
).search
_ABOUT_ADDRESS = re.compile(
    r"\baddress(?:es)?\b|final '?@domain|\blocal (?:part|name|address)\b|\bdomain (?:contains|starts|ends)\b", re.I
).search  # fmt: skip


def verdict(answer: Answer, now: datetime, hide: Sequence[str]) -> Outcome:
    """Return what an answer says about the one message it is about."""
    said = answer.fields() or {}
    if answer.status == 200:
        message_id = text_of(said, "MessageId")
        return Accepted(message_id) if message_id else Ambiguous("200 without a readable MessageId")
    name = _error_name(answer)
    message = text_of(said, "message") or text_of(said, "Message")
    detail = sanitise(f"{answer.status} {name} {message}", hide)
    if name and 400 <= answer.status < 500:
        if name in _THROTTLING:
            return _throttled(answer, message, detail, now)
        if answer.status == 400:
            return _refusal(name, message, detail)
    return by_status(answer, detail, now, from_api=bool(name))


def _error_name(answer: Answer) -> str:
    """Return an error's name without namespace and URL: ``aws#Name`` and ``Name:http://...`` are in use."""
    header = answer.headers.get("x-amzn-errortype", "")
    text = header or text_of(answer.fields() or {}, "__type")
    name = text.partition(":")[0].rpartition("#")[2]
    return name if _NAME(name) else ""


def _throttled(answer: Answer, message: str, detail: str, now: datetime) -> Outcome:
    if _QUOTA(message):
        return AccountRefused(detail)
    return Throttled(detail, retry_after(answer, now))


def _refusal(name: str, message: str, detail: str) -> Outcome:
    if name not in _ABOUT_MESSAGE or _ABOUT_ACCOUNT(message):
        return AccountRefused(detail)
    if _ABOUT_ADDRESS(message):
        return Refused(FailureClass.RECIPIENT, detail)
    return Refused(FailureClass.CONTENT, detail)

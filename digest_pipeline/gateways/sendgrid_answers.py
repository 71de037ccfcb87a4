"""Reading SendGrid's answers: 202 with an ``X-Message-Id``, or {"errors": [{"message", "field"}]}.

Documented: both shapes, the statuses, and ``X-RateLimit-Reset`` in seconds since 1970
(https://www.twilio.com/docs/sendgrid/api-reference/how-to-use-the-sendgrid-v3-api/rate-limits). Assumed:
``field`` is a path such as ``personalizations.0.to.0.email``; 503 does not say that nothing was taken.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from digest_pipeline.gateways.http import Answer, by_status, retry_after
from digest_pipeline.gateways.json_api import Fields, text_of
from digest_pipeline.gateways.retry_after import MAX_SECONDS
from digest_pipeline.gateways.sanitise import sanitise
from digest_pipeline.outcomes import (
    Accepted,
    AccountRefused,
    Ambiguous,
    FailureClass,
    LookUpFailed,
    Outcome,
    Refused,
    Throttled,
)

KEY_ARG = "operation_key"

_EPOCH = re.compile(r"[0-9]{9,11}").fullmatch
_RECIPIENT = re.compile(r"personalizations\.\d+\.(?:to|cc|bcc)\b").match
# What every message of the digest has in common.
_ACCOUNT = re.compile(r"(?:from|reply_to|template_id|asm|ip_pool_name|batch_id|mail_settings)\b").match


def verdict(answer: Answer, now: datetime, hide: Sequence[str]) -> Outcome:
    """Return what an answer says about the one message it is about."""
    if answer.status == 202:
        message_id = answer.headers.get("X-Message-Id", "")
        return Accepted(message_id) if message_id else Ambiguous("202 without an X-Message-Id")
    errors = _errors(answer)
    first = errors[0] if errors else {}
    detail = sanitise(f"{answer.status} {text_of(first, 'field')} {text_of(first, 'message')}", hide)
    if answer.status in (400, 422) and errors:
        return _refusal([text_of(error, "field") for error in errors], detail)
    outcome = by_status(answer, detail, now, from_api=bool(errors))
    return _waiting(answer, outcome, now) if isinstance(outcome, Throttled) else outcome


def listed(answer: Answer, now: datetime) -> list[str] | LookUpFailed:
    """Return the ids that a search of the logs answered with."""
    found = (answer.fields() or {}).get("messages")
    if answer.status != 200 or not isinstance(found, list):
        wait = retry_after(answer, now) if answer.status in (429, 503) else None
        return LookUpFailed(f"the logs answered {answer.status} without a list", wait)
    ids = [text_of(one, "sg_message_id") if isinstance(one, dict) else "" for one in found]
    return ids if all(ids) else LookUpFailed("the logs answered with a message without an id")


def is_ours(answer: Answer, operation_key: str) -> bool:
    """Whether the details of a message name the key."""
    found = (answer.fields() or {}).get("custom_args")
    return answer.status == 200 and isinstance(found, dict) and found.get(KEY_ARG) == operation_key


def _errors(answer: Answer) -> list[Fields]:
    found = (answer.fields() or {}).get("errors")
    return [error for error in found if isinstance(error, dict)] if isinstance(found, list) else []


def _refusal(fields: Sequence[str], detail: str) -> Outcome:
    """Return what errors mean together: the account's fault before the message's."""
    if any(_ACCOUNT(field) for field in fields):
        return AccountRefused(detail)
    if any(_RECIPIENT(field) for field in fields):
        return Refused(FailureClass.RECIPIENT, detail)
    return Refused(FailureClass.CONTENT, detail)


def _waiting(answer: Answer, throttled: Throttled, now: datetime) -> Throttled:
    """Return the wait until the reset where there is no Retry-After."""
    reset = answer.headers.get("X-RateLimit-Reset", "")
    if throttled.retry_after is not None or not _EPOCH(reset):
        return throttled
    return replace(throttled, retry_after=min(max(int(reset) - now.timestamp(), 0.0), MAX_SECONDS))

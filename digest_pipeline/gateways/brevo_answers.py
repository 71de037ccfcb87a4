"""Reading Brevo's answers: 201 with a ``messageId``, or {"code", "message"}.

Documented: both shapes, the codes (https://developers.brevo.com/docs/how-it-works and their SDKs),
``duplicate_parameter`` for an idempotency key in use, ``x-sib-ratelimit-reset`` in seconds. One code,
``invalid_parameter``, stands for recipient, sender and content; only its message tells them apart, in
words that are seen rather than documented. Assumed: a report without events is ``{}`` or has an empty
list; ``duplicate_request``, which the SDKs list and nothing explains, may follow an acceptance.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from digest_pipeline.gateways.http import Answer, by_status
from digest_pipeline.gateways.json_api import text_of
from digest_pipeline.gateways.look_ups import look_up_in
from digest_pipeline.gateways.retry_after import parse_retry_after
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

_ACCOUNT = frozenset(
    {"not_enough_credits", "permission_denied", "unauthorized", "account_under_validation",
     "method_not_allowed", "not_acceptable", "document_not_found"}
)  # fmt: skip
_CODE = re.compile(r"[a-z][a-z_]{0,63}").fullmatch
_ABOUT_TO = re.compile(r"\bin (?:to|cc|bcc)\b|^(?:to|cc|bcc) (?:is|must)\b|\brecipients?\b", re.I).search
_ABOUT_ACCOUNT = re.compile(r"\bsender\b|\breplyTo\b|\btemplate(?:Id)?\b|\bAPI key\b", re.I).search


def verdict(answer: Answer, now: datetime, hide: Sequence[str], *, keyed: bool) -> Outcome:
    """Return what an answer says about the one message it is about. ``keyed``: it went under a key."""
    said = answer.fields() or {}
    if answer.status in (201, 202):
        message_id = text_of(said, "messageId")
        return Accepted(message_id) if message_id else Ambiguous(f"{answer.status} without a readable id")
    code = text_of(said, "code")
    code = code if _CODE(code) else ""
    message = text_of(said, "message")
    detail = sanitise(f"{answer.status} {code} {message}", hide)
    match answer.status, code:
        case 400, "duplicate_parameter" if keyed:
            # Taken before under this key; Brevo doesn't say which id it gave.
            return Accepted(None, replayed=True)
        case 400 | 422, "duplicate_request":
            return Ambiguous(detail)
        case 400 | 422, known if known in _ACCOUNT:
            return AccountRefused(detail)
        case 400 | 422, known if known:
            return _refusal(message, detail)
    outcome = by_status(answer, detail, now, from_api=bool(code))
    return _waiting(answer, outcome, now) if isinstance(outcome, Throttled) else outcome


def look_up_result(answer: Answer, tag: str, now: datetime) -> LookUp:
    """Return what a report by tag says."""
    return look_up_in(
        answer,
        _events(answer),
        lambda one: text_of(one, "tag") == tag,
        lambda one: text_of(one, "messageId") or None,
        now,
    )


def _events(answer: Answer) -> list[Any] | None:
    """Return the events of a report, None where it is no readable one."""
    said = answer.fields()
    if answer.status != 200 or said is None:
        return None
    found = said.get("events") if said else []
    return found if isinstance(found, list) else None


def _refusal(message: str, detail: str) -> Outcome:
    # The recipient first: a message may quote the address, and nobody's address may halt the others.
    if _ABOUT_TO(message):
        return Refused(FailureClass.RECIPIENT, detail)
    if _ABOUT_ACCOUNT(message):
        return AccountRefused(detail)
    return Refused(FailureClass.CONTENT, detail)


def _waiting(answer: Answer, throttled: Throttled, now: datetime) -> Throttled:
    """Return the wait until the reset where there is no Retry-After."""
    if throttled.retry_after is not None:
        return throttled
    return replace(throttled, retry_after=parse_retry_after(answer.headers.get("x-sib-ratelimit-reset"), now))

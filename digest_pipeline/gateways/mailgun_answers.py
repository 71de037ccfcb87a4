"""Reading Mailgun's answers: {"id", "message"}, {"message"}, or the bare word Forbidden with 401.

Documented: these shapes, the texts "'to' parameter is not a valid address" and "... limit exceeded, try
again after 120 seconds". Seen in public reports: "Domain ... is not allowed to send", "Sandbox
subdomains are for test purposes only", "Domain not found". Assumed: any other 400 is about the message.
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

_ABOUT_TO = re.compile(r"\b(?:to|cc|bcc)'? parameter\b", re.I).search
_ABOUT_ACCOUNT = re.compile(
    r"\bfrom'? parameter\b|\bsandbox\b|\bnot allowed to send\b|\bdisabled\b|\bdomain not found\b", re.I
).search
_AGAIN = re.compile(r"\btry again after (\d{1,7}) seconds?\b", re.I).search


def verdict(answer: Answer, now: datetime, hide: Sequence[str]) -> Outcome:
    """Return what an answer says about the one message it is about."""
    said = answer.fields() or {}
    if answer.status == 200:
        return _taken(answer, text_of(said, "id"))
    message = text_of(said, "message")
    detail = sanitise(f"{answer.status} {message}", hide)
    if answer.status in (400, 422) and message:
        return _refusal(message, detail)
    outcome = by_status(answer, detail, now, from_api=bool(message))
    return _waiting(message, outcome, now) if isinstance(outcome, Throttled) else outcome


def look_up_result(answer: Answer, tag: str, now: datetime) -> LookUp:
    """Return what the logs say of a tag."""
    items = (answer.fields() or {}).get("items")
    return look_up_in(answer, items, lambda one: _has(one, tag), _message_id, now)


def _taken(answer: Answer, message_id: str) -> Outcome:
    if message_id:
        return Accepted(_bracketed(message_id))
    if b"Mailgun Magnificent API" in answer.body:
        return AccountRefused("200 from an address that Mailgun does not serve: see url and domain")
    return Ambiguous("200 without a readable id")


def _refusal(message: str, detail: str) -> Outcome:
    # The recipient first: a message may quote the address, and nobody's address may halt the others.
    if _ABOUT_TO(message):
        return Refused(FailureClass.RECIPIENT, detail)
    if _ABOUT_ACCOUNT(message):
        return AccountRefused(detail)
    return Refused(FailureClass.CONTENT, detail)


def _waiting(message: str, throttled: Throttled, now: datetime) -> Throttled:
    """Return the wait that the text names where there is no Retry-After."""
    again = _AGAIN(message)
    if throttled.retry_after is not None or again is None:
        return throttled
    return replace(throttled, retry_after=parse_retry_after(again[1], now))


def _has(item: dict[str, Any], tag: str) -> bool:
    tags = item.get("tags")
    return isinstance(tags, list) and tag in tags


def _message_id(item: dict[str, Any]) -> str | None:
    message = item.get("message")
    headers = message.get("headers") if isinstance(message, dict) else None
    found = text_of(headers, "message-id") if isinstance(headers, dict) else ""
    return _bracketed(found) if found else None


def _bracketed(message_id: str) -> str:
    """Return an id as a send answers it: logs and events leave the brackets out."""
    return f"<{message_id.strip('<>')}>"

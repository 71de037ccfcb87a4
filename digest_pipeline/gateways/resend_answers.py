"""Reading Resend's answers: {"id"}, a batch's {"data", "errors"}, or {"statusCode", "name", "message"}.

Names and statuses are documented (https://resend.com/docs/api-reference/errors). One name,
``validation_error``, stands for a wrong recipient, an unverified domain and a wrong key: only the
status and the field named in the message tell them apart.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from digest_pipeline.gateways.http import Answer, by_status
from digest_pipeline.gateways.json_api import text_of
from digest_pipeline.gateways.retry_after import parse_retry_after
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

_ACCOUNT = frozenset({"daily_quota_exceeded", "monthly_quota_exceeded", "invalid_from_address", "invalid_access",
                      "missing_api_key", "invalid_api_key", "restricted_api_key"})  # fmt: skip
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}").fullmatch
_ABOUT_TO = re.compile(r"[`'\"]to[`'\"]|\binvalid_to\b", re.I).search
_ABOUT_ACCOUNT = re.compile(r"[`'\"]from[`'\"]|\bdomain\b.*\bverif|\bAPI key\b", re.I).search


def verdict(answer: Answer, now: datetime, hide: Sequence[str]) -> Outcome:
    """Return what an answer says about the one message, or the one call, it is about."""
    said = answer.fields() or {}
    if answer.status == 200:
        message_id = text_of(said, "id")
        return Accepted(message_id) if message_id else Ambiguous("200 without a readable id")
    name = text_of(said, "name")
    name = name if _NAME(name) else ""
    message = text_of(said, "message")
    detail = sanitise(f"{answer.status} {name} {message}", hide)
    match answer.status, name:
        case 409, "invalid_idempotent_request":
            return Ambiguous(detail, integrity=True)
        case 400 | 422 | 429, named if named in _ACCOUNT:
            return AccountRefused(detail)
        case (
            400 | 422,
            "validation_error" | "missing_required_field" | "invalid_to_address" | "invalid_parameter",
        ):
            return _invalid(f"{message} {name}", detail)
    outcome = by_status(answer, detail, now, from_api=bool(name))
    return _waiting(answer, outcome, now) if isinstance(outcome, Throttled) else outcome


def batch_verdicts(answer: Answer, count: int, hide: Sequence[str]) -> list[Outcome]:
    """Return the outcomes of a batch that was answered with 200, in the order of the call.

    ``errors`` name their place. ``data`` names nothing: it is matched by its order, and only where the
    two together account for every message of the call.
    """
    said = answer.fields() or {}
    data, errors = said.get("data"), said.get("errors", [])
    if not isinstance(data, list) or not isinstance(errors, list):
        return [Ambiguous("200 without a readable list")] * count
    refused = _by_place(errors, count)
    complete = len(refused) == len(errors) and len(data) + len(refused) == count
    taken = iter(data if complete else [])
    outcomes: list[Outcome] = []
    for place in range(count):
        if place in refused:
            message = refused[place]
            outcomes.append(_invalid(message, sanitise(f"invalid {message}", hide)))
        else:
            outcomes.append(_taken(next(taken, None)))
    return outcomes


def _by_place(errors: Sequence[Any], count: int) -> dict[int, str]:
    """Return the messages of errors by place; an error that names no place, or a second time, is left out."""
    found: dict[int, str] = {}
    for error in errors:
        place = error.get("index") if isinstance(error, dict) else None
        if isinstance(place, int) and 0 <= place < count and place not in found:
            found[place] = text_of(error, "message")
    return found


def _taken(item: Any) -> Outcome:
    message_id = text_of(item, "id") if isinstance(item, dict) else ""
    return Accepted(message_id) if message_id else Ambiguous("the batch answer has no verdict for this place")


def _invalid(message: str, detail: str) -> Outcome:
    # The recipient first: a message may quote the address, and nobody's address may halt the others.
    if _ABOUT_TO(message) or "invalid_to_address" in message:
        return Refused(FailureClass.RECIPIENT, detail)
    if _ABOUT_ACCOUNT(message):
        return AccountRefused(detail)
    return Refused(FailureClass.CONTENT, detail)


def _waiting(answer: Answer, throttled: Throttled, now: datetime) -> Throttled:
    """Return the wait of ``ratelimit-reset`` (seconds, documented) where there is no Retry-After."""
    if throttled.retry_after is not None:
        return throttled
    return replace(throttled, retry_after=parse_retry_after(answer.headers.get("ratelimit-reset"), now))

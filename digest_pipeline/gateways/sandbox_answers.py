"""Reading the sandbox provider's answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from digest_pipeline.gateways.http import Answer, by_status
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
)

_RECIPIENT = frozenset({"invalid_recipient", "recipient_suppressed"})
_ACCOUNT = frozenset({"invalid_from_address", "domain_not_verified", "quota_exceeded", "sending_paused"})
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}").fullmatch

Fields = Mapping[str, Any]


def verdict(
    answer: Answer, fields: Fields | None, replayed: bool, now: datetime, hide: tuple[str, ...]
) -> Outcome:
    """Return what was said about one message. ``hide`` is kept out of the detail."""
    said = fields or {}
    if answer.status in (200, 202):
        message_id = said.get("id")
        if isinstance(message_id, str) and message_id:
            return Accepted(message_id, replayed)
        return Ambiguous(f"{answer.status} without a readable id")
    name = said.get("name")
    name = name if isinstance(name, str) and _NAME(name) else ""
    detail = sanitise(f"{answer.status} {name} {said.get('message', '')}", hide)
    match answer.status, name:
        case 409, "invalid_idempotent_request":
            return Ambiguous(detail, integrity=True)
        case 400, "duplicate_parameter":
            # Taken before under this key; the provider doesn't say which id it gave.
            return Accepted(None, replayed=True)
        case 400 | 422, named if named in _RECIPIENT:
            return Refused(FailureClass.RECIPIENT, detail)
        case 400 | 422 | 429, named if named in _ACCOUNT:
            return AccountRefused(detail)
    unprocessed = name == "service_unavailable"
    return by_status(answer, detail, now, from_api=bool(name), unavailable_is_unprocessed=unprocessed)


def by_key(answer: Answer) -> dict[str, Fields | None]:
    """Return the items of a batch answer by operation key; None where a key came twice."""
    data = (answer.fields() or {}).get("data")
    found: dict[str, Fields | None] = {}
    for item in data if isinstance(data, list) else []:
        key = item.get("key") if isinstance(item, dict) else None
        if isinstance(key, str):
            found[key] = None if key in found else item
    return found


def item_verdict(item: Fields | None, now: datetime, hide: tuple[str, ...]) -> Outcome:
    """Return what a batch answer says about one message; without a readable verdict Ambiguous."""
    status = item.get("status") if item else None
    if item is None or not isinstance(status, int):
        return Ambiguous("the batch answer has no verdict for this key")
    error = item.get("error")
    fields = error if isinstance(error, dict) else item
    return verdict(Answer(status), fields, item.get("replayed") is True, now, hide)


def look_up_result(answer: Answer, operation_key: str, now: datetime) -> LookUp:
    """Return what a look-up by key says."""
    return look_up_in(
        answer,
        (answer.fields() or {}).get("data"),
        lambda one: bool(one.get("operation_key") == operation_key),
        lambda one: one["id"] if isinstance(one.get("id"), str) else None,
        now,
    )

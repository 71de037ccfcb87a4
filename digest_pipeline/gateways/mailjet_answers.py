"""Reading Mailjet's answers: ``Messages`` with a ``Status`` each, or one error about the whole call.

Codes and shapes are documented (https://dev.mailjet.com/email/guides/send-api-v31, "Send API errors").
A call of which some or all messages failed comes with a 4xx status and ``Messages`` all the same
(seen in django-anymail), so the items are read whatever the status below 500.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from digest_pipeline.gateways.base import BatchRefused
from digest_pipeline.gateways.http import Answer, by_status
from digest_pipeline.gateways.json_api import Fields, matched, text_of, whole_call
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

# Suspended or wrong keys, senders that are not validated, and settings that every message shares.
_ACCOUNT = frozenset(
    {"mj-0001", "mj-0015", "send-0006", "send-0007", "send-0008", "send-0010", "send-0012", "send-0013"}
)
_ABOUT_ADDRESSES = frozenset({"mj-0003", "mj-0004", "mj-0005", "mj-0007", "mj-0012", "mj-0013"})


def verdicts(
    answer: Answer, names: Sequence[str], now: datetime, hide: Sequence[str]
) -> list[Outcome] | BatchRefused:
    """Return one outcome for each message of a call, in its order; ``names`` are their CustomIDs."""
    said = answer.fields() or {}
    items = said.get("Messages")
    if isinstance(items, list) and (200 <= answer.status < 300 or 400 <= answer.status < 500):
        return [_item(item, hide) for item in matched(names, items, _name_of)]
    code = text_of(said, "ErrorCode")
    detail = sanitise(f"{answer.status} {code} {text_of(said, 'ErrorMessage')}", hide)
    if answer.status < 300:
        return [Ambiguous(f"{answer.status} without a readable list")] * len(names)
    if 400 <= answer.status < 500 and code in _ACCOUNT:
        return [AccountRefused(detail)] * len(names)
    if len(names) > 1 and not code and answer.status in (400, 422):
        # Calls that are answered so can have accepted messages in them, and this answer can't be read.
        return [Ambiguous(detail)] * len(names)
    return whole_call(by_status(answer, detail, now, from_api=bool(code)), len(names))


def look_up_result(answer: Answer, name: str, now: datetime) -> LookUp:
    """Return what a look-up by CustomID says."""
    return look_up_in(
        answer,
        (answer.fields() or {}).get("Data"),
        lambda one: bool(one.get("CustomID") == name),
        lambda one: _id(one.get("ID")),
        now,
    )


def _item(item: Any, hide: Sequence[str]) -> Outcome:
    if not isinstance(item, dict):
        return Ambiguous("the answer has no verdict for this message")
    match item.get("Status"), item.get("To"), item.get("Errors"):
        case "success", [{"MessageID": message_id}], _ if _id(message_id):
            return Accepted(_id(message_id))
        case "success", _, _:
            return Ambiguous("accepted without a readable MessageID")
        case "error", _, [*errors] if errors and all(isinstance(error, dict) for error in errors):
            return _refusal(errors, hide)
    return Ambiguous("the answer has no readable status for this message")


def _refusal(errors: Sequence[Fields], hide: Sequence[str]) -> Outcome:
    """Return what the errors of one message mean together: the account's fault before the message's."""
    codes = [text_of(error, "ErrorCode") for error in errors]
    statuses = [error.get("StatusCode") for error in errors]
    detail = sanitise(f"{codes[0]} {text_of(errors[0], 'ErrorMessage')}", hide)
    if any(not isinstance(status, int) or status >= 500 or status == 408 for status in statuses):
        return Ambiguous(detail)
    if any(_is_the_accounts(error) for error in errors):
        return AccountRefused(detail)
    if 429 in statuses:
        return Throttled(detail)
    about_recipient = any(
        code in _ABOUT_ADDRESSES and _is_about(error, "To") for code, error in zip(codes, errors, strict=True)
    )
    return Refused(FailureClass.RECIPIENT if about_recipient else FailureClass.CONTENT, detail)


def _is_the_accounts(error: Fields) -> bool:
    return (
        text_of(error, "ErrorCode") in _ACCOUNT
        or error.get("StatusCode") in (401, 402, 403)
        or _is_about(error, "From")
        or _is_about(error, "Sender")
    )


def _is_about(error: Fields, field: str) -> bool:
    """Whether an error names a field, as ``To`` or ``To[0].Email``."""
    related = error.get("ErrorRelatedTo")
    names = related if isinstance(related, list) else []
    return any(isinstance(name, str) and name.partition("[")[0].partition(".")[0] == field for name in names)


def _name_of(item: Any) -> str | None:
    """Return the CustomID that an item names; a refused one names none."""
    return (text_of(item, "CustomID") or None) if isinstance(item, dict) else None


def _id(value: Any) -> str | None:
    """Return a message id as text: Mailjet's are numbers beyond what a float can hold."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return str(value)
    return value if isinstance(value, str) and value else None

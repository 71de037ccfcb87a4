"""Reading one message as the API takes it: what is kept of it, and what is wrong with it."""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple

BOUNCE_DOMAIN = "@bounce.example"
"""Recipients there are refused with 422; all others are taken."""

MAX_KEY_LENGTH = 256

_OUTLINE = {"from", "to", "subject", "metadata"}
_BACKSLASH = 0x5C
_decode = json.JSONDecoder().raw_decode


class Problem(NamedTuple):
    """Why a message isn't taken, as the answer says it."""

    status: int
    name: str
    message: str


class Item(NamedTuple):
    """What the store keeps of a message, and the problem it has, if any."""

    key: str
    body_hash: bytes
    recipients: int = 0
    recipient_hash: bytes | None = None
    problem: Problem | None = None


def read_message(body: bytes, header_key: str) -> Item:
    """Return the item. The key is the header's, or else the body's ``metadata.operation_key``."""
    body_hash = hashlib.sha256(body).digest()
    try:
        message = _outline(body) or json.loads(body)
        emails = [entry["email"] for entry in message["to"]]
        key = header_key or str((message.get("metadata") or {}).get("operation_key", ""))
        joined = "\n".join(emails)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        unreadable = Problem(422, "validation_error", "the body is not a message object with a `to` list")
        return Item(header_key, body_hash, problem=unreadable)
    hashed = hashlib.sha256(joined.encode("utf-8", "surrogatepass")).digest()
    return Item(key, body_hash, len(emails), hashed, _problem(message, emails, key))


def _outline(body: bytes) -> dict[str, Any] | None:
    """Return the fields of a compactly written message without its long texts, or None.

    Parsing a body of 30 kB takes longer than all the rest of a request, so strings are stepped over.
    Anything unusual, such as white space between tokens, is left to the real parser: a string stepped
    over too far takes one of the required names with it.
    """
    found: dict[str, Any] = {}
    at = 1
    try:
        while at < len(body):
            colon = body.index(b'":', at)
            name = body[at + 1 : colon].decode("ascii")
            if body[at : at + 1] != b'"' or "\\" in name or name in found:
                return None
            found[name], at = _value(body, colon + 2)
            if body[at : at + 1] == b"}":
                whole = at + 1 == len(body) and body.startswith(b"{") and found.keys() >= _OUTLINE
                return found if whole else None
            if body[at : at + 1] != b",":
                return None
            at += 1
    except ValueError:
        pass
    return None


def _value(body: bytes, at: int) -> tuple[Any, int]:
    """Return a value and where it ends. Of a string only whether it is empty is true."""
    if body[at : at + 1] != b'"':
        text = body[at : at + 2048].decode("utf-8", "ignore")
        value, length = _decode(text)
        return value, at + len(text[:length].encode())
    end = at
    while True:
        end = body.find(b'",', end + 1)
        if end < 0:
            end = len(body) - 2
        before = end - 1
        while body[before] == _BACKSLASH:
            before -= 1
        if (end - before) % 2:  # an even number of backslashes: this quote is not escaped
            return "..." if end > at + 1 else "", end + 1


def _problem(message: dict[str, Any], emails: list[str], key: str) -> Problem | None:
    if not emails or not message.get("from") or not isinstance(message.get("subject"), str):
        return Problem(422, "missing_required_field", "`from`, `to` and `subject` are required")
    if len(key) > MAX_KEY_LENGTH:
        return Problem(400, "invalid_idempotency_key", "keys have at most 256 characters")
    for email in emails:
        if email.lower().endswith(BOUNCE_DOMAIN) or "@" not in email:
            return Problem(422, "invalid_recipient", f"the address {email} can't receive mail")
    return None

"""Postmark (https://postmarkapp.com/developer/api), as far as a digest needs it.

Documented: the routes and fields; ``X-Postmark-Server-Token``; 422 with ``ErrorCode`` and ``Message``
for a refused message, and 200 for a batch whose items carry an ``ErrorCode`` of their own, in the
order of the call (codes 0, 10, 300, 400, 406, 410 and 429 are used here); up to 500 messages in a
batch; ``GET /messages/outbound`` with ``count``, ``offset`` and ``metadata_<name>``, 45 days back by
default.

Assumed: a search that names no ``messagestream`` sees the default one only; metadata names of at most 20 and values of at most 80 characters; the code that a refused
metadata field gets; that a maintenance (503, code 100) has processed nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from aiohttp import web

from digest_pipeline.lab.providers.emulation import (
    Call,
    Emulation,
    Incoming,
    Refusal,
    Result,
    Route,
    json_answer,
    same_bytes,
    spoiled_by,
    uuid_of,
)

MAX_BATCH = 500
DEFAULT_STREAM = "outbound"
MAX_METADATA_NAME = 20
MAX_METADATA_VALUE = 80

_WORDS = {
    Refusal.RECIPIENT: (422, 300, "Error parsing 'To': Illegal email address '{address}'."),
    Refusal.SUPPRESSED: (422, 406, "You tried to send to a recipient that is inactive: {address}."),
    Refusal.MALFORMED: (422, 403, "The JSON does not match the fields that are expected."),
    Refusal.SENDER: (422, 400, "The 'From' address is not a Sender Signature on your account."),
    Refusal.CREDENTIAL: (401, 10, "The Server Token {credential} is not valid."),
    Refusal.THROTTLED: (429, 429, "Rate limit exceeded."),
    Refusal.UNAVAILABLE: (503, 100, "Service is in maintenance."),
    Refusal.ERROR: (500, -1, "Internal Server Error"),
    Refusal.NO_ROUTE: (404, -1, "Not found"),
}


class Postmark(Emulation):
    """Postmark's sending API and its search of sent messages."""

    name = "postmark"
    routes: ClassVar = {
        ("POST", "/email"): Route.SEND,
        ("POST", "/email/batch"): Route.SEND,
        ("GET", "/messages/outbound"): Route.LOOK_UP,
    }
    settings: ClassVar = {"idempotency": "none", "retention": 45 * 86400.0}

    def knows(self, call: Call, credential: str) -> bool:
        return call.headers.get("X-Postmark-Server-Token") == credential

    def read(self, call: Call) -> list[Incoming] | Refusal:
        try:
            found = json.loads(call.body)
            messages = found if call.path.endswith("/batch") else [found]
            if not 1 <= len(messages) <= MAX_BATCH:
                return Refusal.MALFORMED
            return [_message(message) for message in messages]
        except (ValueError, TypeError, KeyError, AttributeError):
            return Refusal.MALFORMED

    def answer(self, call: Call, results: Sequence[Result]) -> web.Response:
        if call.path.endswith("/batch"):
            return json_answer(200, [_item(call, result) for result in results])
        (result,) = results
        if result.refusal is not None:
            return json_answer(_WORDS[result.refusal][0], _item(call, result))
        return json_answer(200, _item(call, result))

    def refuse(self, call: Call, refusal: Refusal) -> web.Response:
        return json_answer(_WORDS[refusal][0], _refusal(call, refusal, ()))

    def message_id(self, serial: str) -> str:
        return uuid_of(serial)

    def asked(self, call: Call) -> str:
        value = next((value for name, value in call.query.items() if name.startswith("metadata_")), "")
        return _in_stream(call.query.get("messagestream", DEFAULT_STREAM), value)

    def listed(self, call: Call, reference: str, message_ids: Sequence[str]) -> web.Response:
        name = next((name for name in call.query if name.startswith("metadata_")), "metadata_")
        if not call.query.get("count") or not call.query.get("offset"):
            return self.refuse(call, Refusal.MALFORMED)
        stream, _, value = reference.partition(" ")
        metadata = {name.removeprefix("metadata_"): value}
        shown = [
            {"MessageID": message_id, "Status": "Sent", "MessageStream": stream, "Metadata": metadata}
            for message_id in message_ids
        ]
        return json_answer(200, {"TotalCount": len(shown), "Messages": shown})


def _refusal(call: Call, refusal: Refusal, recipients: Sequence[str]) -> dict[str, Any]:
    """Return a refusal: ugly, since it quotes whom the call was for and what it proved itself with."""
    _, code, message = _WORDS[refusal]
    credential = call.headers.get("X-Postmark-Server-Token")
    return {
        "ErrorCode": code,
        "Message": message.format(address=", ".join(recipients), credential=credential),
    }


def _item(call: Call, result: Result) -> dict[str, Any]:
    if result.refusal is not None:
        return _refusal(call, result.refusal, result.incoming.recipients)
    return {
        "ErrorCode": 0,
        "Message": "OK",
        "MessageID": result.message_id,
        "SubmittedAt": "2026-10-19T06:00:00.0000000Z",
        "To": ", ".join(result.incoming.recipients),
    }


def _message(message: dict[str, Any]) -> Incoming:
    fields = [message.get(field) or "" for field in ("To", "Cc", "Bcc")]
    recipients = [one.rpartition("<")[2].rstrip("> ") for field in fields for one in _split(field)]
    refusal = spoiled_by(recipients, message["From"])
    metadata: dict[str, str] = message.get("Metadata") or {}
    if not isinstance(message["Subject"], str) or not (message.get("HtmlBody") or message.get("TextBody")):
        refusal = Refusal.MALFORMED
    if any(
        len(name) > MAX_METADATA_NAME or len(value) > MAX_METADATA_VALUE for name, value in metadata.items()
    ):
        refusal = Refusal.MALFORMED
    headers = {header["Name"].lower(): header["Value"] for header in message.get("Headers") or []}
    return Incoming(
        key=headers.get("x-operation-key", ""),
        body=same_bytes(message),
        recipients=recipients,
        refusal=refusal,
        reference=_in_stream(message.get("MessageStream", DEFAULT_STREAM), next(iter(metadata.values()), "")),
    )


def _in_stream(stream: str, value: str) -> str:
    return f"{stream} {value}"


def _split(field: str) -> list[str]:
    """Return the addresses of a field: commas within quotes don't part them."""
    parts, quoted = [""], False
    for place, letter in enumerate(field):
        quoted ^= letter == '"' and field[place - 1 : place] != "\\"
        if letter == "," and not quoted:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]

"""Mailjet's Send API v3.1 (https://dev.mailjet.com/email/guides/send-api-v31), as far as a digest needs it.

Documented: the routes and fields; basic authentication with key and secret; up to 50 messages in a
call, answered in its order; the success and error items, the error about a whole call, and their
codes; the headers that may not be set (send-0011); ``GET /v3/REST/message`` by ``CustomID``, with the
CustomID in the answer where ``ShowCustomID`` asks for it. Seen in client libraries: a call with a
failed message answers 400 with ``Messages``.

Assumed: a CustomID of at most 255 characters; the status of a call whose messages failed for
different reasons is that of the first.
"""

from __future__ import annotations

import base64
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

MAX_BATCH = 50
MAX_CUSTOM_ID = 255

# Some of those listed as forbidden, which a digest would like to set.
_FORBIDDEN = frozenset({"from", "to", "cc", "bcc", "subject", "date", "message-id", "list-id", "x-mailer"})

_WORDS = {
    Refusal.RECIPIENT: (400, "mj-0013", '"{address}" is an invalid email address.', ["To[0].Email"]),
    Refusal.SUPPRESSED: (400, "mj-0013", '"{address}" is an invalid email address.', ["To[0].Email"]),
    Refusal.MALFORMED: (400, "mj-0002", "Malformed JSON, please review the syntax and properties types.", []),
    Refusal.SENDER: (403, "send-0008", "The sender is not an authorized sender email address.", ["From"]),
    Refusal.CREDENTIAL: (401, "mj-0015", "API key authentication/authorization failure: {credential}.", []),
    Refusal.THROTTLED: (429, "", "Too many requests.", []),
    Refusal.UNAVAILABLE: (503, "", "Service unavailable.", []),
    Refusal.ERROR: (500, "", "Internal server error.", []),
    Refusal.NO_ROUTE: (404, "", "Resource not found.", []),
}


class Mailjet(Emulation):
    """Mailjet's sending API and its list of messages."""

    name = "mailjet"
    routes: ClassVar = {("POST", "/v3.1/send"): Route.SEND, ("GET", "/v3/REST/message"): Route.LOOK_UP}
    settings: ClassVar = {"idempotency": "none"}

    def knows(self, call: Call, credential: str) -> bool:
        pair = base64.b64encode(credential.encode()).decode()
        return call.headers.get("Authorization") == f"Basic {pair}"

    def read(self, call: Call) -> list[Incoming] | Refusal:
        try:
            messages = json.loads(call.body)["Messages"]
            if not 1 <= len(messages) <= MAX_BATCH:
                return Refusal.MALFORMED
            return [_message(message) for message in messages]
        except (ValueError, TypeError, KeyError, AttributeError):
            return Refusal.MALFORMED

    def answer(self, call: Call, results: Sequence[Result]) -> web.Response:
        refused = next((result.refusal for result in results if result.refusal), None)
        status = _WORDS[refused][0] if refused else 200
        return json_answer(status, {"Messages": [_item(call, result) for result in results]})

    def refuse(self, call: Call, refusal: Refusal) -> web.Response:
        error = _error(call, refusal, ())
        return json_answer(error["StatusCode"], {name: value for name, value in error.items() if value})

    def message_id(self, serial: str) -> str:
        identity, _, number = serial.rpartition("-")
        return str(10**17 + int(identity, 16) * 10**6 + int(number))

    def asked(self, call: Call) -> str:
        return call.query.get("CustomID", "")

    def listed(self, call: Call, reference: str, message_ids: Sequence[str]) -> web.Response:
        shown = {"CustomID": reference} if call.query.get("ShowCustomID") == "true" else {"CustomID": ""}
        data = [{"ID": int(number), "Status": "sent"} | shown for number in message_ids]
        return json_answer(200, {"Count": len(data), "Data": data, "Total": len(data)})


def _error(call: Call, refusal: Refusal, recipients: Sequence[str]) -> dict[str, Any]:
    """Return an error: ugly, since it quotes whom the call was for and what it proved itself with."""
    status, code, message, related = _WORDS[refusal]
    credential = call.headers.get("Authorization")
    return {
        "ErrorIdentifier": uuid_of(code),
        "ErrorCode": code,
        "StatusCode": status,
        "ErrorMessage": message.format(address=", ".join(recipients), credential=credential),
        "ErrorRelatedTo": related,
    }


def _item(call: Call, result: Result) -> dict[str, Any]:
    if result.refusal is not None:
        return {"Status": "error", "Errors": [_error(call, result.refusal, result.incoming.recipients)]}
    number = result.message_id
    to = [
        {
            "Email": address,
            "MessageUUID": uuid_of(number),
            "MessageID": int(number),
            "MessageHref": f"https://api.mailjet.com/v3/REST/message/{number}",
        }
        for address in result.incoming.recipients
    ]
    return {"Status": "success", "CustomID": result.incoming.reference, "To": to, "Cc": [], "Bcc": []}


def _message(message: dict[str, Any]) -> Incoming:
    recipients = [to["Email"] for field in ("To", "Cc", "Bcc") for to in message.get(field) or []]
    headers = {name.lower(): value for name, value in (message.get("Headers") or {}).items()}
    custom_id = message.get("CustomID", "")
    refusal = spoiled_by(recipients, message["From"]["Email"])
    unreadable = not isinstance(message["Subject"], str) or not (
        message.get("TextPart") or message.get("HTMLPart")
    )
    if unreadable or len(custom_id) > MAX_CUSTOM_ID or headers.keys() & _FORBIDDEN:
        refusal = Refusal.MALFORMED
    return Incoming(
        key=headers.get("x-operation-key", ""),
        body=same_bytes(message),
        recipients=recipients,
        refusal=refusal,
        reference=custom_id,
    )

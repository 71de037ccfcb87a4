"""SendGrid (https://www.twilio.com/docs/sendgrid/api-reference), as far as a digest needs it.

Documented: the routes and fields; a bearer token; 202 with ``X-Message-Id`` and no body; {"errors":
[{"message", "field", "help"}]}; the headers that may not be set; at most 10 categories of 255
characters and 10,000 bytes of custom arguments; ``X-RateLimit-Reset`` in seconds since 1970.
``POST /v3/logs`` with a query, which answers without categories, and ``GET /v3/logs/{id}`` with all.

What the logs say of a message beyond its id is kept in memory: a restarted process has forgotten it.
Assumed: ``field`` as a path; a suppressed address is taken and dropped later, in an event; an id in the
logs begins with that of the answer, up to its first dot; the words of the messages.
"""

from __future__ import annotations

import json
import re
import time
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
)

MAX_CATEGORIES, MAX_CATEGORY, MAX_ARGUMENTS = 10, 255, 10_000

_FORBIDDEN = frozenset(
    {"x-sg-id", "x-sg-eid", "received", "dkim-signature", "content-type", "content-transfer-encoding",
     "to", "from", "subject", "reply-to", "cc", "bcc"}
)  # fmt: skip
_QUERY = re.compile(r"categories IN \('([^']*)'\)").fullmatch

_WORDS = {
    Refusal.RECIPIENT: (400, "personalizations.0.to.0.email", "Does not contain a valid address: {address}"),
    Refusal.MALFORMED: (400, None, "Bad Request"),
    Refusal.SENDER: (403, "from", "The from address does not match a verified Sender Identity."),
    Refusal.CREDENTIAL: (401, None, "The provided authorization grant is invalid: {credential}"),
    Refusal.THROTTLED: (429, None, "too many requests"),
    Refusal.UNAVAILABLE: (503, None, "service not available"),
    Refusal.ERROR: (500, None, "internal server error"),
    Refusal.NO_ROUTE: (404, None, "not found"),
}


class SendGrid(Emulation):
    """SendGrid's sending API and its logs."""

    name = "sendgrid"
    routes: ClassVar = {("POST", "/v3/mail/send"): Route.SEND, ("POST", "/v3/logs"): Route.LOOK_UP}
    settings: ClassVar = {"idempotency": "none"}

    def __init__(self) -> None:
        self._category_of: dict[str, str] = {}
        self._arguments_of: dict[str, dict[str, str]] = {}

    def route(self, call: Call) -> Route | None:
        if call.method == "GET" and call.path.startswith("/v3/logs/"):
            return Route.LOOK_UP
        return super().route(call)

    def knows(self, call: Call, credential: str) -> bool:
        return call.headers.get("Authorization") == f"Bearer {credential}"

    def read(self, call: Call) -> list[Incoming] | Refusal:
        try:
            body = json.loads(call.body)
            message = _message(body)
        except (ValueError, TypeError, KeyError, AttributeError):
            return Refusal.MALFORMED
        if message.reference:
            self._arguments_of[message.reference] = body.get("custom_args") or {}
        return [message]

    def answer(self, call: Call, results: Sequence[Result]) -> web.Response:
        (result,) = results
        if result.refusal is not None:
            return _refusal(call, result.refusal, result.incoming.recipients)
        return web.Response(status=202, headers={"X-Message-Id": result.message_id})

    def refuse(self, call: Call, refusal: Refusal) -> web.Response:
        return _refusal(call, refusal, ())

    def asked(self, call: Call) -> str:
        if call.method == "GET":
            return self._category_of.get(call.path.rpartition("/")[2], "")
        try:
            found = _QUERY(json.loads(call.body)["query"])
        except (ValueError, TypeError, KeyError):
            return ""
        return found[1] if found else ""

    def listed(self, call: Call, reference: str, message_ids: Sequence[str]) -> web.Response:
        ids = [_in_the_logs(message_id) for message_id in message_ids]
        if call.method == "GET":
            return self._details(call, reference, ids)
        self._category_of |= dict.fromkeys(ids, reference)
        return json_answer(200, {"messages": [_summary(number) for number in ids]})

    def _details(self, call: Call, reference: str, ids: Sequence[str]) -> web.Response:
        number = call.path.rpartition("/")[2]
        if number not in ids:
            return _refusal(call, Refusal.NO_ROUTE, ())
        arguments = self._arguments_of.get(reference, {})
        details = {"category": [reference], "custom_args": arguments, "events": []}
        return json_answer(200, _summary(number) | details)


def _in_the_logs(message_id: str) -> str:
    return f"{message_id}.recvd-85abf8d92c-3qfgp-2-7890E356-43C.1"


def _summary(number: str) -> dict[str, Any]:
    return {
        "from_email": "digest@sender.test",
        "sg_message_id": number,
        "subject": "Your week",
        "to_email": "hidden@example.test",
        "status": "processed",
        "sg_message_id_created_at": "2026-10-19T06:00:00Z",
    }


def _refusal(call: Call, refusal: Refusal, recipients: Sequence[str]) -> web.Response:
    """Return an error: ugly, since it quotes whom the call was for and what it proved itself with."""
    status, field, words = _WORDS[refusal]
    shown = words.format(address=", ".join(recipients), credential=call.headers.get("Authorization"))
    headers = {"X-RateLimit-Reset": str(int(time.time()) + 30)} if status == 429 else {}
    return json_answer(status, {"errors": [{"message": shown, "field": field, "help": None}]}, headers)


def _message(body: dict[str, Any]) -> Incoming:
    (personalization,) = body["personalizations"]
    recipients = [one["email"] for field in ("to", "cc", "bcc") for one in personalization.get(field) or []]
    headers = {name.lower(): value for name, value in (body.get("headers") or {}).items()}
    categories: list[str] = body.get("categories") or []
    refusal = spoiled_by(recipients, body["from"]["email"])
    if refusal is Refusal.SUPPRESSED:
        refusal = None
    kinds = [part["type"] for part in body["content"] if part["value"]]
    if kinds != sorted(kinds, reverse=True) or not kinds or not body["subject"]:
        refusal = Refusal.MALFORMED
    if headers.keys() & _FORBIDDEN or not _fits(categories, body.get("custom_args") or {}):
        refusal = Refusal.MALFORMED
    return Incoming(
        key=headers.get("x-operation-key", ""),
        body=same_bytes(body),
        recipients=recipients,
        refusal=refusal,
        reference=categories[0] if categories else "",
    )


def _fits(categories: Sequence[str], arguments: dict[str, str]) -> bool:
    short = all(len(category) <= MAX_CATEGORY and category.isascii() for category in categories)
    return short and len(categories) <= MAX_CATEGORIES and len(json.dumps(arguments)) <= MAX_ARGUMENTS

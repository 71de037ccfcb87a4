"""Resend (https://resend.com/docs/api-reference), as far as a digest needs it.

Documented: the routes and fields; ``Idempotency-Key`` of 1 to 256 characters, kept for 24 hours for
a whole call, with 409 ``invalid_idempotent_request`` and ``concurrent_idempotent_requests``; up to
100 messages in a batch; with ``x-batch-validation: permissive`` the valid ones are taken and the
others come back in ``errors`` with their ``index``; the error names and their statuses.

Assumed: ``data`` holds the messages that were taken in the order of the call; a suppressed address
is taken and fails later, in an event; the words of the messages; a repeat that the idempotency
refuses or replays does not count against the rate limit any less.
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

MAX_BATCH = 100
MAX_KEY = 256

_WORDS = {
    Refusal.RECIPIENT: (
        422,
        "validation_error",
        "Invalid `to` field: {address}. Use the `email@example.com` format.",
    ),
    Refusal.MALFORMED: (422, "missing_required_field", "Missing `subject` field."),
    Refusal.SENDER: (403, "validation_error", "The unverified.example domain is not verified."),
    Refusal.CREDENTIAL: (401, "validation_error", "API key is invalid: {credential}"),
    Refusal.THROTTLED: (429, "rate_limit_exceeded", "Too many requests."),
    Refusal.UNAVAILABLE: (503, "service_unavailable", "Try again later."),
    Refusal.ERROR: (500, "application_error", "An unexpected error occurred."),
    Refusal.IN_FLIGHT: (409, "concurrent_idempotent_requests", "The same key is in progress."),
    Refusal.MISMATCH: (409, "invalid_idempotent_request", "The same key was used with another payload."),
    Refusal.NO_ROUTE: (404, "not_found", "The requested endpoint does not exist."),
}


class Resend(Emulation):
    """Resend's sending API."""

    name = "resend"
    routes: ClassVar = {("POST", "/emails"): Route.SEND, ("POST", "/emails/batch"): Route.SEND}
    settings: ClassVar = {"look_up": False}

    def knows(self, call: Call, credential: str) -> bool:
        return call.headers.get("Authorization") == f"Bearer {credential}"

    def read(self, call: Call) -> list[Incoming] | Refusal:
        try:
            found = json.loads(call.body)
            messages = found if call.path.endswith("/batch") else [found]
            if not 1 <= len(messages) <= MAX_BATCH or len(self.idempotency_key(call) or "k") > MAX_KEY:
                return Refusal.MALFORMED
            return [_message(message) for message in messages]
        except (ValueError, TypeError, KeyError, AttributeError):
            return Refusal.MALFORMED

    def idempotency_key(self, call: Call) -> str | None:
        return call.headers.get("Idempotency-Key")

    def answer(self, call: Call, results: Sequence[Result]) -> web.Response:
        refused = [result for result in results if result.refusal is not None]
        if not call.path.endswith("/batch"):
            (result,) = results
            if result.refusal is not None:
                return _refusal(call, result.refusal, result.incoming)
            return json_answer(200, {"id": result.message_id})
        permissive = call.headers.get("x-batch-validation") == "permissive"
        if refused and not permissive:
            return _refusal(call, refused[0].refusal or Refusal.MALFORMED, refused[0].incoming)
        data = [{"id": result.message_id} for result in results if result.refusal is None]
        errors = [
            {"index": result.place, "message": _words(call, result.refusal, result.incoming)}
            for result in results
            if result.refusal is not None
        ]
        return json_answer(200, {"data": data, "errors": errors} if permissive else {"data": data})

    def refuse(self, call: Call, refusal: Refusal) -> web.Response:
        return _refusal(call, refusal)

    def message_id(self, serial: str) -> str:
        return uuid_of(serial)


def _refusal(call: Call, refusal: Refusal, about: Incoming | None = None) -> web.Response:
    status, name, _ = _WORDS[refusal]
    body = {"statusCode": status, "name": name, "message": _words(call, refusal, about)}
    return json_answer(status, body)


def _words(call: Call, refusal: Refusal, about: Incoming | None) -> str:
    """Return the message: ugly, since it quotes whom the call was for and what it proved itself with."""
    address = ", ".join(about.recipients) if about else ""
    return _WORDS[refusal][2].format(address=address, credential=call.headers.get("Authorization"))


def _message(message: dict[str, Any]) -> Incoming:
    recipients = [
        to.rpartition("<")[2].rstrip(">") for field in ("to", "cc", "bcc") for to in _list(message, field)
    ]
    refusal = spoiled_by(recipients, message["from"])
    if not isinstance(message.get("subject"), str) or not (message.get("html") or message.get("text")):
        refusal = Refusal.MALFORMED
    if refusal is Refusal.SUPPRESSED:
        refusal = None
    key = {name.lower(): value for name, value in (message.get("headers") or {}).items()}.get(
        "x-operation-key", ""
    )
    return Incoming(key, same_bytes(message), recipients, refusal)


def _list(message: dict[str, Any], field: str) -> list[str]:
    value = message.get(field) or []
    return [value] if isinstance(value, str) else list(value)

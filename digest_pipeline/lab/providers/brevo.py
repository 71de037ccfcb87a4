"""Brevo (https://developers.brevo.com/reference/sendtransacemail), as far as a digest needs it.

Documented: the routes and fields; the ``api-key`` header; 201 with a ``messageId``; {"code", "message"} and
the codes; ``headers.idempotencyKey``, a UUID, refused as ``duplicate_parameter`` for 15 minutes (another page
says 30); ``x-sib-ratelimit-reset`` in seconds. ``GET /v3/smtp/statistics/events`` with ``event``, ``tags`` and
``days`` (at most 90), whose events carry ``messageId`` and ``tag``.

Assumed: a report without events is {}; a suppressed address is taken and blocked later, in an event; the
words of the messages; ``duplicate_parameter`` comes with 400.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar
from uuid import UUID

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

MAX_DAYS = 90

_WORDS = {
    Refusal.RECIPIENT: (400, "invalid_parameter", "email is not valid in to: {address}"),
    Refusal.MALFORMED: (400, "missing_parameter", "subject is missing"),
    Refusal.SENDER: (
        400,
        "invalid_parameter",
        "Sending has been rejected because the sender you used news@unverified.example is not valid.",
    ),
    Refusal.CREDENTIAL: (401, "unauthorized", "Key not found: {credential}"),
    Refusal.THROTTLED: (429, "too_many_requests", "Rate limit exceeded."),
    Refusal.UNAVAILABLE: (503, "service_unavailable", "Try again later."),
    Refusal.ERROR: (500, "internal_error", "Internal server error"),
    Refusal.DUPLICATE: (400, "duplicate_parameter", "idempotencyKey is already in use"),
    Refusal.NO_ROUTE: (404, "document_not_found", "Route not found"),
}


class Brevo(Emulation):
    """Brevo's API for transactional messages, and its report of events."""

    name = "brevo"
    routes: ClassVar = {
        ("POST", "/v3/smtp/email"): Route.SEND,
        ("GET", "/v3/smtp/statistics/events"): Route.LOOK_UP,
    }
    settings: ClassVar = {"idempotency": "refuses", "key_lifetime": 15 * 60.0}

    def knows(self, call: Call, credential: str) -> bool:
        return call.headers.get("api-key") == credential

    def read(self, call: Call) -> list[Incoming] | Refusal:
        try:
            return [_message(json.loads(call.body))]
        except (ValueError, TypeError, KeyError, AttributeError):
            return Refusal.MALFORMED

    def idempotency_key(self, call: Call) -> str | None:
        found = _headers(json.loads(call.body)).get("idempotencykey")
        return None if found is None else str(UUID(found))

    def answer(self, call: Call, results: Sequence[Result]) -> web.Response:
        (result,) = results
        if result.refusal is not None:
            return _refusal(call, result.refusal, result.incoming.recipients)
        return json_answer(201, {"messageId": result.message_id})

    def refuse(self, call: Call, refusal: Refusal) -> web.Response:
        return _refusal(call, refusal, ())

    def message_id(self, serial: str) -> str:
        return f"<202610190600.{serial}@smtp-relay.mailin.test>"

    def asked(self, call: Call) -> str:
        try:
            (tag,) = json.loads(call.query["tags"])
            fits = call.query["event"] == "requests" and 1 <= int(call.query["days"]) <= MAX_DAYS
        except (ValueError, TypeError, KeyError):
            return ""
        return str(tag) if fits else ""

    def listed(self, call: Call, reference: str, message_ids: Sequence[str]) -> web.Response:
        events = [_event(reference, message_id) for message_id in message_ids]
        return json_answer(200, {"events": events} if events else {})


def _event(tag: str, message_id: str) -> dict[str, Any]:
    return {
        "email": "hidden@example.test",
        "date": "2026-10-19T06:00:00.000Z",
        "messageId": message_id,
        "event": "requests",
        "subject": "Your week",
        "tag": tag,
        "from": "digest@sender.test",
    }


def _refusal(call: Call, refusal: Refusal, recipients: Sequence[str]) -> web.Response:
    """Return an error: ugly, since it quotes whom the call was for and what it proved itself with."""
    status, code, words = _WORDS[refusal]
    shown = words.format(address=", ".join(recipients), credential=call.headers.get("api-key"))
    headers = {"x-sib-ratelimit-reset": "30"} if status == 429 else {}
    return json_answer(status, {"code": code, "message": shown}, headers)


def _message(body: dict[str, Any]) -> Incoming:
    recipients = [one["email"] for field in ("to", "cc", "bcc") for one in body.get(field) or []]
    headers, tags = _headers(body), body.get("tags") or [""]
    refusal = spoiled_by(recipients, body["sender"]["email"])
    if refusal is Refusal.SUPPRESSED:
        refusal = None
    UUID(headers.get("idempotencykey", str(UUID(int=0))))
    if not body["subject"] or not body.get("htmlContent") or not all(isinstance(tag, str) for tag in tags):
        refusal = Refusal.MALFORMED
    return Incoming(headers.get("x-operation-key", ""), same_bytes(body), recipients, refusal, tags[0])


def _headers(body: dict[str, Any]) -> dict[str, str]:
    return {name.lower(): value for name, value in (body.get("headers") or {}).items()}

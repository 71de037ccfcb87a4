"""Mailgun (https://documentation.mailgun.com/docs/mailgun/api-reference), as far as a digest needs it.

Documented: ``POST /v3/{domain}/messages.mime`` as multipart/form-data with ``to``, ``message`` and options;
basic authentication as ``api``; {"id", "message"}; the texts about a bad address and about a limit; options
of at most 16 KB together; one bad address refuses the call. ``POST /v1/analytics/logs`` with a filter, whose
items carry ``tags``, ``user-variables`` as a text, and the message-id without brackets; a wrong path is
answered by the "Magnificent API" (seen in client libraries), and so is a filter called ``tag``.

Assumed: tags of at most 128 ASCII characters; a suppressed address is taken and fails later, in an event;
the id of the answer is Mailgun's own, whatever the message's Message-ID.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
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
)
from digest_pipeline.lab.providers.raw_mail import read_mail

MAX_OPTIONS, MAX_TAG = 16 * 1024, 128

_SEND = re.compile(r"/v3/(?P<domain>[a-z0-9.-]+)/messages\.mime").fullmatch
_NAME = re.compile(rb'\bname="([^"]*)"').search

_WORDS = {
    Refusal.RECIPIENT: (400, "'to' parameter is not a valid address. please check documentation: {address}"),
    Refusal.MALFORMED: (400, "Need at least one of 'text', 'html', 'amp-html' or 'template' parameters specified"),
    Refusal.SENDER: (403, "Domain unverified.example is not allowed to send: it is not verified."),
    Refusal.CREDENTIAL: (401, "Forbidden: {credential}"),
    Refusal.THROTTLED: (
        429,
        "Domain sender.test is not allowed to send: account-requests-per-sec limit exceeded, "
        "try again after 120 seconds",
    ),
    Refusal.UNAVAILABLE: (503, "Service Unavailable"),
    Refusal.ERROR: (500, "Internal Server Error"),
    Refusal.NO_ROUTE: (200, "Mailgun Magnificent API"),
}  # fmt: skip


class Mailgun(Emulation):
    """Mailgun's sending API for whole messages, and its logs."""

    name = "mailgun"
    routes: ClassVar = {("POST", "/v1/analytics/logs"): Route.LOOK_UP}
    settings: ClassVar = {"idempotency": "none"}

    def route(self, call: Call) -> Route | None:
        if call.method == "POST" and _SEND(call.path):
            return Route.SEND
        return super().route(call)

    def knows(self, call: Call, credential: str) -> bool:
        pair = base64.b64encode(f"api:{credential}".encode()).decode()
        return call.headers.get("Authorization") == f"Basic {pair}"

    def read(self, call: Call) -> list[Incoming] | Refusal:
        try:
            return [_message(call, _fields(call))]
        except (ValueError, KeyError, IndexError):
            return Refusal.MALFORMED

    def answer(self, call: Call, results: Sequence[Result]) -> web.Response:
        (result,) = results
        if result.refusal is not None:
            return _refusal(call, result.refusal, result.incoming.recipients)
        return json_answer(200, {"id": result.message_id, "message": "Queued. Thank you."})

    def refuse(self, call: Call, refusal: Refusal) -> web.Response:
        return _refusal(call, refusal, ())

    def message_id(self, serial: str) -> str:
        return f"<{serial}@mg.sender.test>"

    def asked(self, call: Call) -> str:
        try:
            conditions = json.loads(call.body)["filter"]["AND"]
            return str(next(one["values"][0]["value"] for one in conditions if one["attribute"] == "tag"))
        except (ValueError, TypeError, KeyError, IndexError, StopIteration):
            return ""

    def listed(self, call: Call, reference: str, message_ids: Sequence[str]) -> web.Response:
        items = [_item(reference, message_id, place) for place, message_id in enumerate(message_ids)]
        paging = {"previous": "", "next": "", "first": "", "last": "", "total": len(items)}
        return json_answer(200, {"items": items, "pagination": paging, "aggregates": {}})


def _item(tag: str, message_id: str, place: int) -> dict[str, Any]:
    return {
        "id": f"JDhSWf9mT5OFxCkZfpDU{place:02d}",
        "event": "accepted",
        "@timestamp": "2026-10-19T06:00:00.000Z",
        "domain": {"name": "mg.sender.test"},
        "tags": [tag],
        "user-variables": "{}",
        "message": {"headers": {"message-id": message_id.strip("<>"), "subject": "Your week"}},
    }


def _refusal(call: Call, refusal: Refusal, recipients: Sequence[str]) -> web.Response:
    """Return an error: ugly, since it quotes whom the call was for and what it proved itself with."""
    status, words = _WORDS[refusal]
    shown = words.format(address=", ".join(recipients), credential=call.headers.get("Authorization"))
    if refusal is Refusal.CREDENTIAL or refusal is Refusal.NO_ROUTE:
        return web.Response(status=status, text=shown)
    return json_answer(status, {"message": shown})


def _fields(call: Call) -> Mapping[str, list[bytes]]:
    """Return the parts of a form by name: between its boundaries, behind their heads."""
    kind, _, boundary = call.headers.get("Content-Type", "").partition("boundary=")
    if not kind.startswith("multipart/form-data") or not boundary:
        raise ValueError("not a form")
    mark = b"--" + boundary.strip('"').encode()
    if not call.body.startswith(mark):
        raise ValueError("not a form")
    found: dict[str, list[bytes]] = {}
    for part in (b"\r\n" + call.body).split(b"\r\n" + mark)[1:-1]:
        head, separator, content = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        name = _NAME(head)
        if name is None or not separator:
            raise ValueError("a part without a name")
        found.setdefault(name[1].decode(), []).append(content)
    return found


def _message(call: Call, fields: Mapping[str, list[bytes]]) -> Incoming:
    (content,) = fields["message"]
    envelope = [one.strip() for field in fields["to"] for one in field.decode().split(",")]
    mail = read_mail(content, envelope)
    refusal = None if mail.refusal is Refusal.SUPPRESSED else mail.refusal
    tags = [tag.decode() for tag in fields.get("o:tag", [])]
    options = [value for name, values in fields.items() if name[1:2] == ":" for value in values]
    if sum(map(len, options)) > MAX_OPTIONS or any(len(tag) > MAX_TAG or not tag.isascii() for tag in tags):
        refusal = Refusal.MALFORMED
    return Incoming(mail.key, content, mail.recipients, refusal, tags[0] if tags else "")

"""The gateway to Brevo (https://developers.brevo.com/reference/sendtransacemail).

Documented: ``headers.idempotencyKey``, a UUID, under which a message is taken once within 15 minutes
(another page says 30) and refused after that; ``X-Mailin-custom`` and tags, which come back in events;
names of headers in ``This-Case-Only``. ``GET /v3/smtp/statistics/events`` lists events by tags, 30 days
back unless asked for more and 90 at most; ``GET /v3/smtp/emails`` asks by their ids and by address only.

Assumed: any UUID will do, so the key's hash in the form of one does; ``tags`` of a report is a JSON array;
a message's ``requests`` event shows within ten minutes and names its tag; local parts outside ASCII are
not carried; Date and Message-ID are Brevo's own and are not sent. Seen in django-anymail: a name that has
letters outside ASCII and a comma is dropped by Brevo, and headers outside ASCII are sent as they are (ours
are ASCII).
"""

from __future__ import annotations

import hashlib
import json
import math
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from digest_pipeline.content.mailbox import parse_mailbox
from digest_pipeline.gateways.base import Capabilities, Envelope, Idempotency
from digest_pipeline.gateways.brevo_answers import look_up_result, verdict
from digest_pipeline.gateways.http import Answer
from digest_pipeline.gateways.json_api import JsonApi, carried, header, serialise
from digest_pipeline.gateways.kinds import LIMIT_SETTINGS, Kind, Settings, http_limits, required
from digest_pipeline.gateways.references import digest_reference
from digest_pipeline.outcomes import LookUp, LookUpFailed, Outcome

URL = "https://api.brevo.com"
_MOST_COPIES = 50
_MOST_DAYS = 90

CAPABILITIES = Capabilities(
    idempotency=Idempotency.REFUSES,
    key_lifetime=timedelta(minutes=15),
    look_up=True,
    visibility_delay=timedelta(minutes=10),
    look_up_retention=timedelta(days=30),
    delivered_proof=True,
    events=True,
    smtputf8=False,
)

_OWN_HEADERS = frozenset({"date", "message-id", "reply-to", "sender.ip", "idempotencykey", "x-mailin-custom"})


class BrevoGateway(JsonApi):
    """Sends through one Brevo API key."""

    name = "brevo"

    async def send(self, envelope: Envelope) -> Outcome:
        """Offer one message, once."""
        if refused := self.unsendable(envelope):
            return refused
        body = message_body(envelope)
        keyed = self.capabilities.idempotency is not Idempotency.NONE
        if keyed:
            body["headers"]["idempotencyKey"] = idempotency_key(envelope.operation_key)
        answer = await self.call("POST", "/v3/smtp/email", serialise(body), self._headers())
        if not isinstance(answer, Answer):
            return answer
        return verdict(answer, self._now(), self.hide(envelope), keyed=keyed)

    async def look_up(self, operation_key: str) -> LookUp:
        """Ask for the messages that were requested with the key's tag."""
        assert self.capabilities.look_up_retention is not None
        value = digest_reference(operation_key)
        days = math.ceil(self.capabilities.look_up_retention / timedelta(days=1))
        query = {
            "days": min(days, _MOST_DAYS),
            "event": "requests",
            "limit": _MOST_COPIES,
            "tags": json.dumps([value]),
        }
        target = f"/v3/smtp/statistics/events?{urlencode(query)}"
        answer = await self.call("GET", target, None, self._headers())
        if not isinstance(answer, Answer):
            return LookUpFailed(answer.detail)
        return look_up_result(answer, value, self._now())

    def _headers(self) -> dict[str, str]:
        return {
            "api-key": self._secrets[0],
            "Accept": "application/json",
            "Content-Type": "application/json",
        }


def idempotency_key(operation_key: str) -> str:
    """Return the UUID of a key: always the same, and no other key's."""
    return str(UUID(bytes=hashlib.sha256(operation_key.encode("utf-8")).digest()[:16], version=4))


def message_body(envelope: Envelope) -> dict[str, Any]:
    """Return one message as the API takes it, to exactly one recipient."""
    message = envelope.message
    to = {"email": envelope.recipient}
    headers = carried(envelope, _OWN_HEADERS)
    body = {
        "sender": _mailbox(message.sender, "From"),
        "to": [to | {"name": message.to_name} if message.to_name else to],
        "subject": message.subject,
        "textContent": message.text,
        "htmlContent": message.html,
        "headers": headers | {"X-Mailin-custom": envelope.operation_key},
        "tags": [digest_reference(envelope.operation_key)],
    }
    if reply_to := header(envelope, "Reply-To"):
        body["replyTo"] = _mailbox(reply_to, "Reply-To")
    return body


def _mailbox(text: str, field: str) -> dict[str, str]:
    mailbox = parse_mailbox(text, field)
    return {"email": mailbox.address, "name": mailbox.name} if mailbox.name else {"email": mailbox.address}


def _create(settings: Settings, capabilities: Capabilities) -> BrevoGateway:
    api_key = required("brevo", settings, "api_key")
    return BrevoGateway(settings.get("url", URL), [api_key], capabilities, http_limits(settings))


KIND = Kind(
    summary="Brevo: a key is refused for 15 minutes once it was used; can be asked by tag for 30 days",
    capabilities=CAPABILITIES,
    settings={
        "api_key": "of the API, not the SMTP key",
        "url": f"base URL; {URL} unless given",
        **LIMIT_SETTINGS,
    },
    factory=_create,
    secrets=frozenset({"api_key"}),
)

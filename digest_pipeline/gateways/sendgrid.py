"""The gateway to SendGrid (https://www.twilio.com/docs/sendgrid/api-reference/mail-send/mail-send).

Documented: ``POST /v3/mail/send`` answers 202, an ``X-Message-Id`` and no body; ``custom_args``, which
come back in events; the headers that may not be set; no idempotency keys. ``POST /v3/logs`` lists the
messages of a category for 30 days, and ``GET /v3/logs/{id}`` shows the custom arguments of one.

Look-ups are off unless asked for (``look_up: true`` with ``visibility_delay`` and
``look_up_retention``). A category for each message is what they need, and SendGrid says that categories
are for groups and that it stores the statistics of 1,000 a day; what its logs do beyond that it does not
say, and an absence that is none would be a second mail. The category is sent only where they are on.

Assumed: local parts outside ASCII are not carried; 200 is for its own sandbox mode, which is not used.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from digest_pipeline.content.mailbox import parse_mailbox
from digest_pipeline.gateways.base import Capabilities, Envelope
from digest_pipeline.gateways.http import Answer
from digest_pipeline.gateways.json_api import JsonApi, carried, header, serialise
from digest_pipeline.gateways.kinds import LIMIT_SETTINGS, Kind, Settings, http_limits, required
from digest_pipeline.gateways.references import digest_reference
from digest_pipeline.gateways.sendgrid_answers import KEY_ARG, is_ours, listed, verdict
from digest_pipeline.outcomes import Absent, Found, LookUp, LookUpFailed, Outcome

URL = "https://api.sendgrid.com"
_MOST_COPIES = 5

CAPABILITIES = Capabilities(delivered_proof=True, events=True, smtputf8=False)

_FORBIDDEN_HEADERS = frozenset(
    {
        "x-sg-id", "x-sg-eid", "received", "dkim-signature", "content-type", "content-transfer-encoding",
        "to", "from", "subject", "reply-to", "cc", "bcc",
    }
)  # fmt: skip


class SendGridGateway(JsonApi):
    """Sends through one SendGrid API key."""

    name = "sendgrid"

    async def send(self, envelope: Envelope) -> Outcome:
        """Offer one message, once."""
        if refused := self.unsendable(envelope):
            return refused
        body = message_body(envelope)
        if self.capabilities.look_up:
            body["categories"] = [digest_reference(envelope.operation_key)]
        answer = await self.call("POST", "/v3/mail/send", serialise(body), self._headers())
        if not isinstance(answer, Answer):
            return answer
        return verdict(answer, self._now(), self.hide(envelope))

    async def look_up(self, operation_key: str) -> LookUp:
        """Ask for the messages of the key's category, and each of them for its custom arguments.

        A hit counts only with the key in these: a list of anything else must not pass for ours.
        """
        query = f"categories IN ('{digest_reference(operation_key)}')"
        body = serialise({"query": query, "limit": _MOST_COPIES})
        answer = await self.call("POST", "/v3/logs", body, self._headers())
        if not isinstance(answer, Answer):
            return LookUpFailed(answer.detail)
        ids = listed(answer, self._now())
        if isinstance(ids, LookUpFailed):
            return ids
        for message_id in ids:
            target = f"/v3/logs/{quote(message_id, safe='')}"
            detail = await self.call("GET", target, None, self._headers())
            if not isinstance(detail, Answer) or not is_ours(detail, operation_key):
                return LookUpFailed("the logs answered about something else, or not at all")
        # The API's answer to a send has the first part of an id in the logs.
        return Found(ids[0].partition(".")[0], copies=len(ids)) if ids else Absent()

    def _headers(self) -> dict[str, str]:
        return {
            "Authorization": f"Bearer {self._secrets[0]}",
            "Accept": "application/json",
            "Content-Type": "application/json",
        }


def message_body(envelope: Envelope) -> dict[str, Any]:
    """Return one message as the API takes it, to exactly one recipient."""
    message = envelope.message
    to = {"email": envelope.recipient}
    body = {
        "personalizations": [{"to": [to | {"name": message.to_name} if message.to_name else to]}],
        "from": _mailbox(message.sender, "From"),
        "subject": message.subject,
        "content": [
            {"type": "text/plain", "value": message.text},
            {"type": "text/html", "value": message.html},
        ],
        "headers": carried(envelope, _FORBIDDEN_HEADERS),
        "custom_args": {KEY_ARG: envelope.operation_key},
    }
    if reply_to := header(envelope, "Reply-To"):
        body["reply_to"] = _mailbox(reply_to, "Reply-To")
    return body


def _mailbox(text: str, field: str) -> dict[str, str]:
    mailbox = parse_mailbox(text, field)
    return {"email": mailbox.address, "name": mailbox.name} if mailbox.name else {"email": mailbox.address}


def _create(settings: Settings, capabilities: Capabilities) -> SendGridGateway:
    api_key = required("sendgrid", settings, "api_key")
    return SendGridGateway(settings.get("url", URL), [api_key], capabilities, http_limits(settings))


KIND = Kind(
    summary="SendGrid: no idempotency keys; look-ups by category only where asked for",
    capabilities=CAPABILITIES,
    settings={
        "api_key": "with Mail Send access; Email Logs too for look-ups",
        "url": f"base URL; {URL} unless given, https://api.eu.sendgrid.com for the EU",
        **LIMIT_SETTINGS,
    },
    factory=_create,
    secrets=frozenset({"api_key"}),
)

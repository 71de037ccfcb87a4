"""The gateway to Mailjet's Send API v3.1 (https://dev.mailjet.com/email/guides/send-api-v31).

Documented: up to 50 messages in a call, each with a ``Status`` of its own, in the order of the call
and with the ``CustomID`` of those that were taken; no idempotency keys; ``GET /v3/REST/message`` by
``CustomID``; the headers that may not be set, which are left out here (List-Id, Date and Message-ID
among them). Assumed: a CustomID of 128 characters fits; a message can be asked for after five minutes
and for 30 days; local parts outside ASCII are not carried.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from digest_pipeline.content.mailbox import parse_mailbox
from digest_pipeline.gateways.base import BatchRefused, Capabilities, Envelope
from digest_pipeline.gateways.http import Answer
from digest_pipeline.gateways.json_api import BatchJsonApi, carried, header, serialise
from digest_pipeline.gateways.kinds import LIMIT_SETTINGS, Kind, Settings, http_limits, required
from digest_pipeline.gateways.mailjet_answers import look_up_result, verdicts
from digest_pipeline.gateways.references import reference
from digest_pipeline.outcomes import LookUp, LookUpFailed, Outcome

URL = "https://api.mailjet.com"
MAX_CUSTOM_ID = 128

CAPABILITIES = Capabilities(
    look_up=True,
    visibility_delay=timedelta(minutes=5),
    look_up_retention=timedelta(days=30),
    batch_size=50,
    delivered_proof=True,
    events=True,
    smtputf8=False,
)

_FORBIDDEN_HEADERS = frozenset(
    {
        "from", "sender", "subject", "to", "cc", "bcc", "return-path", "delivered-to", "dkim-signature",
        "domainkey-status", "received-spf", "authentication-results", "received", "x-mailjet-prio",
        "x-mailjet-debug", "user-agent", "x-mailer", "x-mj-customid", "x-mj-eventpayload", "x-mj-vars",
        "x-mj-templateerrordeliver", "x-mj-templateerrorreporting", "x-mj-templatelanguage",
        "x-mailjet-trackopen", "x-mailjet-trackclick", "x-mj-templateid", "x-mj-workflowid",
        "x-feedback-id", "x-mailjet-segmentation", "list-id", "x-mj-mid", "x-mj-errormessage", "date",
        "x-csa-complaints", "message-id", "x-mailjet-campaign", "x-mj-statisticscontactslistid",
        # A property of the message carries it.
        "reply-to",
    }
)  # fmt: skip


class MailjetGateway(BatchJsonApi):
    """Sends through one Mailjet API key and its secret."""

    name = "mailjet"

    async def send(self, envelope: Envelope) -> Outcome:
        """Offer one message, once."""
        if refused := self.unsendable(envelope):
            return refused
        found = await self.send_all([envelope], None)
        return found.alone if isinstance(found, BatchRefused) else found[0]

    async def send_all(
        self, envelopes: Sequence[Envelope], batch_key: str | None
    ) -> list[Outcome] | BatchRefused:
        """Offer up to 50 messages in one call."""
        body = serialise({"Messages": [message_body(envelope) for envelope in envelopes]})
        answer = await self.call("POST", "/v3.1/send", body, self._headers())
        if not isinstance(answer, Answer):
            return [answer] * len(envelopes)
        names = [_custom_id(envelope.operation_key) for envelope in envelopes]
        return verdicts(answer, names, self._now(), self.hide(*envelopes))

    async def look_up(self, operation_key: str) -> LookUp:
        """Ask whether a message has the key as its CustomID."""
        value = _custom_id(operation_key)
        query = urlencode({"CustomID": value, "ShowCustomID": "true"})
        answer = await self.call("GET", f"/v3/REST/message?{query}", None, self._headers())
        if not isinstance(answer, Answer):
            return LookUpFailed(answer.detail)
        return look_up_result(answer, value, self._now())

    def _headers(self) -> dict[str, str]:
        pair = base64.b64encode(":".join(self._secrets).encode("utf-8")).decode("ascii")
        return {"Authorization": f"Basic {pair}", "Content-Type": "application/json"}


def _custom_id(operation_key: str) -> str:
    return reference(operation_key, MAX_CUSTOM_ID)


def message_body(envelope: Envelope) -> dict[str, Any]:
    """Return one message as the API takes it, to exactly one recipient."""
    message = envelope.message
    to = {"Email": envelope.recipient}
    body = {
        "From": _mailbox(message.sender, "From"),
        "To": [to | {"Name": message.to_name} if message.to_name else to],
        "Subject": message.subject,
        "TextPart": message.text,
        "HTMLPart": message.html,
        "CustomID": _custom_id(envelope.operation_key),
        "Headers": carried(envelope, _FORBIDDEN_HEADERS),
    }
    if reply_to := header(envelope, "Reply-To"):
        body["ReplyTo"] = _mailbox(reply_to, "Reply-To")
    return body


def _mailbox(text: str, field: str) -> dict[str, str]:
    mailbox = parse_mailbox(text, field)
    return {"Email": mailbox.address, "Name": mailbox.name} if mailbox.name else {"Email": mailbox.address}


def _create(settings: Settings, capabilities: Capabilities) -> MailjetGateway:
    pair = [required("mailjet", settings, name) for name in ("api_key", "secret_key")]
    return MailjetGateway(settings.get("url", URL), pair, capabilities, http_limits(settings))


KIND = Kind(
    summary="Mailjet: no idempotency keys, can be asked by key for 30 days; batches of 50",
    capabilities=CAPABILITIES,
    settings={
        "api_key": "the public part of the credential",
        "secret_key": "its private part",
        "url": f"base URL; {URL} unless given",
        **LIMIT_SETTINGS,
    },
    factory=_create,
    secrets=frozenset({"api_key", "secret_key"}),
)

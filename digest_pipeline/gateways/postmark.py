"""The gateway to Postmark (https://postmarkapp.com/developer/api).

Documented: one message or up to 500 (50 MB) in a call, each answered for itself and in the order of
the call; no idempotency keys; a search of sent messages by one metadata field, 45 days back unless
the account keeps them longer; mailboxes in ASCII only. Assumed: metadata names of at most 20 and
values of at most 80 characters; a search shows a message within five minutes; Date and Message-ID are
Postmark's own and are not sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from digest_pipeline.content.mailbox import quoted
from digest_pipeline.gateways.base import BatchRefused, Capabilities, Envelope
from digest_pipeline.gateways.http import Answer
from digest_pipeline.gateways.json_api import BatchJsonApi, carried, header, serialise, whole_call
from digest_pipeline.gateways.kinds import LIMIT_SETTINGS, Kind, Settings, http_limits, required
from digest_pipeline.gateways.postmark_answers import batch_verdicts, look_up_result, verdict
from digest_pipeline.gateways.references import reference
from digest_pipeline.outcomes import LookUp, LookUpFailed, Outcome

URL = "https://api.postmarkapp.com"
STREAM = "broadcast"
KEY_FIELD = "operation_key"
MAX_METADATA_VALUE = 80
_MOST_COPIES = 50

CAPABILITIES = Capabilities(
    look_up=True,
    visibility_delay=timedelta(minutes=5),
    look_up_retention=timedelta(days=45),
    batch_size=500,
    delivered_proof=True,
    events=True,
    smtputf8=False,
)

_OWN_HEADERS = frozenset({"date", "message-id", "reply-to"})


class PostmarkGateway(BatchJsonApi):
    """Sends through one Postmark server, in one of its message streams."""

    name = "postmark"
    stream = STREAM

    async def send(self, envelope: Envelope) -> Outcome:
        """Offer one message, once."""
        if refused := self.unsendable(envelope):
            return refused
        answer = await self.call(
            "POST", "/email", serialise(message_body(envelope, self.stream)), self._headers()
        )
        if not isinstance(answer, Answer):
            return answer
        return verdict(answer, self._now(), self.hide(envelope))

    async def send_all(
        self, envelopes: Sequence[Envelope], batch_key: str | None
    ) -> list[Outcome] | BatchRefused:
        """Offer up to 500 messages in one call."""
        body = serialise([message_body(envelope, self.stream) for envelope in envelopes])
        answer = await self.call("POST", "/email/batch", body, self._headers())
        if not isinstance(answer, Answer):
            return [answer] * len(envelopes)
        hide = self.hide(*envelopes)
        if answer.status != 200:
            return whole_call(verdict(answer, self._now(), hide), len(envelopes))
        return batch_verdicts(answer, [envelope.recipient for envelope in envelopes], hide)

    async def look_up(self, operation_key: str) -> LookUp:
        """Ask whether a message carries the key, in the stream that this gateway sends through."""
        value = reference(operation_key, MAX_METADATA_VALUE)
        query = {
            "count": _MOST_COPIES,
            "offset": 0,
            "messagestream": self.stream,
            f"metadata_{KEY_FIELD}": value,
        }
        answer = await self.call("GET", f"/messages/outbound?{urlencode(query)}", None, self._headers())
        if not isinstance(answer, Answer):
            return LookUpFailed(answer.detail)
        return look_up_result(answer, KEY_FIELD, value, self._now())

    def _headers(self) -> dict[str, str]:
        return {
            "X-Postmark-Server-Token": self._secrets[0],
            "Accept": "application/json",
            "Content-Type": "application/json",
        }


def message_body(envelope: Envelope, stream: str) -> dict[str, Any]:
    """Return one message as the API takes it, to exactly one recipient."""
    message = envelope.message
    name = message.to_name
    headers = carried(envelope, _OWN_HEADERS)
    body = {
        "From": message.sender,
        "To": f"{quoted(name)} <{envelope.recipient}>" if name else envelope.recipient,
        "Subject": message.subject,
        "TextBody": message.text,
        "HtmlBody": message.html,
        "MessageStream": stream,
        "Metadata": {KEY_FIELD: reference(envelope.operation_key, MAX_METADATA_VALUE)},
        "Headers": [{"Name": name, "Value": value} for name, value in headers.items()],
    }
    if reply_to := header(envelope, "Reply-To"):
        body["ReplyTo"] = reply_to
    return body


def _create(settings: Settings, capabilities: Capabilities) -> PostmarkGateway:
    token = required("postmark", settings, "server_token")
    made = PostmarkGateway(settings.get("url", URL), [token], capabilities, http_limits(settings))
    made.stream = settings.get("message_stream", STREAM)
    return made


KIND = Kind(
    summary="Postmark: no idempotency keys, can be asked by key for 45 days; batches of 500",
    capabilities=CAPABILITIES,
    settings={
        "server_token": "of the server that sends",
        "message_stream": f"id of the message stream; {STREAM} unless given",
        "url": f"base URL; {URL} unless given",
        **LIMIT_SETTINGS,
    },
    factory=_create,
    secrets=frozenset({"server_token"}),
)

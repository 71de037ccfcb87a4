"""The gateway to Resend (https://resend.com/docs/api-reference).

Documented: ``Idempotency-Key`` of at most 256 characters, remembered for 24 hours, for one message and
for a whole batch, which repeats the first answer; batches of 100, validated one by one with
``x-batch-validation: permissive``. Assumed: ``data`` of a batch answer keeps the order of the call;
local parts outside ASCII are not carried; Date and Message-ID are Resend's own and are not sent.

There is no look-up by our key. The key goes into a tag for the events, encoded, since tags hold
``A-Za-z0-9_-`` only, and into the ``X-Operation-Key`` header.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from digest_pipeline.content.mailbox import quoted
from digest_pipeline.gateways.base import BatchKey, BatchRefused, Capabilities, Envelope, Idempotency
from digest_pipeline.gateways.http import Answer
from digest_pipeline.gateways.json_api import BatchJsonApi, carried, header, serialise, whole_call
from digest_pipeline.gateways.kinds import LIMIT_SETTINGS, Kind, Settings, http_limits, required
from digest_pipeline.gateways.references import tag
from digest_pipeline.gateways.resend_answers import batch_verdicts, verdict
from digest_pipeline.outcomes import LookUp, LookUpFailed, Outcome

URL = "https://api.resend.com"
KEY_TAG = "operation_key"
MAX_TAG = 256

CAPABILITIES = Capabilities(
    idempotency=Idempotency.REPLAYS,
    key_lifetime=timedelta(hours=24),
    batch_size=100,
    batch_key=BatchKey.PER_BATCH,
    delivered_proof=True,
    events=True,
    smtputf8=False,
)

_OWN_HEADERS = frozenset({"date", "message-id", "reply-to"})


class ResendGateway(BatchJsonApi):
    """Sends through one Resend API key."""

    name = "resend"

    async def send(self, envelope: Envelope) -> Outcome:
        """Offer one message, once."""
        if refused := self.unsendable(envelope):
            return refused
        answer = await self.call(
            "POST", "/emails", serialise(message_body(envelope)), self._headers(envelope.operation_key)
        )
        if not isinstance(answer, Answer):
            return answer
        return verdict(answer, self._now(), self.hide(envelope))

    async def send_all(
        self, envelopes: Sequence[Envelope], batch_key: str | None
    ) -> list[Outcome] | BatchRefused:
        """Offer up to 100 messages in one call, under one key for all of them."""
        headers = self._headers(batch_key) | {"x-batch-validation": "permissive"}
        body = serialise([message_body(envelope) for envelope in envelopes])
        answer = await self.call("POST", "/emails/batch", body, headers)
        if not isinstance(answer, Answer):
            return [answer] * len(envelopes)
        hide = self.hide(*envelopes)
        if answer.status != 200:
            return whole_call(verdict(answer, self._now(), hide), len(envelopes))
        return batch_verdicts(answer, len(envelopes), hide)

    async def look_up(self, operation_key: str) -> LookUp:
        """Resend can't be asked by a key of ours."""
        return LookUpFailed("Resend can't be asked by operation key")

    def _headers(self, key: str | None) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self._secrets[0]}", "Content-Type": "application/json"}
        if key is not None and self.capabilities.idempotency is not Idempotency.NONE:
            headers["Idempotency-Key"] = key
        return headers


def message_body(envelope: Envelope) -> dict[str, Any]:
    """Return one message as the API takes it, to exactly one recipient."""
    message = envelope.message
    name = message.to_name
    body = {
        "from": message.sender,
        "to": [f"{quoted(name)} <{envelope.recipient}>" if name else envelope.recipient],
        "subject": message.subject,
        "text": message.text,
        "html": message.html,
        "headers": carried(envelope, _OWN_HEADERS),
        "tags": [{"name": KEY_TAG, "value": tag(envelope.operation_key, MAX_TAG)}],
    }
    if reply_to := header(envelope, "Reply-To"):
        body["reply_to"] = [reply_to]
    return body


def _create(settings: Settings, capabilities: Capabilities) -> ResendGateway:
    api_key = required("resend", settings, "api_key")
    return ResendGateway(settings.get("url", URL), [api_key], capabilities, http_limits(settings))


KIND = Kind(
    summary="Resend: a key repeats its answer for 24 hours; batches of 100",
    capabilities=CAPABILITIES,
    settings={
        "api_key": "with sending access",
        "url": f"base URL; {URL} unless given",
        **LIMIT_SETTINGS,
    },
    factory=_create,
    secrets=frozenset({"api_key"}),
)

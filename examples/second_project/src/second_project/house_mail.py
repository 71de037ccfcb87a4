"""The gateway to the house's own mail service: a small HTTP API that takes one message and answers 202.

Its handbook says: one message in a call; ``{"id"}`` with 202 when it is taken; 422 with a ``code`` when it
is not; no idempotency keys; ``GET /messages?key=`` lists what was taken under a key in the last 7 days, at
once. Assumed: a 503 may have taken the message.
"""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import quote

from digest_pipeline.gateways.base import Capabilities, Envelope
from digest_pipeline.gateways.http import Answer, by_status, retry_after
from digest_pipeline.gateways.json_api import JsonApi, carried, serialise, text_of
from digest_pipeline.gateways.kinds import LIMIT_SETTINGS, Kind, Settings, http_limits, required
from digest_pipeline.gateways.sanitise import sanitise
from digest_pipeline.outcomes import (
    Absent,
    Accepted,
    AccountRefused,
    Ambiguous,
    FailureClass,
    Found,
    LookUp,
    LookUpFailed,
    Outcome,
    Refused,
)

CAPABILITIES = Capabilities(look_up=True, visibility_delay=timedelta(0), look_up_retention=timedelta(days=7))


class HouseMail(JsonApi):
    """Sends through the house's mail service."""

    name = "house_mail"

    async def send(self, envelope: Envelope) -> Outcome:
        """Offer one message, once."""
        if refused := self.unsendable(envelope):
            return refused
        message = envelope.message
        body = {
            "key": envelope.operation_key,
            "from": message.sender,
            "to": {"address": envelope.recipient, "name": message.to_name},
            "subject": message.subject,
            "text": message.text,
            "html": message.html,
            "headers": carried(envelope, frozenset()),
        }
        answer = await self.call("POST", "/messages", serialise(body), self._headers())
        return self._verdict(answer, envelope) if isinstance(answer, Answer) else answer

    def _verdict(self, answer: Answer, envelope: Envelope) -> Outcome:
        said = answer.fields() or {}
        code = text_of(said, "code")
        detail = sanitise(f"{answer.status} {code} {text_of(said, 'message')}", self.hide(envelope))
        if answer.status == 202:
            message_id = text_of(said, "id")
            return Accepted(message_id) if message_id else Ambiguous("202 without a readable id")
        if answer.status == 422 and code == "no_such_mailbox":
            return Refused(FailureClass.RECIPIENT, detail, suppressed=True)
        if answer.status == 422 and code == "sender_not_allowed":
            return AccountRefused(detail)
        return by_status(answer, detail, self._now(), from_api=bool(code))

    async def look_up(self, operation_key: str) -> LookUp:
        """Ask what was taken under a key."""
        target = f"/messages?key={quote(operation_key, safe='')}"
        answer = await self.call("GET", target, None, self._headers())
        if not isinstance(answer, Answer):
            return LookUpFailed(answer.detail)
        listed = (answer.fields() or {}).get("ids")
        if answer.status != 200 or not isinstance(listed, list):
            return LookUpFailed(f"{answer.status} without a list", retry_after(answer, self._now()))
        return Found(str(listed[0]), copies=len(listed)) if listed else Absent()

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._secrets[0]}", "Content-Type": "application/json"}


def _create(settings: Settings, capabilities: Capabilities) -> HouseMail:
    url, token = (required("house_mail", settings, name) for name in ("url", "token"))
    return HouseMail(url, [token], capabilities, http_limits(settings))


KIND = Kind(
    summary="the house's own mail service: can be asked by key for 7 days",
    capabilities=CAPABILITIES,
    settings={"url": "base URL", "token": "of the service account", **LIMIT_SETTINGS},
    factory=_create,
    secrets=frozenset({"token"}),
)

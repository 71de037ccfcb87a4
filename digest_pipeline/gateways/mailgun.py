"""The gateway to Mailgun (https://documentation.mailgun.com/docs/mailgun/api-reference/send/mailgun/messages).

Documented: ``POST /v3/{domain}/messages.mime`` as multipart/form-data with one whole MIME message, so
that every header is ours; 25 MB; options of at most 16 KB together; variables (``v:``), which come back in
events and, in ``X-Mailgun-Variables``, reach the reader; no idempotency keys. One bad address fails its
whole call, and a call answers for all of its messages at once, so there are no batches here.

``POST /v1/analytics/logs`` lists events by filters; that one of them is called ``tag`` was seen in two
public clients. Assumed: tags of 71 characters in lower case come back as they were; an accepted message
shows within ten minutes; logs are kept for 3 days, which the plan may extend to 30
(``look_up_retention``). An account's number of tags is limited; should tags beyond it be missing from
the logs, the newest message known as sent is missing too, and then no absence counts.
Assumed, too: local parts outside ASCII are not carried; a 200 of the "Magnificent API" took nothing (seen
in django-anymail: it answers for addresses that it does not serve).
"""

from __future__ import annotations

import base64
import re
from datetime import timedelta
from email.utils import format_datetime
from typing import Any

from yarl import URL

from digest_pipeline.content.mime import to_mime
from digest_pipeline.errors import InputError, SpecError
from digest_pipeline.gateways.base import Capabilities, Envelope
from digest_pipeline.gateways.http import Answer, HttpLimits
from digest_pipeline.gateways.json_api import JsonApi, account_of, serialise
from digest_pipeline.gateways.kinds import LIMIT_SETTINGS, Kind, Settings, http_limits, required
from digest_pipeline.gateways.mailgun_answers import look_up_result, verdict
from digest_pipeline.gateways.mailgun_form import encoded
from digest_pipeline.gateways.references import digest_reference
from digest_pipeline.outcomes import FailureClass, LookUp, LookUpFailed, Outcome, Refused

BASE_URL = "https://api.mailgun.net"
KEY_VARIABLE = "operation_key"
_MOST_COPIES = 20

CAPABILITIES = Capabilities(
    look_up=True,
    visibility_delay=timedelta(minutes=10),
    look_up_retention=timedelta(days=3),
    delivered_proof=True,
    events=True,
    smtputf8=False,
)

_DOMAIN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?").fullmatch
_RESERVED = "x-mailgun-"


class MailgunGateway(JsonApi):
    """Sends for one domain through one Mailgun API key."""

    name = "mailgun"

    def __init__(
        self,
        url: str,
        api_key: str,
        domain: str,
        capabilities: Capabilities = CAPABILITIES,
        limits: HttpLimits | None = None,
    ) -> None:
        super().__init__(url, [api_key], capabilities, limits)
        self._domain = domain
        # Domains are verified, limited and asked about one by one.
        self.account = account_of(URL(url).host or "", domain, api_key)

    def hide(self, *envelopes: Envelope) -> tuple[str, ...]:
        """As every API's, and the pair that the key is sent in."""
        return (*super().hide(*envelopes), f"api:{self._secrets[0]}")

    async def send(self, envelope: Envelope) -> Outcome:
        """Offer one message, once."""
        if refused := self.unsendable(envelope):
            return refused
        content = raw_content(envelope)
        if isinstance(content, Refused):
            return content
        content_type, body = request_form(envelope, content)
        headers = self._headers() | {"Content-Type": content_type}
        answer = await self.call("POST", f"/v3/{self._domain}/messages.mime", body, headers)
        if not isinstance(answer, Answer):
            return answer
        return verdict(answer, self._now(), self.hide(envelope))

    async def look_up(self, operation_key: str) -> LookUp:
        """Ask for accepted messages with the key's tag."""
        value = digest_reference(operation_key)
        body = serialise(self._question(value))
        headers = self._headers() | {"Content-Type": "application/json"}
        answer = await self.call("POST", "/v1/analytics/logs", body, headers)
        if not isinstance(answer, Answer):
            return LookUpFailed(answer.detail)
        return look_up_result(answer, value, self._now())

    def _question(self, value: str) -> dict[str, Any]:
        assert self.capabilities.look_up_retention is not None
        since = self._now() - self.capabilities.look_up_retention
        filters = {"domain": self._domain, "tag": value}
        return {
            "start": format_datetime(since),
            "events": ["accepted"],
            "filter": {
                "AND": [
                    {"attribute": name, "comparator": "=", "values": [{"label": text, "value": text}]}
                    for name, text in filters.items()
                ]
            },
            "pagination": {"sort": "timestamp:asc", "limit": _MOST_COPIES},
        }

    def _headers(self) -> dict[str, str]:
        pair = base64.b64encode(f"api:{self._secrets[0]}".encode()).decode("ascii")
        return {"Authorization": f"Basic {pair}"}


def raw_content(envelope: Envelope) -> bytes | Refused:
    """Return the message in its wire form, or why it has none.

    Headers that begin with ``X-Mailgun-`` are options (one of them drops the message): none is sent.
    """
    if any(name.lower().startswith(_RESERVED) for name, _ in envelope.message.headers):
        return Refused(FailureClass.CONTENT, "the message must not set an X-Mailgun- header")
    try:
        return to_mime(envelope.message, envelope.recipient)
    except InputError as error:
        return Refused(FailureClass.CONTENT, str(error))


def request_form(envelope: Envelope, content: bytes) -> tuple[str, bytes]:
    """Return the Content-Type and the form for one message to exactly one recipient."""
    key = envelope.operation_key
    fields = {"to": envelope.recipient, "o:tag": digest_reference(key), f"v:{KEY_VARIABLE}": key}
    return encoded(fields, "message", content)


def _create(settings: Settings, capabilities: Capabilities) -> MailgunGateway:
    api_key, domain = (required("mailgun", settings, name) for name in ("api_key", "domain"))
    if not _DOMAIN(domain):
        raise SpecError(f"the mailgun gateway's domain is a name like mg.example.com, not {domain!r}")
    return MailgunGateway(settings.get("url", BASE_URL), api_key, domain, capabilities, http_limits(settings))


KIND = Kind(
    summary="Mailgun: no idempotency keys, can be asked by tag for 3 days or as long as the plan keeps logs",
    capabilities=CAPABILITIES,
    settings={
        "api_key": "a sending key; an account's key for look-ups",
        "domain": "the sending domain, e.g. mg.example.com",
        "url": f"base URL; {BASE_URL} unless given, https://api.eu.mailgun.net for the EU",
        **LIMIT_SETTINGS,
    },
    factory=_create,
    secrets=frozenset({"api_key"}),
)

"""The gateway to Amazon SES (https://docs.aws.amazon.com/ses/latest/APIReference-V2/API_SendEmail.html).

Documented: ``POST /v2/email/outbound-emails`` with raw content, signed with Signature Version 4; tags
of ``A-Za-z0-9_-`` and at most 256 characters, which come back in events; local parts in ASCII only; 40
MB. No idempotency keys, and no question by tag: only an event or a person settles a doubt. SES puts a
Message-ID and a Date of its own in place of ours, so the key stands in a tag and in
``X-Operation-Key``. Assumed: ``X-SES-`` headers in the content change how it is sent; none may.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Any

from yarl import URL

from digest_pipeline.content.mime import to_mime
from digest_pipeline.errors import InputError, SpecError
from digest_pipeline.gateways.base import Capabilities, Envelope
from digest_pipeline.gateways.http import Answer, HttpLimits
from digest_pipeline.gateways.json_api import JsonApi, account_of, serialise
from digest_pipeline.gateways.kinds import LIMIT_SETTINGS, Kind, Settings, http_limits, required
from digest_pipeline.gateways.references import tag
from digest_pipeline.gateways.ses_answers import verdict
from digest_pipeline.gateways.ses_signing import Signer
from digest_pipeline.outcomes import FailureClass, LookUp, LookUpFailed, Outcome, Refused

PATH = "/v2/email/outbound-emails"
KEY_TAG = "operation_key"
MAX_TAG = 256

CAPABILITIES = Capabilities(delivered_proof=True, events=True, smtputf8=False)

_REGION = re.compile(r"[a-z]{2,4}(?:-[a-z]+)+-[0-9]").fullmatch
_RESERVED = "x-ses-"


class SesGateway(JsonApi):
    """Sends through one AWS account in one region."""

    name = "ses"

    def __init__(
        self,
        url: str,
        signer: Signer,
        secrets: Sequence[str],
        configuration_set: str = "",
        capabilities: Capabilities = CAPABILITIES,
        limits: HttpLimits | None = None,
    ) -> None:
        super().__init__(url, secrets, capabilities, limits)
        self._signer, self._configuration_set = signer, configuration_set
        # A session token is renewed under the same key: it is not part of who sends.
        self.account = account_of(URL(url).host or "", *secrets[:2])

    async def send(self, envelope: Envelope) -> Outcome:
        """Offer one message, once."""
        if refused := self.unsendable(envelope):
            return refused
        content = raw_content(envelope)
        if isinstance(content, Refused):
            return content
        body = serialise(request_body(envelope, content, self._configuration_set))
        headers = self._signer.sign("POST", self._url + PATH, body)
        answer = await self.call("POST", PATH, body, headers)
        if not isinstance(answer, Answer):
            return answer
        return verdict(answer, self._now(), self.hide(envelope))

    async def look_up(self, operation_key: str) -> LookUp:
        """SES can't be asked by a key of ours."""
        return LookUpFailed("SES can't be asked by operation key")


def raw_content(envelope: Envelope) -> bytes | Refused:
    """Return the message in its wire form, or why it has none."""
    if any(name.lower().startswith(_RESERVED) for name, _ in envelope.message.headers):
        return Refused(FailureClass.CONTENT, "the message must not set an X-SES- header")
    try:
        return to_mime(envelope.message, envelope.recipient)
    except InputError as error:
        return Refused(FailureClass.CONTENT, str(error))


def request_body(envelope: Envelope, content: bytes, configuration_set: str) -> dict[str, Any]:
    """Return the request for one message to exactly one recipient, whatever its header says."""
    body = {
        "Destination": {"ToAddresses": [envelope.recipient]},
        "Content": {"Raw": {"Data": base64.b64encode(content).decode("ascii")}},
        "EmailTags": [{"Name": KEY_TAG, "Value": tag(envelope.operation_key, MAX_TAG)}],
    }
    return body | ({"ConfigurationSetName": configuration_set} if configuration_set else {})


def _create(settings: Settings, capabilities: Capabilities) -> SesGateway:
    region = required("ses", settings, "region")
    if not _REGION(region):
        raise SpecError(f"the ses gateway's region is one like eu-central-1, not {region!r}")
    key_id, secret = (required("ses", settings, name) for name in ("access_key_id", "secret_access_key"))
    token = settings.get("session_token", "")
    return SesGateway(
        settings.get("url") or f"https://email.{region}.amazonaws.com",
        Signer(key_id, secret, token, region),
        [part for part in (key_id, secret, token) if part],
        settings.get("configuration_set", ""),
        capabilities,
        http_limits(settings),
    )


KIND = Kind(
    summary="Amazon SES: neither idempotency keys nor look-ups; events settle doubts",
    capabilities=CAPABILITIES,
    settings={
        "region": "e.g. eu-central-1",
        "access_key_id": "of an identity that may send",
        "secret_access_key": "its secret",
        "session_token": "of temporary credentials only",
        "configuration_set": "whose events are published; none unless given",
        "url": "base URL; https://email.REGION.amazonaws.com unless given",
        **LIMIT_SETTINGS,
    },
    factory=_create,
    secrets=frozenset({"access_key_id", "secret_access_key", "session_token"}),
)

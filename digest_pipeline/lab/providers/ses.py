"""Amazon SES v2 (https://docs.aws.amazon.com/ses/latest/APIReference-V2/API_SendEmail.html), for raw content.

Documented: the route and fields; Signature Version 4; the exceptions and their statuses; tags of
``A-Za-z0-9_-`` and at most 256 characters; lines of at most 1,000 characters; "Maximum sending rate
exceeded". No idempotency, and nothing can be asked by a tag.

Assumed: ``x-amzn-errortype`` names the error; the texts about addresses; a suppressed address is taken and
bounces later, in an event; the content's recipients are those of ``Destination`` alone, but any other
that a header names is counted, since it would show.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
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
    same_bytes,
    uuid_of,
)
from digest_pipeline.lab.providers.raw_mail import read_mail
from digest_pipeline.lab.providers.ses_signature import is_signed

_TAG = re.compile(r"[A-Za-z0-9_-]{1,256}").fullmatch

_WORDS = {
    Refusal.RECIPIENT: (400, "BadRequestException", "Illegal address: {address}"),
    Refusal.MALFORMED: (400, "MessageRejected", "Message content is not valid."),
    Refusal.SENDER: (
        400,
        "MessageRejected",
        "Email address is not verified. The following identities failed the check in region "
        "EU-CENTRAL-1: unverified.example",
    ),
    Refusal.CREDENTIAL: (
        403,
        "SignatureDoesNotMatch",
        "The request signature we calculated does not match {credential}.",
    ),
    Refusal.THROTTLED: (429, "TooManyRequestsException", "Maximum sending rate exceeded."),
    Refusal.UNAVAILABLE: (503, "ServiceUnavailable", "Service is unavailable."),
    Refusal.ERROR: (500, "InternalFailure", "The request processing has failed."),
    Refusal.NO_ROUTE: (404, "UnknownOperationException", "Unable to determine the operation."),
}


class Ses(Emulation):
    """SendEmail with raw content."""

    name = "ses"
    routes: ClassVar = {("POST", "/v2/email/outbound-emails"): Route.SEND}
    settings: ClassVar = {"idempotency": "none", "look_up": False}

    def knows(self, call: Call, credential: str) -> bool:
        key_id, _, secret = credential.partition(":")
        return is_signed(call, key_id, secret, "ses", datetime.now(UTC))

    def read(self, call: Call) -> list[Incoming] | Refusal:
        try:
            return [_message(json.loads(call.body))]
        except (ValueError, TypeError, KeyError, AttributeError):
            return Refusal.MALFORMED

    def answer(self, call: Call, results: Sequence[Result]) -> web.Response:
        (result,) = results
        if result.refusal is not None:
            return _refusal(call, result.refusal, result.incoming.recipients)
        return json_answer(200, {"MessageId": result.message_id})

    def refuse(self, call: Call, refusal: Refusal) -> web.Response:
        return _refusal(call, refusal, ())

    def message_id(self, serial: str) -> str:
        return f"0107{uuid_of(serial)}-000000"


def _refusal(call: Call, refusal: Refusal, recipients: Sequence[str]) -> web.Response:
    """Return an error: ugly, since it quotes whom the call was for and what it proved itself with."""
    status, name, words = _WORDS[refusal]
    shown = words.format(address=", ".join(recipients), credential=call.headers.get("Authorization"))
    address = "http://internal.amazon.com/coral/com.amazon.coral.service/"
    return json_answer(status, {"message": shown}, {"x-amzn-errortype": f"{name}:{address}"})


def _message(body: dict[str, Any]) -> Incoming:
    to = body["Destination"]
    envelope = [address for field in ("To", "Cc", "Bcc") for address in to.get(f"{field}Addresses") or []]
    data = base64.b64decode(body["Content"]["Raw"]["Data"], validate=True)
    mail = read_mail(data, envelope)
    refusal = None if mail.refusal is Refusal.SUPPRESSED else mail.refusal
    for tag in body.get("EmailTags") or []:
        if not _TAG(tag["Name"]) or not _TAG(tag["Value"]):
            refusal = Refusal.MALFORMED
    return Incoming(mail.key, same_bytes(body), mail.recipients, refusal)

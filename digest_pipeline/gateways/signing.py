"""Standard Webhooks: who signed these bytes, and when (https://www.standardwebhooks.com).

Documented: the headers ``webhook-id``, ``webhook-timestamp`` and ``webhook-signature``; HMAC-SHA256 over
``id.timestamp.body``; several signatures in one header, separated by spaces, while a secret is rotated;
secrets of 24 to 64 bytes, in base64 behind ``whsec_``. The library signs; its own verification limits past
and future alike and raises more than one kind of error for a malformed header, so reading is done here.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from standardwebhooks import Webhook

from digest_pipeline.errors import SpecError

PREFIX = "whsec_"
PAST = timedelta(minutes=5)
FUTURE = timedelta(minutes=5)
"""How far a timestamp may lie behind and ahead of our clock: two limits, each checked by itself."""

_STAMP = re.compile(r"[0-9]{1,10}").fullmatch
_ID = re.compile(r"[A-Za-z0-9_-]{1,256}").fullmatch
_MOST_SIGNATURES = 10


class SignatureRefusedError(Exception):
    """A request proves nothing, or is not of now. Its text is constant: nothing of the request is in it."""


@dataclass(frozen=True, slots=True)
class Signed:
    """What a verified request says of itself: the same ``message_id`` for every repeat."""

    message_id: str
    at: datetime


class Signer:
    """Signs with the first secret, and with the others beside it; verifies with any of them.

    Two secrets serve a rotation: the sender signs with both, or the receiver knows both, until everybody has
    the new one. Raises SpecError for a secret that is none, without quoting it.
    """

    def __init__(self, name: str, secrets: Sequence[str]) -> None:
        self._keys = [Webhook(_key(name, secret)) for secret in secrets]

    def headers(self, message_id: str, body: bytes, now: datetime) -> dict[str, str]:
        """Return the headers that sign exactly these bytes (UTF-8) now."""
        now = now.astimezone(UTC)
        signatures = [key.sign(message_id, now, body.decode("utf-8")) for key in self._keys]
        return {
            "webhook-id": message_id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": " ".join(signatures),
        }

    def verify(self, headers: Mapping[str, str], body: bytes, now: datetime) -> Signed:
        """Return what the raw bytes of a request prove. Raises SignatureRefusedError.

        ``headers`` by their names in lower case. The signature comes first: whoever can't sign learns nothing
        about our clock.
        """
        message_id, stamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
        if not _ID(message_id) or not _STAMP(stamp):
            raise SignatureRefusedError("unsigned, or signed in another way")
        at = datetime.fromtimestamp(int(stamp), UTC)
        given = _signatures(headers.get("webhook-signature", ""))
        if not self._signed_any(given, message_id, at, body):
            raise SignatureRefusedError("the signature is not ours")
        if at < now - PAST:
            raise SignatureRefusedError("signed too long ago")
        if at > now + FUTURE:
            raise SignatureRefusedError("signed in the future")
        return Signed(message_id, at)

    def _signed_any(self, given: Sequence[bytes], message_id: str, at: datetime, body: bytes) -> bool:
        try:
            text = body.decode("utf-8")
        except UnicodeDecodeError:
            return False
        found = False
        for key in self._keys:
            ours = base64.b64decode(key.sign(message_id, at, text).partition(",")[2])
            for signature in given:
                found |= hmac.compare_digest(ours, signature)
        return found


def _signatures(header: str) -> list[bytes]:
    """Return the signatures of version 1 in a header; what is malformed is none."""
    found = []
    for one in header.split(" ")[:_MOST_SIGNATURES]:
        version, _, encoded = one.partition(",")
        try:
            signature = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            continue
        if version == "v1":
            found.append(signature)
    return found


def _key(name: str, secret: str) -> bytes:
    wrong = SpecError(f"{name} must be a Standard Webhooks secret: {PREFIX} and 24 to 64 bytes in base64")
    if not secret.startswith(PREFIX):
        raise wrong
    encoded = secret.removeprefix(PREFIX)
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise wrong from None
    if not 24 <= len(key) <= 64:
        raise wrong
    return key

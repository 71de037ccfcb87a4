"""Amazon SNS: whether a notification is authentic, and of a topic of ours.

Documented (https://docs.aws.amazon.com/sns/latest/dg/sns-verify-signature-of-message.html): the signed text of
each message type, versions 1 (SHA-1) and 2 (SHA-256) with RSA, the certificate's URL on ``sns.<region>.amazonaws.com``.
The topic is looked at before anything is fetched: anybody's topic has a valid signature of Amazon's.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from digest_pipeline.subscriber.events.reading import UNAUTHENTIC, RefusedError, text_in

Fetch = Callable[[str], bytes]
"""Returns what is at an https URL of Amazon's; raises OSError."""

# A region, and nothing else: sns.s3-eu-west-1.amazonaws.com is anybody's bucket called "sns".
_REGION = r"[a-z]{2,4}(?:-[a-z]+){1,3}-[0-9]"
_HOST = re.compile(rf"sns\.{_REGION}\.amazonaws\.com(?:\.cn)?").fullmatch
# The whole path, and no query: other actions of the same host repeat what anybody has stored there.
_CERTIFICATE = re.compile(
    rf"https://sns\.{_REGION}\.amazonaws\.com(?:\.cn)?/SimpleNotificationService-[0-9A-Za-z]+\.pem"
).fullmatch
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "Notification": ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"),
    "SubscriptionConfirmation": (
        "Message",
        "MessageId",
        "SubscribeURL",
        "Timestamp",
        "Token",
        "TopicArn",
        "Type",
    ),
}
_FIELDS = {**_FIELDS, "UnsubscribeConfirmation": _FIELDS["SubscriptionConfirmation"]}


def require_ours(message: Mapping[str, Any], topics: Sequence[str]) -> None:
    """Refuse what is of a topic, and so of an account, that is not on the list."""
    if message.get("TopicArn") not in topics:
        raise RefusedError(403, "of another topic")


def require_signed(message: Mapping[str, Any], certificate_at: Fetch) -> None:
    """Refuse what Amazon has not signed."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.hashes import SHA1, SHA256
    from cryptography.x509 import load_pem_x509_certificate

    url = message.get("SigningCertURL")
    if not isinstance(url, str) or not _CERTIFICATE(url):
        raise RefusedError(403, "a certificate from elsewhere")
    digest = {"1": SHA1, "2": SHA256}.get(str(message.get("SignatureVersion")))
    try:
        signature = base64.b64decode(str(message.get("Signature")), validate=True)
        key = load_pem_x509_certificate(certificate_at(url)).public_key()
        if digest is None or not isinstance(key, RSAPublicKey):
            raise RefusedError(401, UNAUTHENTIC)
        # SHA-1 is what version 1 is: Amazon's choice, until a topic is set to version 2.
        key.verify(signature, _signed_text(message), PKCS1v15(), digest())
    except (InvalidSignature, binascii.Error, ValueError):
        raise RefusedError(401, UNAUTHENTIC) from None
    except OSError:
        raise RefusedError(503, "the certificate cannot be fetched") from None


def is_amazons(url: Any) -> bool:
    """Whether a URL is one of SNS's own, over https."""
    if isinstance(url, str) and not (url.isascii() and url.isprintable() and " " not in url):
        return False
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        return (
            parts is not None
            and parts.scheme == "https"
            and parts.port is None
            and parts.netloc == parts.hostname
            and bool(_HOST(parts.hostname or ""))
        )
    except ValueError:
        return False


def _signed_text(message: Mapping[str, Any]) -> bytes:
    kind = text_in(message, "Type") or ""
    lines = [
        f"{name}\n{message[name]}\n" for name in _FIELDS.get(kind, ()) if isinstance(message.get(name), str)
    ]
    return "".join(lines).encode("utf-8", "surrogatepass")

"""Requests as providers make them, written from their documentation and signed here in our own words."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.x509.oid import NameOID

NOW = 1_794_000_000.0
RESEND_KEYS = (
    "whsec_" + base64.b64encode(b"n" * 24).decode(),
    "whsec_" + base64.b64encode(b"o" * 24).decode(),
)
PAIRS = ("hook:new-password", "hook:old-password")
MAILGUN_KEYS = ("mailgun-new-signing-key", "mailgun-old-signing-key")
BREVO_TOKENS = ("brevo-new-token", "brevo-old-token")
TOPIC = "arn:aws:sns:eu-west-1:111122223333:digest-events"
CERTIFICATE_URL = "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-0123.pem"


@dataclass
class Post:
    """A body and headers, ready to be sent."""

    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


def encoded(value: Any) -> bytes:
    """Return a value as JSON, and bytes as they are."""
    return value if isinstance(value, bytes) else json.dumps(value).encode()


def iso(stamp: float) -> str:
    return datetime.fromtimestamp(stamp, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# Resend ------------------------------------------------------------------------------------------------


def resend_body(kind: str, key: str, message_id: str = "m-1", **data: Any) -> dict[str, Any]:
    return {
        "type": f"email.{kind}",
        "created_at": "2026-11-08T23:41:12.126Z",
        "data": {
            "created_at": "2026-11-08T23:41:11.894Z",
            "email_id": message_id,
            "from": "Acme <digest@acme.test>",
            "to": ["reader-1@example.test"],
            "subject": "Your week",
            "headers": [{"name": "X-Operation-Key", "value": key}],
            **data,
        },
    }


def resend(value: Any, *, key: str = RESEND_KEYS[0], stamp: float = NOW, identity: str = "msg_1") -> Post:
    body = encoded(value)
    secret = base64.b64decode(key.split("_", 1)[1])
    text = identity.encode() + b"." + str(int(stamp)).encode() + b"." + body
    signature = base64.b64encode(hmac.digest(secret, text, "sha256")).decode()
    return Post(
        body,
        {
            "svix-id": identity,
            "svix-timestamp": str(int(stamp)),
            "svix-signature": f"v1,{base64.b64encode(b'x' * 32).decode()} v1,{signature}",
        },
    )


# Postmark, Mailjet, Brevo ---------------------------------------------------------------------------------


def basic(value: Any, pair: str = PAIRS[0]) -> Post:
    return Post(encoded(value), {"authorization": "Basic " + base64.b64encode(pair.encode()).decode()})


def bearer(value: Any, token: str = BREVO_TOKENS[0]) -> Post:
    return Post(encoded(value), {"authorization": f"Bearer {token}"})


def postmark_body(record: str, key: str, **more: Any) -> dict[str, Any]:
    return {
        "RecordType": record,
        "MessageStream": "broadcast",
        "ServerID": 23,
        "MessageID": "m-1",
        "Recipient": "reader-1@example.test",
        "Tag": "digest",
        "Metadata": {"operation_key": key},
        **more,
    }


def mailjet_body(event: str, key: str, **more: Any) -> dict[str, Any]:
    return {
        "event": event,
        "time": 1430812195,
        "MessageID": 19421777835146490,
        "Message_GUID": "1ab23cd4-e567-8901-2345-6789f0gh1i2j",
        "email": "reader-1@example.test",
        "mj_campaign_id": 7257,
        "mj_contact_id": 4,
        "customcampaign": "",
        "CustomID": key,
        "Payload": "",
        **more,
    }


def brevo_body(event: str, key: str, **more: Any) -> dict[str, Any]:
    return {
        "event": event,
        "email": "reader-1@example.test",
        "id": 26224,
        "date": "2026-11-08 23:41:12",
        "ts": 1598634509,
        "message-id": "<m-1@smtp-relay.mailin.fr>",
        "ts_event": 1598034509,
        "subject": "Your week",
        "X-Mailin-custom": key,
        "sending_ip": "192.0.2.1",
        "ts_epoch": 1598634509223,
        **more,
    }


# Mailgun ------------------------------------------------------------------------------------------------


def mailgun_body(event: str, key: str, **more: Any) -> dict[str, Any]:
    return {
        "event": event,
        "id": "CPgfbmQMTCKtHW6uIWtuVe",
        "timestamp": 1521472262.908181,
        "recipient": "reader-1@example.test",
        "message": {"headers": {"message-id": "m-1@mg.acme.test", "to": "reader-1@example.test"}},
        "user-variables": {"operation_key": key},
        **more,
    }


def mailgun(value: Any, *, key: str = MAILGUN_KEYS[0], stamp: float = NOW, token: str = "t" * 50) -> Post:
    moment = str(int(stamp))
    signature = hmac.new(key.encode(), (moment + token).encode(), hashlib.sha256).hexdigest()
    return Post(
        encoded(
            {"signature": {"timestamp": moment, "token": token, "signature": signature}, "event-data": value}
        )
    )


# SendGrid -----------------------------------------------------------------------------------------------


@cache
def sendgrid_key(number: int) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(10_000 + number, ec.SECP256R1())


def sendgrid_public(number: int) -> str:
    found = sendgrid_key(number).public_key()
    der = found.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(der).decode()


def sendgrid_body(event: str, key: str, **more: Any) -> dict[str, Any]:
    return {
        "email": "reader-1@example.test",
        "timestamp": 1513299569,
        "smtp-id": "<14c5d75ce93.dfd.64b469@ismtpd-555>",
        "event": event,
        "category": ["digest"],
        "sg_event_id": f"ev-{event}",
        "sg_message_id": "m-1.filter0001.16648.5515E0B88.0",
        "operation_key": key,
        **more,
    }


def sendgrid(value: Any, *, number: int = 0, stamp: float = NOW) -> Post:
    body, moment = encoded(value), str(int(stamp))
    signature = sendgrid_key(number).sign(moment.encode() + body, ec.ECDSA(hashes.SHA256()))
    return Post(
        body,
        {
            "x-twilio-email-event-webhook-signature": base64.b64encode(signature).decode(),
            "x-twilio-email-event-webhook-timestamp": moment,
        },
    )


# Amazon SES through SNS ---------------------------------------------------------------------------------


def ses_body(event: str, key: str, **more: Any) -> dict[str, Any]:
    return {
        "eventType": event,
        "mail": {
            "timestamp": "2026-11-05T20:39:25.000Z",
            "source": "digest@acme.test",
            "sendingAccountId": "111122223333",
            "messageId": "m-1",
            "destination": ["reader-1@example.test"],
            "headersTruncated": False,
            "headers": [{"name": "From", "value": "x"}, {"name": "X-Operation-Key", "value": key}],
            "tags": {"ses:configuration-set": ["digests"]},
        },
        **more,
    }


@cache
def amazon() -> tuple[rsa.RSAPrivateKey, bytes]:
    """A key and its certificate, as at Amazon's URL."""
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sns.amazonaws.com")])
    today = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(today - timedelta(days=1))
        .not_valid_after(today + timedelta(days=30))
        .sign(key, hashes.SHA256())
    )
    return key, certificate.public_bytes(serialization.Encoding.PEM)


def sns(value: Any, *, version: str = "2", stamp: float = NOW, identity: str = "sns-1", **more: Any) -> Post:
    """A notification; ``more`` changes its fields before it is signed."""
    fields = {
        "Type": "Notification",
        "MessageId": identity,
        "TopicArn": TOPIC,
        "Subject": "Amazon SES Email Event Notification",
        "Message": value if isinstance(value, str) else json.dumps(value),
        "Timestamp": iso(stamp),
        **more,
    }
    signed = ["Message", "MessageId", "Subject", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"]
    if fields["Type"] != "Notification":
        del fields["Subject"]
    text = "".join(f"{name}\n{fields[name]}\n" for name in signed if name in fields)
    algorithm = hashes.SHA1() if version == "1" else hashes.SHA256()
    signature = amazon()[0].sign(text.encode(), padding.PKCS1v15(), algorithm)
    fields |= {
        "SignatureVersion": version,
        "Signature": base64.b64encode(signature).decode(),
        "SigningCertURL": CERTIFICATE_URL,
        "UnsubscribeURL": "https://sns.eu-west-1.amazonaws.com/?Action=Unsubscribe",
    }
    return Post(encoded(fields))


def soon() -> float:
    """The time, for a server with a clock of its own."""
    return time.time()

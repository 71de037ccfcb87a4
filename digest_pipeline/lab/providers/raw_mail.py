"""A whole MIME message as a provider reads it that takes such: who it is for, and whether it is strict."""

from __future__ import annotations

import re
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import SMTP
from typing import NamedTuple

from digest_pipeline.lab.providers.emulation import Refusal, spoiled_by

MAX_LINE = 998
_FOR_ANYBODY = ("To", "Cc", "Bcc")
_BARE = re.compile(rb"(?<!\r)\n|\r(?!\n)").search


class RawMail(NamedTuple):
    """What was read. ``recipients`` are those of the envelope, and any other that a header names."""

    key: str
    recipients: list[str]
    refusal: Refusal | None


def read_mail(data: bytes, envelope: list[str]) -> RawMail:
    """Return a message to the envelope's recipients. A line end that is none, or a long line, spoils it."""
    mail = message_from_bytes(data, _class=EmailMessage, policy=SMTP)
    named = [
        address.addr_spec
        for field in _FOR_ANYBODY
        for header in mail.get_all(field, [])
        for address in header.addresses
    ]
    recipients = [*envelope, *(address for address in named if address not in envelope)]
    sender = str(mail.get("From", ""))
    refusal = spoiled_by(recipients, sender)
    if _BARE(data) or max(map(len, data.split(b"\r\n"))) > MAX_LINE or not sender:
        refusal = Refusal.MALFORMED
    return RawMail(str(mail.get("X-Operation-Key", "")).strip(), recipients, refusal)

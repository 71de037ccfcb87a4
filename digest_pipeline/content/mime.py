"""The wire form of a message (RFC 5322): the same bytes for the same message and recipient.

Put together by hand because the order, the boundary and the encodings must never change under a
frozen message, and because a machine-read header (a key, a URL) must stay on one line, unencoded.
"""

from __future__ import annotations

import quopri

from digest_pipeline.addresses import Rejection, check_address, clean_line
from digest_pipeline.content.mailbox import header_mailbox, header_text, parse_mailbox
from digest_pipeline.content.message import Message
from digest_pipeline.errors import InputError

MAX_LINE = 998
"""Octets without the line end: RFC 5322 2.1.1."""

_NEVER_FROZEN = {
    "from", "to", "cc", "bcc", "resent-to", "resent-cc", "resent-bcc", "subject",
    "mime-version", "content-type", "content-transfer-encoding",
}  # fmt: skip


def to_mime(message: Message, recipient: str) -> bytes:
    """Return the message as it goes to one recipient, text part first; lines end in CRLF.

    No line is longer than 998 octets, and all is ASCII unless the recipient's local part isn't (the
    server must then offer SMTPUTF8). Raises InputError for a recipient that can't be sent to, for a
    name, subject or header that isn't one line, and for a header that names further recipients.
    """
    address = check_address(recipient)
    if isinstance(address, Rejection):
        raise InputError(f"no message can be made for this recipient: {address.reason}")
    sender = parse_mailbox(message.sender, "From")
    head = [
        header_mailbox("From", sender.name, sender.address),
        header_mailbox("To", _one_line("To", message.to_name), address.value),
        header_text("Subject", _one_line("Subject", message.subject)),
        *(_frozen_header(name, value) for name, value in message.headers),
        "MIME-Version: 1.0",
        f'Content-Type: multipart/alternative; boundary="{message.boundary}"',
        "",
        "",
    ]
    parts = [
        _part("plain", message.text, message.boundary),
        _part("html", message.html, message.boundary),
        f"--{message.boundary}--\r\n".encode("ascii"),
    ]
    return "\r\n".join(head).encode("utf-8") + b"".join(parts)


def _frozen_header(name: str, value: str) -> str:
    lower = name.lower()
    if lower in _NEVER_FROZEN:
        raise InputError(f"a frozen message may not bring its own {name} header")
    if lower == "reply-to":
        mailbox = parse_mailbox(value, "Reply-To")
        return header_mailbox("Reply-To", mailbox.name, mailbox.address)
    line = f"{name}: {value}"
    if not line.isascii() or not line.isprintable() or len(line) > MAX_LINE:
        raise InputError(f"the {name} header is not one printable ASCII line of at most {MAX_LINE} octets")
    return line


def _one_line(field: str, text: str) -> str:
    if text != clean_line(text):
        raise InputError(f"the {field} header of this message is not one clean line")
    return text


def _part(subtype: str, body: str, boundary: str) -> bytes:
    head = (
        f"--{boundary}\r\n"
        f'Content-Type: text/{subtype}; charset="utf-8"\r\n'
        "Content-Transfer-Encoding: quoted-printable\r\n\r\n"
    )
    # Quoted-printable keeps lines within 76 octets and survives relays that aren't 8-bit clean.
    encoded = quopri.encodestring(body.encode("utf-8"))
    return head.encode("ascii") + encoded.replace(b"\n", b"\r\n") + b"\r\n"

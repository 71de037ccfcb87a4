"""What no gateway puts on the wire: more than one recipient, or a header that smuggles one in."""

from __future__ import annotations

import re
from dataclasses import replace

from digest_pipeline.addresses import Address, check_address
from digest_pipeline.content.message import Message
from digest_pipeline.gateways.base import Envelope
from digest_pipeline.outcomes import FailureClass, Refused

KEY_HEADER = "X-Operation-Key"

_HEADER_NAME = re.compile(r"[!-9;-~]+").fullmatch
# The adapter writes these itself, from the envelope and the message's own fields.
_OWN_HEADERS = frozenset(
    {"to", "cc", "bcc", "from", "sender", "subject", "resent-to", "resent-cc", "resent-bcc", "apparently-to"}
)
_LINE_END = re.compile(r"[\r\n\0]").search


def unsendable(envelope: Envelope, *, smtputf8: bool = True) -> Refused | None:
    """Return why this envelope can't be sent to exactly its one recipient, or None.

    Checked before the wire. ``smtputf8``: the gateway can carry a local part outside ASCII; where it
    cannot, the row is refused, since any other spelling of it names another mailbox or none. The detail
    names no address and no content.
    """
    address = check_address(envelope.recipient)
    if not isinstance(address, Address) or address.value != envelope.recipient:
        return Refused(FailureClass.RECIPIENT, "the recipient is not one plain address")
    if address.needs_smtputf8 and not smtputf8:
        return Refused(
            FailureClass.RECIPIENT, "the recipient needs SMTPUTF8, which this gateway cannot carry"
        )
    message = envelope.message
    if any(_LINE_END(text) for text in (message.sender, message.subject, message.to_name)):
        return Refused(FailureClass.CONTENT, "a line break in sender, subject or name")
    for name, value in message.headers:
        if name.lower() in _OWN_HEADERS:
            return Refused(FailureClass.CONTENT, f"the message must not set the header {name}")
        if not _HEADER_NAME(name) or _LINE_END(value):
            return Refused(FailureClass.CONTENT, "a malformed header")
    return None


def keyed(envelope: Envelope) -> Message:
    """Return the message with its operation key among the headers, by which its copies are recognised."""
    message = envelope.message
    if any(name.lower() == KEY_HEADER.lower() for name, _ in message.headers):
        return message
    return replace(message, headers=(*message.headers, (KEY_HEADER, envelope.operation_key)))

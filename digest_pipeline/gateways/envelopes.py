"""What no gateway puts on the wire: more than one recipient, or a header that smuggles one in."""

from __future__ import annotations

import re

from digest_pipeline.addresses import Address, check_address
from digest_pipeline.gateways.base import Envelope
from digest_pipeline.outcomes import FailureClass, Refused

_HEADER_NAME = re.compile(r"[!-9;-~]+").fullmatch
# The adapter writes these itself, from the envelope and the message's own fields.
_OWN_HEADERS = frozenset(
    {"to", "cc", "bcc", "from", "sender", "subject", "resent-to", "resent-cc", "resent-bcc", "apparently-to"}
)
_LINE_END = re.compile(r"[\r\n\0]").search


def unsendable(envelope: Envelope) -> Refused | None:
    """Return why this envelope can't be sent to exactly its one recipient, or None.

    Checked before the wire. The detail names no address and no content.
    """
    address = check_address(envelope.recipient)
    if not isinstance(address, Address) or address.value != envelope.recipient:
        return Refused(FailureClass.RECIPIENT, "the recipient is not one plain address")
    message = envelope.message
    if any(_LINE_END(text) for text in (message.sender, message.subject, message.to_name)):
        return Refused(FailureClass.CONTENT, "a line break in sender, subject or name")
    for name, value in message.headers:
        if name.lower() in _OWN_HEADERS:
            return Refused(FailureClass.CONTENT, f"the message must not set the header {name}")
        if not _HEADER_NAME(name) or _LINE_END(value):
            return Refused(FailureClass.CONTENT, "a malformed header")
    return None

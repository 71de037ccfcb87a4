"""What a claimed row puts on the wire: its frozen message, checked against what the manifest says of it."""

from __future__ import annotations

from digest_pipeline.content.message import unpack
from digest_pipeline.errors import LedgerIntegrityError
from digest_pipeline.gateways.base import Envelope
from digest_pipeline.ledger.claims import Claimed
from digest_pipeline.outcomes import Ambiguous, FailureClass, Outcome, Refused


def envelope_of(claimed: Claimed) -> Envelope | Outcome:
    """Return the one message to send, or what it means that there is none."""
    if claimed.document is None or claimed.recipient is None:
        return Refused(FailureClass.CONTENT, "the generated rows or the address are gone")
    try:
        message = unpack(claimed.document, claimed.payload_hash)
    except LedgerIntegrityError as error:
        if claimed.is_ambiguous:
            return Ambiguous(str(error), integrity=True)
        return Refused(FailureClass.CONTENT, str(error))
    return Envelope(claimed.operation_key, claimed.recipient, message)

"""Through which channels a digest's people are told, and what a try to tell them can end as."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum

from digest_pipeline.content.mailbox import parse_mailbox
from digest_pipeline.errors import SpecError
from digest_pipeline.notify.incident import Severity
from digest_pipeline.spec import Digest

LOG = "log"
WEBHOOK = "webhook"
EMAIL = "email:"


class Told(StrEnum):
    """How a try ended. ``NOT_YET`` comes again; ``PERHAPS`` only where that can't tell anybody twice."""

    YES = "accepted"
    NOT_YET = "not_told"
    PERHAPS = "no_answer"
    DOUBTFUL = "doubtful"
    NEVER = "refused"
    NO_PERMIT = "no_permit"
    """Nothing was tried: the account's rate gate is closed, halted or busy."""


@dataclass(frozen=True, slots=True)
class Try:
    """One try to tell: how it ended, and a word on why that holds nothing private."""

    told: Told
    why: str = ""


def channels_of(digest: Digest | None, severity: Severity) -> list[str]:
    """Return the names of the channels that hear of an incident. Raises SpecError."""
    if digest is None or not severity.is_told:
        return [LOG]
    webhook = [WEBHOOK] if digest.notify.webhook_url else []
    return [LOG, *webhook, *(email_channel(address) for address in digest.notify.recipients)]


def email_channel(address: str) -> str:
    """Return the name of a recipient's channel; the address is not in it."""
    return EMAIL + hashlib.sha256(address.encode()).hexdigest()[:12]


def recipient_of(digest: Digest, channel: str) -> str | None:
    """Return the address behind a channel's name; None when it is no longer configured."""
    return next((one for one in digest.notify.recipients if email_channel(one) == channel), None)


def sender_of(digest: Digest) -> str:
    """Return the From header of this digest's notifications."""
    return digest.notify.sender or digest.content.sender


def require_channels(digest: Digest) -> None:
    """Raise SpecError unless every configured channel could be used: called where code is loaded."""
    notify = digest.notify
    try:
        url, key, recipients = notify.webhook_url, notify.signing_key, notify.recipients
    except SpecError as error:
        raise SpecError(f"{digest.name}: {error}") from None
    if key is not None and url is None:
        raise SpecError(
            f"{digest.name}: notify.webhook is empty, and notify.webhook_secret has nothing to sign"
        )
    if recipients:
        try:
            parse_mailbox(sender_of(digest), "From")
        except SpecError as error:
            raise SpecError(f"{digest.name}: notify.sender: {error}") from None

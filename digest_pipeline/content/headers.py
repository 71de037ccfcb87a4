"""The headers of bulk mail: identity, list, and one-click unsubscription (RFC 8058).

``Auto-Submitted: auto-generated`` is what RFC 3834 (section 5) asks of mail that a periodic process makes:
it keeps absence notices from answering. There is no ``Precedence``: no standard defines it, and RFC 3834
(section 3.1.8) discourages it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from urllib.parse import quote

from digest_pipeline.content.mailbox import parse_mailbox
from digest_pipeline.errors import SpecError

_URL = re.compile(r"https?://[!-;=?-~]+").fullmatch
_LIST_ID = re.compile(r"(?:[ -;=?-~]* )?<[A-Za-z0-9._-]+>").fullmatch
_FEEDBACK_ID = re.compile(r"(?:[A-Za-z0-9._-]{0,64}:){0,3}[A-Za-z0-9._-]{5,15}").fullmatch
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


class HeaderPlan:
    """Makes the headers of each message from what its manifest froze.

    Raises SpecError naming the field that can't go into a header.
    """

    def __init__(
        self,
        *,
        sender: str,
        reply_to: str,
        list_id: str,
        date: str,
        unsubscribe_url: str,
        feedback_id: str = "",
        sign: Callable[[str], str] | None,
    ) -> None:
        mailbox = parse_mailbox(sender, "From")
        self.sender = str(mailbox)
        self._domain = mailbox.domain
        self._date = date
        self._fixed: list[tuple[str, str]] = []
        if reply_to:
            self._fixed.append(("Reply-To", str(parse_mailbox(reply_to, "Reply-To"))))
        if list_id:
            self._fixed.append(("List-Id", _list_id(list_id)))
        if feedback_id:
            self._fixed.append(("Feedback-ID", _feedback_id(feedback_id)))
        self._fixed.append(("Auto-Submitted", "auto-generated"))
        self._url = _checked_pattern(unsubscribe_url, can_sign=sign is not None)
        self._sign = sign

    def unsubscribe_url(self, operation_key: str) -> str:
        """Return the address behind the unsubscribe link of one message, or an empty string."""
        url = self._url
        if "{operation_key}" in url:
            url = url.replace("{operation_key}", quote(operation_key, safe=""))
        if self._sign and "{token}" in url:
            url = url.replace("{token}", quote(self._sign(operation_key), safe=""))
        return url

    def headers(self, operation_key: str, unsubscribe_url: str) -> tuple[tuple[str, str], ...]:
        """Return the headers of one message beside From, To and Subject, in wire order."""
        listed = []
        if unsubscribe_url:
            listed = [
                ("List-Unsubscribe", f"<{unsubscribe_url}>"),
                ("List-Unsubscribe-Post", "List-Unsubscribe=One-Click"),
            ]
        return (
            ("Date", self._date),
            ("Message-ID", message_id(operation_key, self._domain)),
            *self._fixed,
            *listed,
            ("X-Operation-Key", operation_key),
        )


def message_id(operation_key: str, domain: str) -> str:
    """Return the Message-ID of a delivery: every attempt has the same, so copies can be recognised."""
    return f"<{hashlib.sha256(operation_key.encode('utf-8')).hexdigest()[:40]}@{domain}>"


def _list_id(text: str) -> str:
    value = text if "<" in text else f"<{text}>"
    if not _LIST_ID(value):
        raise SpecError("list_id: write it like customer-digest.example.com or News <news.example.com>")
    return value


def _feedback_id(text: str) -> str:
    """Return a Feedback-ID as Gmail documents it: up to three identifiers, and a sender's of 5 to 15 characters."""
    if not _FEEDBACK_ID(text):
        raise SpecError(
            "feedback_id: write up to three identifiers and one of 5 to 15 characters for the sender, in ASCII "
            "and separated by colons, as in weekly:digest::shopnews"
        )
    return text


def _checked_pattern(pattern: str, *, can_sign: bool) -> str:
    if not pattern:
        return ""
    if not _URL(_PLACEHOLDER.sub("x", pattern)):
        raise SpecError("unsubscribe_url: must be a web address in ASCII, without spaces")
    unknown = set(_PLACEHOLDER.findall(pattern)) - {"operation_key", "token"}
    if unknown:
        raise SpecError(f"unsubscribe_url: knows {{operation_key}} and {{token}}, not {{{min(unknown)}}}")
    if "{token}" in pattern and not can_sign:
        raise SpecError("unsubscribe_url: {token} needs a signing key, and none is configured")
    return pattern

"""One mailbox in words, ``Name <address>``, read strictly and written by hand.

Writing is not left to ``email.policy``: in the Python versions this package supports, folding a long
quoted name there drops its quotes, and ``"Doe, Jo"`` becomes two recipients (CPython gh-121284).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from email.header import Header
from email.policy import SMTP
from functools import lru_cache
from typing import Any, NamedTuple

from digest_pipeline.addresses import MAX_NAME_LENGTH, Rejection, check_address, clean_line
from digest_pipeline.errors import SpecError

LINE = 76
"""Octets that a folded line should not pass: RFC 5322 says 78, RFC 2047 says 76."""

_ATOMS = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~ -]+").fullmatch
_LONG_WORD = re.compile(r"[^ ]{70}").search


class Mailbox(NamedTuple):
    """A display name (or none), a checked ASCII address and its domain."""

    name: str
    address: str
    domain: str

    def __str__(self) -> str:
        return f"{quoted(self.name)} <{self.address}>" if self.name else self.address


@lru_cache(maxsize=64)
def parse_mailbox(text: str, field: str) -> Mailbox:
    """Return the one mailbox that ``text`` names. Raises SpecError naming ``field``.

    A comma in an unquoted name makes two mailboxes, which is an error here and not a second sender.
    """
    if clean_line(text) != text.strip():
        raise SpecError(f"{field}: holds control characters or line breaks")
    header = SMTP.header_factory(field, text)
    found: Sequence[Any] = getattr(header, "addresses", ())
    if len(found) != 1 or header.defects or len(found[0].display_name) > MAX_NAME_LENGTH:
        raise SpecError(
            f'{field}: write exactly one mailbox, like Shop News <news@example.com> or "News, Inc" <news@example.com>'
        )
    address = check_address(found[0].addr_spec)
    if isinstance(address, Rejection) or address.needs_smtputf8:
        raise SpecError(f"{field}: not an address that every provider can send from")
    return Mailbox(found[0].display_name, address.value, address.ascii_domain)


def quoted(name: str) -> str:
    """Return a display name as a phrase: itself where that is unambiguous, else a quoted string."""
    if _ATOMS(name):
        return name
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def header_mailbox(field: str, name: str, address: str) -> str:
    """Return the header line of one mailbox, folded, without its end; only the address may be non-ASCII."""
    if not name:
        return f"{field}: {address}"
    phrase = quoted(name) if _stands_as_it_is(name) else _encoded(field, name, "utf-8")
    line = f"{field}: {phrase}"
    fits = len(line) - (line.rfind("\n") + 1) + len(address) + 3 <= LINE
    return f"{line} <{address}>" if fits else f"{line}\r\n <{address}>"


def header_text(field: str, text: str) -> str:
    """Return the header line of free text, folded and encoded as RFC 2047 asks, without its end."""
    plain = _stands_as_it_is(text) and not _LONG_WORD(text)
    return f"{field}: {_encoded(field, text, 'us-ascii' if plain else 'utf-8')}"


def _stands_as_it_is(text: str) -> bool:
    return text.isascii() and "=?" not in text  # "=?" would be read as the start of an encoded word


def _encoded(field: str, text: str, charset: str) -> str:
    return Header(text, charset, maxlinelen=LINE, header_name=field).encode(linesep="\r\n")

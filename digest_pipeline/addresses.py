"""Names and addresses as a mail may carry them.

Sources hold control characters, half a surrogate pair, ``Doe, Jo`` and addresses with a trailing
dot. What leaves this module is safe to store, identically on SQLite and PostgreSQL, and to put into
one header of one message to one person.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from enum import StrEnum
from typing import NamedTuple

import idna
from email_validator import SPECIAL_USE_DOMAIN_NAMES, validate_email

MAX_ADDRESS_LENGTH = 254
"""Octets: RFC 5321 4.5.3.1.3 with errata 1690."""

MAX_NAME_LENGTH = 100

_LINE_BREAKS = dict.fromkeys([0x0B, 0x0C, 0x0D, 0x85], "\n")
_CONTROLS: dict[int, str | None] = dict.fromkeys([*range(0x09), *range(0x0E, 0x20), *range(0x7F, 0xA0)])
_CLEAN_TEXT = _CONTROLS | _LINE_BREAKS
_ASCII_TO_CHANGE = bytes(code for code in _CLEAN_TEXT if code < 0x80)
_C1_IN_UTF8 = re.compile(rb"\xc2[\x80-\x9f]").search
# Bidirectional overrides can make one name look like another; nothing in a name needs them.
_BIDI = dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)])
_ADDRESS_LIKE = re.compile(r"\S[@\uff20\ufe6b]\S").search

# Possessive quantifiers: a near miss fails at once instead of being tried in every other way.
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]++"
_LABEL = r"(?!..--)[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?+"
_PLAIN = re.compile(rf"{_ATOM}(?:\.{_ATOM})*+@((?:{_LABEL}\.)++([A-Za-z]{{2,63}}))").fullmatch
_REFUSED_TLDS = {name.rpartition(".")[2] for name in SPECIAL_USE_DOMAIN_NAMES} - {"test"}


class AddressProblem(StrEnum):
    """Why a customer can't be written to; also the exclusion reason in the manifest's counts."""

    MISSING = "missing_address"
    INVALID = "invalid_address"
    UNSUPPORTED = "unsupported_address"


class Address(NamedTuple):
    """An address that can be sent to.

    ``value`` goes into the envelope and the To header: the local part as the source has it (NFC),
    the domain as lower-case A-labels without a trailing dot. ``needs_smtputf8`` is true for a local
    part outside ASCII, which some gateways can't carry.
    """

    value: str
    ascii_domain: str
    needs_smtputf8: bool


class Rejection(NamedTuple):
    """An address that no gateway is ever given."""

    reason: AddressProblem


_MISSING = Rejection(AddressProblem.MISSING)
_INVALID = Rejection(AddressProblem.INVALID)
_UNSUPPORTED = Rejection(AddressProblem.UNSUPPORTED)


def check_address(raw: str | None) -> Address | Rejection:
    """Return the address to send to, or why there is none; never raises.

    Surrounding spaces and one trailing dot of the domain are dropped. Quoted local parts and address
    literals are valid mail but unsupported: adapters and JSON APIs disagree about where such a local
    part ends, and a message could leave for another domain.
    """
    address = (raw or "").strip(" ")
    if not address:
        return _MISSING
    match = _PLAIN(address)
    if match and len(address) <= MAX_ADDRESS_LENGTH:
        domain, tld = match[1].lower(), match[2].lower()
        if tld not in _REFUSED_TLDS and len(domain) <= 253:
            return Address(address[: match.start(1)] + domain, domain, False)
    return _check_thoroughly(address)


def _check_thoroughly(address: str) -> Address | Rejection:
    if len(address) > MAX_ADDRESS_LENGTH + 1:
        return _INVALID
    if address.startswith('"') or address.endswith("]"):
        return _UNSUPPORTED
    try:
        # test_environment admits the reserved names .test and .example, and asks no DNS.
        found = validate_email(address.removesuffix("."), test_environment=True)
    except ValueError:  # EmailNotValidError, and what its IDNA library may raise beside it
        return _INVALID
    local = unicodedata.normalize("NFC", address.rpartition("@")[0])
    domain = found.ascii_domain.lower()
    return Address(f"{local}@{domain}", domain, found.smtputf8)


def normalise_address(value: str) -> str:
    """Return the form under which two spellings of an address are the same mailbox.

    The only normalisation for suppression, deduplication and matching provider events: local part
    case-folded, domain as lower-case A-labels, trailing dot dropped. Takes any string, never raises
    and is idempotent; the result is for comparing, not for sending.
    """
    local, at, domain = value.lstrip(" \t\r\n").rstrip(" \t\r\n.").rpartition("@")
    if value.isascii():
        return f"{local}{at}{domain}".lower()
    return f"{_fold(local)}{at}{_ascii_domain(domain)}"


def address_hash(value: str) -> str:
    """Return the SHA-256 of the normalised address, in hex: what outlives an erased address."""
    return hashlib.sha256(normalise_address(value).encode("utf-8")).hexdigest()


def _fold(text: str) -> str:
    # NFD first, as Unicode's canonical caseless matching does: some marks fold only when apart.
    folded = unicodedata.normalize("NFD", _join_surrogates(text)).casefold()
    return unicodedata.normalize("NFC", folded)


def _ascii_domain(domain: str) -> str:
    if len(domain) > 253:  # idna takes time that is quadratic in the length
        return _fold(domain)
    try:
        encoded = idna.encode(domain, uts46=True, std3_rules=False, transitional=False)
        return encoded.decode("ascii").lower().rstrip(".")  # an ideographic full stop ends as a dot, too
    except ValueError:
        return _fold(domain)


def clean_text(value: str) -> str:
    """Return text that SQLite and PostgreSQL store as the same bytes: NFC, without control characters.

    Tabs and line ends stay, every kind of line end as LF. Half a surrogate pair becomes U+FFFD.
    """
    if _is_clean(value):
        return value
    return unicodedata.normalize("NFC", _join_surrogates(value).replace("\r\n", "\n").translate(_CLEAN_TEXT))


def _is_clean(value: str) -> bool:
    # str.translate takes a millisecond for a page outside ASCII; this takes a few hundredths.
    try:
        data = value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    if len(data.translate(None, _ASCII_TO_CHANGE)) != len(data):
        return False
    return value.isascii() or (not _C1_IN_UTF8(data) and unicodedata.is_normalized("NFC", value))


def _join_surrogates(value: str) -> str:
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def clean_line(value: str) -> str:
    """Return clean text on one line: line breaks and runs of white space become one space.

    Bidirectional overrides go, too.
    """
    return " ".join(clean_text(value.translate(_BIDI)).split())


def clean_name(value: str | None) -> str:
    """Return a display name that is safe in a header, or an empty one.

    One line of at most 100 characters, cut between graphemes. A name that holds an address is
    dropped: beside another address it would look like the recipient.
    """
    name = clean_line(value or "")
    if _ADDRESS_LIKE(name):
        return ""
    return name if len(name) <= MAX_NAME_LENGTH else name[: _cut(name, MAX_NAME_LENGTH)].rstrip()


def _cut(text: str, limit: int) -> int:
    """Return the last place up to ``limit`` where no character belongs to the one before it."""
    for place in range(limit, 0, -1):
        if not _joins(text[place - 1], text[place]):
            return place
    return limit


def _joins(before: str, after: str) -> bool:
    if before == "\u200d" or after == "\u200d" or "\U0001f3fb" <= after <= "\U0001f3ff":
        return True
    if "\U000e0020" <= after <= "\U000e007f" or unicodedata.category(after).startswith("M"):
        return True
    # Flags are pairs of regional indicators. Cutting before the whole run is simpler than counting.
    return all("\U0001f1e6" <= letter <= "\U0001f1ff" for letter in (before, after))

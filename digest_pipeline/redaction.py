"""The secrets that this process knows, and taking them out of whatever it is about to say.

Nothing here is a licence to log secrets: gateways and errors hold none in the first place. It is for texts
that others write: a library's debug line, an exception that quotes a request, a traceback.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote, quote_plus, unquote

HIDDEN = "<secret>"

_NAMES = re.compile(r"SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|_KEYS?\Z").search
_IN_URL = re.compile(r"://[^/@\s:]*:([^/@\s]+)@|[?&](?:password|sslpassword|token|secret|api_key)=([^&\s]+)")
_HEADERS = re.compile(
    r"\b((?:proxy-)?authorization|(?:set-)?cookie|api-key|[a-z-]*-(?:signature|token|api-key|secret))"
    r"([\"']?\s*[:=,]\s*[bu]?[\"']?)(?!<secret>)[^\r\n\"']+",
    re.I,
)
_SHORTEST = 8
_SHORTEST_ODD = 4
"""Characters of a secret with more than letters in it; a shorter one cannot be told from ordinary text."""
_LIKE_A_WORD = re.compile(r"[A-Za-z]{1,11}").fullmatch

_patterns: dict[str, str] = {}
_found: re.Pattern[str] | None = None


def keep_secret(*values: str) -> None:
    """Never say these again, in any of the forms in which a text can hold them."""
    global _found
    new = [value.strip() for value in values if _can_be_told(value.strip())]
    if all(value in _patterns for value in new):
        return
    for value in new:
        listed = "|".join(re.escape(form) for form in forms(value))
        # A password such as "postgres" must not eat a part of "postgresql".
        _patterns[value] = (
            rf"(?<![A-Za-z0-9_])(?:{listed})(?![A-Za-z0-9_])" if _LIKE_A_WORD(value) else listed
        )
    _found = re.compile("|".join(_patterns[value] for value in sorted(_patterns, key=len, reverse=True)))


def keep_environment(environment: Mapping[str, str]) -> None:
    """Never say what variables hold that are named like secrets, nor the passwords in any URL."""
    for name, value in environment.items():
        if _NAMES(name):
            keep_secret(value, *re.split(r"[\s,]+", value), *value.split(":", 1)[1:])
        keep_passwords_of(value)


def keep_passwords_of(url: str) -> None:
    """Never say the password that stands in a URL, neither as it stands there nor decoded."""
    for match in _IN_URL.finditer(url):
        written = match[1] or match[2]
        keep_secret(written, unquote(written))


def redact(text: str) -> str:
    """Return a text without the secrets that are known, and without headers that authenticate."""
    if _found is not None:
        text = _found.sub(HIDDEN, text)
    return _HEADERS.sub(rf"\1\2{HIDDEN}", text)


def forms(value: str) -> list[str]:
    """Return how a text can hold a value, longest first: as it is, quoted, escaped, URL-encoded, in base64."""
    data = value.encode("utf-8", "replace")
    plain = {value, repr(value)[1:-1], repr(data)[2:-1], json.dumps(value)[1:-1], html.escape(value)}
    encoded = {quote(value, errors="replace"), quote(value, safe="", errors="replace")}
    encoded.add(quote_plus(value, errors="replace"))
    encoded |= {re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), one) for one in encoded}
    return sorted(plain | encoded | set(_in_base64(data)), key=len, reverse=True)


def _in_base64(data: bytes) -> Iterator[str]:
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        whole = encode(data).decode()
        yield from (whole, whole.rstrip("="))
        # Inside of something longer, such as "user:password": what does not depend on its neighbours.
        for before, skipped in ((0, 0), (1, 2), (2, 3)):
            inside = encode(b"\0" * before + data).decode()[skipped : (before + len(data)) * 8 // 6]
            if len(inside) >= _SHORTEST:
                yield inside


def _can_be_told(value: str) -> bool:
    return len(value) >= _SHORTEST or (len(value) >= _SHORTEST_ODD and not value.isalpha())

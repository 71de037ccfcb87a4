"""Making a provider's text safe to store and to show."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from digest_pipeline.redaction import forms

MAX_DETAIL = 200
_MAX_READ = 1000
"""Characters looked at: some of the patterns take time quadratic in the length."""

_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # User and password of a URL, and everything behind its path: queries carry tokens.
    (re.compile(r"\b([a-z][a-z0-9+.-]{1,15}://)[^\s/?#\"'<>]*@", re.I), r"\1<credentials>:"),
    (re.compile(r"\b([a-z][a-z0-9+.-]{1,15}://[^\s?#\"'<>]*)[?#][^\s\"'<>]*", re.I), r"\1?<query>"),
    (re.compile(r"\b(Bearer|Basic|Token)\s+[^\s\"',;]+", re.I), r"\1 <token>"),
    # The scheme, not our own command: name=value pairs, quoted or not, to the end of the line.
    (re.compile(r"\b(Digest)\s+\w+=.*", re.I), r"\1 <token>"),
    (
        re.compile(
            r"((?:api|access|secret|auth|signing)?[-_ ]?(?:key|token|secret|password|passwd|pwd|signature|cookie)"
            r"[\"']?\s*[:=]\s*[\"']?)[^\s\"',;}]+",
            re.I,
        ),
        r"\1<token>",
    ),
    (re.compile(r"\"[^\"@]{0,64}@?[^\"@]{0,64}\"(?:@|%40)\S+"), "<address>"),
    # Keys of the usual vendors, JWTs, and anything long that looks drawn at random.
    (re.compile(r"\b(?:re|sk|pk|rk|key|whsec|xkeysib|SG|AKIA)[-_.][A-Za-z0-9_\-.]{8,}"), "<token>"),
    (re.compile(r"\beyJ[A-Za-z0-9_\-.]{10,}"), "<token>"),
    (re.compile(r"[A-Za-z0-9+/_=-]{32,}"), "<token>"),
)

_WORD = re.compile(r"[^\s<>()\[\]{},;:\"']+")


def sanitise(detail: str, hide: Iterable[str] = ()) -> str:
    """Return one line of at most 200 characters without addresses, tokens or URL credentials.

    ``hide`` are texts known to be secret or personal (the API key, the recipient, the name); they are
    removed as they are, URL-encoded and in base64. What can't be told apart is removed rather than
    kept.
    """
    text = unicodedata.normalize("NFKC", detail[:_MAX_READ])
    for word in hide:
        for form in _forms(word):
            text = text.replace(form, "<hidden>")
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if len(detail) > _MAX_READ:
        text = text.rpartition(" ")[0]  # the cut may have left half an address
    for pattern, put in _PATTERNS:
        text = pattern.sub(put, text)
    text = _WORD.sub(_without_address, text)
    return text if len(text) <= MAX_DETAIL else text[: MAX_DETAIL - 1].rstrip() + "…"


def _without_address(word: re.Match[str]) -> str:
    return "<address>" if "@" in word[0] or "%40" in word[0] else word[0]


def _forms(word: str) -> list[str]:
    if len(word) < 3:
        return []  # too short to be told from ordinary text
    return [unicodedata.normalize("NFKC", word), *forms(word)]

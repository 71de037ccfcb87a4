"""Operation keys as providers can carry them: in metadata, a custom id, a tag.

A key may have 256 characters and hold ``:``, ``/``, ``%`` and ``#``; providers allow fewer. What
doesn't fit becomes a digest, under a mark that starts no key and no encoded one, so a reference is
the same for a key for ever and of no other key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

DIGEST_MARK = "sha256-"
"""Starts a reference that is the SHA-256 of its key, in hex: 71 characters, all of ``a-z0-9-``."""

_ENCODED_MARK = "k-"


def reference(operation_key: str, limit: int) -> str:
    """Return the key itself, or its digest where it is longer than ``limit`` (at least 71)."""
    return operation_key if len(operation_key) <= limit else digest_reference(operation_key)


def tag(operation_key: str, limit: int) -> str:
    """Return the key in ``A-Za-z0-9_-`` alone, or its digest where that is longer than ``limit``."""
    encoded = base64.urlsafe_b64encode(operation_key.encode("utf-8")).decode("ascii").rstrip("=")
    fits = len(_ENCODED_MARK) + len(encoded) <= limit
    return _ENCODED_MARK + encoded if fits else digest_reference(operation_key)


def digest_reference(operation_key: str) -> str:
    """Return the reference of a key that is too long."""
    return DIGEST_MARK + hashlib.sha256(operation_key.encode("utf-8")).hexdigest()


def key_of(text: str) -> str | None:
    """Return the operation key that a reference or a tag holds; None for a digest or an unreadable tag.

    A digest can be compared with ``digest_reference`` of the keys in question.
    """
    if text.startswith(DIGEST_MARK):
        return None
    # Every key holds a colon or starts with "#", and a tag does neither.
    if not text.startswith(_ENCODED_MARK) or ":" in text:
        return text or None
    encoded = text.removeprefix(_ENCODED_MARK)
    try:
        return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode("utf-8")
    except (binascii.Error, ValueError):
        return None

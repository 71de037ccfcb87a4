"""What the provider modules share: the request as it came, and how to look at one without being fooled."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from digest_pipeline.gateways.references import DIGEST_MARK, key_of
from digest_pipeline.ledger.event_messages import Event

MICROS = 1_000_000


@dataclass(frozen=True, slots=True)
class Posted:
    """One request. ``headers`` by their names in lower case; ``now``: seconds since 1970."""

    headers: Mapping[str, str]
    body: bytes
    peer: str
    now: float


class RefusedError(Exception):
    """The request is not taken: ``status`` and a constant word on why, without anything from it."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


Reader = Callable[[Posted], list[Event]]
"""Returns the events of an authentic request, in none of them anything but identities; raises RefusedError."""

UNAUTHENTIC = "not authentic"


def require_fresh(stamp: float, now: float, *, past: float, future: float) -> None:
    """Refuse a signed instant that is too old, or ahead: apart, or the window would be twice as long."""
    if stamp < now - past:
        raise RefusedError(400, "too old")
    if stamp > now + future:
        raise RefusedError(400, "from the future")


def require_basic(posted: Posted, allowed: Sequence[str]) -> None:
    """Refuse a request without one of these ``user:password`` pairs."""
    scheme, _, encoded = posted.headers.get("authorization", "").partition(" ")
    try:
        given = base64.b64decode(encoded.strip(), validate=True) if scheme.lower() == "basic" else b""
    except (binascii.Error, ValueError):
        given = b""
    require_one_of(given, [pair.encode() for pair in allowed])


def require_one_of(given: bytes, allowed: Sequence[bytes]) -> None:
    """Refuse what equals none of these; takes as long whichever it is."""
    found = False
    for one in allowed:
        found |= hmac.compare_digest(hashlib.sha256(given).digest(), hashlib.sha256(one).digest())
    if not found:
        raise RefusedError(401, UNAUTHENTIC)


def json_of(data: bytes | str) -> Any:
    """Return the JSON value of a body. Raises RefusedError for anything else."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise RefusedError(400, "not JSON") from None


def objects_of(data: bytes) -> list[dict[str, Any]]:
    """Return the objects of a body that is one, or a list of them."""
    found = json_of(data)
    return [one for one in (found if isinstance(found, list) else [found]) if isinstance(one, dict)]


def object_in(value: Any, name: str) -> dict[str, Any]:
    """Return the object that a field holds; an empty one for anything else."""
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def text_in(value: Any, name: str) -> str | None:
    """Return the text that a field holds (a number as text); None for anything else, or nothing."""
    found = value.get(name) if isinstance(value, dict) else None
    if isinstance(found, bool) or not isinstance(found, str | int):
        return None
    return stored(str(found))


def stored(text: str) -> str | None:
    """Return a text as both databases keep it: at most 500 characters, all of them printable; or None."""
    return text if text and len(text) <= 500 and text.isprintable() else None


def named_value(pairs: Any, name: str) -> str | None:
    """Return the value of a name in a list of ``{name, value}``, or in an object; whatever the case."""
    if isinstance(pairs, dict):
        pairs = [{"name": key, "value": value} for key, value in pairs.items()]
    for pair in pairs if isinstance(pairs, list) else []:
        if isinstance(pair, dict) and str(pair.get("name", "")).lower() == name.lower():
            return text_in(pair, "value")
    return None


KEY_NAME = "operation_key"
"""Under which our gateways put the key into tags, metadata and variables."""


def key_in(*references: str | None) -> str | None:
    """Return the operation key that the first of these holds: itself, decoded, or the digest of a long one."""
    for text in references:
        if text is None:
            continue
        key = text if text.startswith(DIGEST_MARK) else key_of(text)
        if key is not None and stored(key):
            return key
    return None


def epoch(value: Any) -> int | None:
    """Return seconds since 1970 (a number or its text) in microseconds; None for anything else."""
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return int(seconds * MICROS) if 0 < seconds < 1e11 else None


def iso(value: Any) -> int | None:
    """Return an ISO 8601 instant in microseconds; None for anything else."""
    try:
        found = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * MICROS)


def identity_of(item: Mapping[str, Any]) -> str:
    """Return an identity for an event whose provider gives it none: the hash of all that it says."""
    text = json.dumps(item, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

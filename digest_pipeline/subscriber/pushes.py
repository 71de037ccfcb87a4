"""A push as it comes: one shape, read strictly."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from digest_pipeline.keys import MAX_KEY_LENGTH

FIELDS = frozenset({"key", "digest", "period", "tenant", "customer_id", "payload_hash"})
_HASH = re.compile(r"[0-9a-f]{64}").fullmatch
_KEY = re.compile(r"[A-Za-z0-9._~%:/#-]+").fullmatch
_MOST_TEXT = 1000


class NoPushError(Exception):
    """The body is no push. Its text is constant."""


@dataclass(frozen=True, slots=True)
class Push:
    """One frozen message that is due. ``digest`` is None where the key is too long to name it."""

    key: str
    payload_hash: str
    digest: str | None
    tenant: str | None


def read_push(body: bytes) -> Push:
    """Return what a body says. Raises NoPushError for anything but a push of ours."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        raise NoPushError("not JSON") from None
    if not isinstance(said, dict) or said.keys() != FIELDS:
        raise NoPushError("other fields than a push has")
    key, payload_hash = said["key"], said["payload_hash"]
    if not isinstance(key, str) or len(key) > MAX_KEY_LENGTH or not _KEY(key):
        raise NoPushError("not an operation key")
    if not isinstance(payload_hash, str) or not _HASH(payload_hash):
        raise NoPushError("not a payload hash")
    names = [said[name] for name in ("digest", "period", "tenant", "customer_id")]
    if not all(name is None or (isinstance(name, str) and len(name) <= _MOST_TEXT) for name in names):
        raise NoPushError("a field that is no text")
    return Push(key, payload_hash, said["digest"], said["tenant"])

"""The frozen message: the bytes that every attempt of one operation key sends."""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import asdict, dataclass

from digest_pipeline.errors import LedgerIntegrityError


@dataclass(frozen=True, slots=True)
class Message:
    """One rendered digest. ``headers`` are (name, value) pairs in wire order, ASCII names.

    ``to_name`` is a display name or empty; the recipient's address is not part of it: it lives in
    the manifest, is erased apart, and is covered by a hash of its own.
    """

    sender: str
    to_name: str
    subject: str
    text: str
    html: str
    headers: tuple[tuple[str, str], ...] = ()
    boundary: str = ""

    def to_bytes(self) -> bytes:
        """Return the canonical form: UTF-8 JSON with sorted keys, the same on every machine."""
        text = json.dumps(asdict(self), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        return text.encode("utf-8")

    @classmethod
    def from_bytes(cls, data: bytes) -> Message:
        """Return the message whose canonical form is ``data``."""
        fields = json.loads(data)
        fields["headers"] = tuple((name, value) for name, value in fields["headers"])
        return cls(**fields)


def pack(message: Message) -> tuple[bytes, str]:
    """Return the document to store (compressed) and the payload hash (of the canonical bytes)."""
    data = message.to_bytes()
    return zlib.compress(data, 1), payload_hash(data)


def unpack(document: bytes, expected_hash: str) -> Message:
    """Return the stored message. Raises LedgerIntegrityError when it is not what was frozen."""
    try:
        data = zlib.decompress(document)
    except zlib.error as error:
        raise LedgerIntegrityError("a frozen message cannot be read back") from error
    if payload_hash(data) != expected_hash:
        raise LedgerIntegrityError("a frozen message no longer has the hash it was frozen with")
    return Message.from_bytes(data)


def payload_hash(data: bytes) -> str:
    """Return the SHA-256 of canonical message bytes, in hex."""
    return hashlib.sha256(data).hexdigest()

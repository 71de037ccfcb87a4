"""A form with one file, as multipart/form-data (RFC 7578): the same bytes for the same content.

Client libraries draw a boundary at random; here a repeat is the same request, byte for byte.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping


def encoded(fields: Mapping[str, str], file_field: str, content: bytes) -> tuple[str, bytes]:
    """Return the Content-Type and the body. Values are single lines, which the callers' checks assure."""
    # Nothing can hold its own hash, so no line of the content ends the file.
    boundary = f"form-{hashlib.sha256(content).hexdigest()[:40]}"
    file = f'name="{file_field}"; filename="message.eml"\r\nContent-Type: application/octet-stream'
    parts = [_part(boundary, f'name="{name}"', value.encode("utf-8")) for name, value in fields.items()]
    end = f"--{boundary}--\r\n".encode("ascii")
    body = b"".join([*parts, _part(boundary, file, content), end])
    return f"multipart/form-data; boundary={boundary}", body


def _part(boundary: str, disposition: str, content: bytes) -> bytes:
    head = f"--{boundary}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n"
    return head.encode("ascii") + content + b"\r\n"

"""Signature Version 4 as its specification has it, to check requests by: no code of AWS's own.

https://docs.aws.amazon.com/IAM/latest/UserGuide/create-signed-request.html. For paths without anything
to encode and requests without a query, as those of an emulated API are.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from datetime import UTC, datetime, timedelta

from digest_pipeline.lab.providers.emulation import Call

ALGORITHM = "AWS4-HMAC-SHA256"
TOLERANCE = timedelta(minutes=5)

_AUTHORIZATION = re.compile(
    rf"{ALGORITHM} Credential=(?P<key>[^/, ]+)/(?P<scope>[^, ]+),\s*"
    r"SignedHeaders=(?P<headers>[a-z0-9;-]+),\s*Signature=(?P<signature>[0-9a-f]{64})"
).fullmatch
_MUST_BE_SIGNED = frozenset({"host", "x-amz-date"})


def is_signed(call: Call, key_id: str, secret: str, service: str, now: datetime) -> bool:
    """Whether a call carries a signature of about now, made with this secret over its headers and body."""
    found = _AUTHORIZATION(call.headers.get("Authorization", ""))
    stamp = call.headers.get("X-Amz-Date", "")
    if found is None or found["key"] != key_id or not _is_fresh(stamp, now):
        return False
    date, region, *rest = found["scope"].split("/")
    names = found["headers"].split(";")
    in_scope = date == stamp[:8] and rest == [service, "aws4_request"]
    if not in_scope or not set(names) >= _MUST_BE_SIGNED:
        return False
    text = "\n".join([ALGORITHM, stamp, found["scope"], _hash(_canonical(call, names))])
    expected = hmac.new(_key(secret, date, region, service), text.encode(), hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected, found["signature"])


def _is_fresh(stamp: str, now: datetime) -> bool:
    try:
        at = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return False
    return abs(now - at) <= TOLERANCE


def _canonical(call: Call, names: list[str]) -> bytes:
    headers = "".join(f"{name}:{' '.join(call.headers.get(name, '').split())}\n" for name in names)
    lines = [call.method, call.path, "", headers, ";".join(names), hashlib.sha256(call.body).hexdigest()]
    return "\n".join(lines).encode()


def _key(secret: str, *scope: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (*scope, "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()

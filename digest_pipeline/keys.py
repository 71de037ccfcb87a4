"""The identity of one delivery.

An operation key is a pure, injective function of digest, period, tenant and customer. Nothing else
ever feeds it: a run id, an attempt, a time, an address or the content in a key would make a second
mail look like a first one. Changing this construction changes identities that are already in
ledgers, so ``KEY_VERSION`` is stored there and golden tests pin the form.
"""

from __future__ import annotations

import hashlib
import re
from urllib.parse import quote

from digest_pipeline.errors import InputError

KEY_VERSION = 1
"""Stored with every manifest; a build that derives other keys must not reuse the number."""

MAX_KEY_LENGTH = 256
"""Characters. Resend, the strictest provider with a documented limit, takes 256."""

DEFAULT_TENANT = "default"

_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]+\Z").match


def operation_key(digest: str, period: str, tenant: str, customer: str) -> str:
    """Return the key of one delivery, e.g. ``customer_digest:2026-W42:customer-1842``.

    Every part is percent-encoded outside ``A-Z a-z 0-9 . _ ~ -``, so separators inside a part never
    collide with ours. The tenant is left out when it is ``default`` and precedes the customer with a
    slash otherwise. A key beyond 256 characters becomes ``#`` and the SHA-256 of the whole; ``#``
    never starts another key. Raises InputError for an empty part or one that is not valid Unicode.
    """
    who = _part("customer", customer)
    if tenant != DEFAULT_TENANT:
        who = f"{_part('tenant', tenant)}/{who}"
    key = f"{_part('digest', digest)}:{_part('period', period)}:{who}"
    if len(key) <= MAX_KEY_LENGTH:
        return key
    return "#" + hashlib.sha256(key.encode("ascii")).hexdigest()


def _part(name: str, value: str) -> str:
    if not value:
        raise InputError(f"an operation key needs a {name}; it was empty")
    if _UNRESERVED(value):
        return value
    try:
        return quote(value, safe="", errors="strict")
    except UnicodeEncodeError as error:
        raise InputError(f"the {name} of an operation key is not valid Unicode") from error

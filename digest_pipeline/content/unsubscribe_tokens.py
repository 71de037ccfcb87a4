"""The token of an unsubscribe link: the operation key, signed, so that nobody can unsubscribe somebody else.

A token has no time in it and never runs out: it is part of the frozen bytes, and people unsubscribe with
mail that is months old. A key that is retired ends the links that it signed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from itsdangerous import BadData, URLSafeSerializer

MAX_TOKEN = 1_024
"""Characters. A key of 256 and its signature take fewer than 420."""


class UnsubscribeTokens:
    """Makes and reads tokens. ``keys``: newest first; the newest signs, each of them is still read."""

    def __init__(self, keys: Sequence[str]) -> None:
        if not keys:
            raise ValueError("at least one key is needed")
        self._serializer = URLSafeSerializer(
            list(reversed(keys)),  # itsdangerous wants the oldest first
            salt="digest_pipeline.unsubscribe",
            signer_kwargs={"digest_method": hashlib.sha256, "key_derivation": "hmac"},
        )

    def sign(self, operation_key: str) -> str:
        """Return the token of a message: the same for the same newest key."""
        return self._serializer.dumps(operation_key)

    def read(self, token: str) -> str | None:
        """Return the operation key of a token that one of the keys has signed; None for any other text."""
        if len(token) > MAX_TOKEN:
            return None
        try:
            found = self._serializer.loads(token)
        except BadData:
            return None
        return found if isinstance(found, str) else None

    def __repr__(self) -> str:
        return "UnsubscribeTokens(...)"

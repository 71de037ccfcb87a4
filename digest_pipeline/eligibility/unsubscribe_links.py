"""What signs the unsubscribe links of a digest."""

from __future__ import annotations

from collections.abc import Callable

from digest_pipeline.content.unsubscribe_tokens import UnsubscribeTokens
from digest_pipeline.errors import SpecError
from digest_pipeline.settings import unsubscribe_keys


def signer_of(unsubscribe_url: str) -> Callable[[str], str] | None:
    """Return what signs the links of an unsubscribe address; None for one without ``{token}``.

    Raises SpecError where it needs a key and the environment has none.
    """
    if "{token}" not in unsubscribe_url:
        return None
    keys = unsubscribe_keys()
    if not keys:
        raise SpecError(
            "content.unsubscribe_url: {token} is signed with a key from DIGEST_UNSUBSCRIBE_KEYS, which is not "
            "set; set it to a random text of at least 16 characters, the same on the host that takes the requests"
        )
    return UnsubscribeTokens(keys).sign

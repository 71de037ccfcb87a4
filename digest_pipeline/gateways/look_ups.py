"""What a list says that a provider was asked for: the same rule for everybody who can be asked."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from digest_pipeline.gateways.http import Answer, retry_after
from digest_pipeline.outcomes import Absent, Found, LookUp, LookUpFailed


def look_up_in(
    answer: Answer,
    items: Any,
    is_ours: Callable[[dict[str, Any]], bool],
    id_of: Callable[[dict[str, Any]], str | None],
    now: datetime,
) -> LookUp:
    """Return what a look-up says. ``items``: its list, or whatever else stood in its place.

    Only an empty list is an absence. Entries about other messages are no answer: the question was not
    understood. Two of ours are two copies.
    """
    if answer.status != 200 or not isinstance(items, list):
        wait = retry_after(answer, now) if answer.status in (429, 503) else None
        return LookUpFailed(f"the look-up answered {answer.status} without a list", wait)
    if not items:
        return Absent()
    ours = [one for one in items if isinstance(one, dict) and is_ours(one)]
    if not ours:
        return LookUpFailed("the look-up answered about other messages")
    return Found(id_of(ours[0]), copies=len(ours))

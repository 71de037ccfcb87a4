"""Whose turn it is to be claimed from, and where each manifest was left."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

LOOK_FOR_UNKNOWN = 0.5
"""Seconds between searches for unknown rows that may be sent again, while others are due."""


@dataclass(slots=True)
class Turns:
    """Whose turn it is: manifests one after another, each with its place in the open-work index.

    A held-open snapshot elsewhere keeps settled rows' index entries alive; starting past them keeps
    a claim as cheap at the end as at the start. ``rewind`` looks at everything once more.
    """

    manifest_ids: Sequence[int]
    cursors: dict[int, tuple[int, int]] = field(default_factory=dict)
    first: int = 0
    looked: dict[tuple[int, bool], float] = field(default_factory=dict)
    """When each manifest was searched for unknown rows, and for whole batches of them."""
    skipped: bool = False

    def order(self) -> list[int]:
        """Return the manifests, another one first each time."""
        ids = list(self.manifest_ids)
        self.first = (self.first + 1) % max(1, len(ids))
        return ids[self.first :] + ids[: self.first]

    def rewind(self) -> bool:
        """Forget the places; returns whether there were any."""
        had = bool(self.cursors) or self.skipped
        self.cursors.clear()
        self.looked.clear()
        self.skipped = False
        return had

    def time_for_unknown(self, manifest_id: int, *, batches: bool = False) -> bool:
        """Whether to search for unknown rows now: nearly always there are none, and it is a query."""
        now, place = time.monotonic(), (manifest_id, batches)
        if now - self.looked.get(place, -math.inf) < LOOK_FOR_UNKNOWN:
            self.skipped = True
            return False
        self.looked[place] = now
        return True

    def look_for_batches_again(self, manifest_id: int) -> None:
        """Search the next time, too: where there was one batch, there may be more."""
        self.looked.pop((manifest_id, True), None)

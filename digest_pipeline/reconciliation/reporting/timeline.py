"""When a period's deliveries were accepted, in steps of a width that people read easily."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from digest_pipeline.instants import as_datetime
from digest_pipeline.ledger import measures

MICROS = 1_000_000
MOST_STEPS = 60
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_WIDTHS = (
    *(1, 2, 5, 10, 15, 30),
    *(_MINUTE * n for n in (1, 2, 5, 10, 15, 30)),
    *(_HOUR * n for n in (1, 2, 3, 6, 12)),
    *(_DAY * n for n in (1, 2, 7, 14, 28, 91, 364)),
)


@dataclass(frozen=True, slots=True)
class Timeline:
    """``counts[n]`` deliveries were accepted in the n-th ``width`` from ``start`` (UTC)."""

    start: datetime
    width: timedelta
    counts: tuple[int, ...]

    @property
    def per(self) -> str:
        """The width in words: ``second``, ``5 minutes``."""
        seconds = int(self.width.total_seconds())
        for size, name in ((_DAY, "day"), (_HOUR, "hour"), (_MINUTE, "minute"), (1, "second")):
            if seconds % size == 0:
                count = seconds // size
                return name if count == 1 else f"{count} {name}s"
        raise AssertionError("whole seconds only")


def read_timeline(conn: Connection, ids: Sequence[int]) -> Timeline | None:
    """Return the sends of some manifests over time; None when there are none."""
    between = measures.reached_between(conn, ids)
    if between is None:
        return None
    first, last = between
    width = width_for(first, last)
    origin = first // width * width
    found = measures.reached_per(conn, ids, origin, width)
    counts = tuple(found.get(step, 0) for step in range((last - origin) // width + 1))
    start = as_datetime(origin)
    return Timeline(start, timedelta(microseconds=width), counts)


def width_for(first: int, last: int) -> int:
    """Return the narrowest readable width, in microseconds, that needs at most sixty steps."""
    for seconds in _WIDTHS:
        width = seconds * MICROS
        if (last - first // width * width) // width < MOST_STEPS:
            return width
    years = _WIDTHS[-1] * MICROS
    return years * ((last - first) // (years * (MOST_STEPS - 1)) + 1)

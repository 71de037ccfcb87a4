"""Guarding the period: content rows that carry a date must carry one of the period's days."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any

from digest_pipeline.errors import SourceError
from digest_pipeline.periods import Period
from digest_pipeline.spec import Digest


def require_dated_inside(
    digest: Digest, period: Period, rows: Mapping[str, Sequence[Mapping[str, Any]]]
) -> None:
    """Raise SourceError for a content row outside the period, in the column that ``dated_by`` names.

    A query that lost its bounds mails all-time totals and looks right: nothing of it may be sealed.
    """
    column = digest.content.dated_by
    if not column:
        return
    for items in rows.values():
        for row in items:
            if column not in row:
                raise SourceError(f"content.dated_by: the content SQL returns no column {column!r}")
            if not _is_inside(row[column], period):
                raise SourceError(
                    f"the content SQL returned a row whose {column} is not in {period.label}; "
                    "does it still bind :period_start and :period_end?"
                )


def _is_inside(value: Any, period: Period) -> bool:
    match value:
        case datetime() if value.tzinfo is not None:
            return period.start <= value < period.end
        case datetime():
            day = value.date()
        case date():
            day = value
        case str():
            try:
                day = date.fromisoformat(value[:10])
            except ValueError:  # whose text would quote the content
                return False
        case _:
            return False
    return period.first_day <= day <= period.last_day

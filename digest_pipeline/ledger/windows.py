"""When a delivery may be sent: one condition, for claims and for everything that must agree with them."""

from __future__ import annotations

from sqlalchemy import ColumnElement, func, or_

from digest_pipeline.ledger.dialects import ledger_now
from digest_pipeline.ledger.schema import delivery, manifest


def window_is_open() -> ColumnElement[bool]:
    """Whether a delivery's window has not closed, or somebody permitted it, or its manifest, to be late.

    Never NULL: the opposite of "closed, and no permission" must be true and not unknown. Needs both
    tables in the query.
    """
    now = ledger_now()
    return or_(
        manifest.c.window_closes_at > now,
        func.coalesce(manifest.c.late_until, 0) > now,
        func.coalesce(delivery.c.late_until, 0) > now,
    )

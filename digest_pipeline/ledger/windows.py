"""When a delivery may be sent: one condition, for claims and for everything that must agree with them."""

from __future__ import annotations

from sqlalchemy import BindParameter, ColumnElement, and_, exists, func, or_

from digest_pipeline.ledger.dialects import ledger_now
from digest_pipeline.ledger.schema import delivery, manifest, pause


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


def is_out_of_doubt() -> ColumnElement[bool]:
    """Whether a manifest's rows are what they seem: not those of a restored backup that nobody doubted yet.

    Until then a row that waits may have been sent by the lost copy: nothing may claim it, and nothing may
    end it as unsent.
    """
    return or_(manifest.c.in_doubt_from_at.is_(None), manifest.c.doubted_at.is_not(None))


def is_not_paused(gateway: BindParameter[str]) -> ColumnElement[bool]:
    """Whether nobody has paused a delivery's digest, its tenant, or the gateway it would go through."""
    tenant = manifest.c.digest.concat("/").concat(manifest.c.tenant)
    return ~exists().where(
        or_(
            and_(pause.c.kind == "digest", pause.c.name == manifest.c.digest),
            and_(pause.c.kind == "tenant", pause.c.name == tenant),
            and_(pause.c.kind == "gateway", pause.c.name == gateway),
        )
    )

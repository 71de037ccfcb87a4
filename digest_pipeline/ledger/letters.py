"""Deliveries a person decides about: dead letters and unknowns, by key. No addresses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, exists, or_, select

from digest_pipeline.ledger.schema import (
    attempt,
    content,
    delivery,
    ledger_identity,
    manifest,
    manifest_entry,
)
from digest_pipeline.states import DEAD_LETTERS, State

_d = delivery.c
PAGE = 1_000


def dead_letters(
    conn: Connection,
    digest: str,
    period: str,
    *,
    tenant: str | None = None,
    failure_class: str | None = None,
    limit: int | None = None,
) -> list[Row[Any]]:
    """Return deliveries that stopped without a send, in key order."""
    query = _of_period(digest, period, tenant).where(_d.state.in_(sorted(DEAD_LETTERS)))
    if failure_class is not None:
        query = query.where(_d.failure_class == failure_class)
    return list(conn.execute(query.limit(limit)))


def unknowns(
    conn: Connection, digest: str, period: str, *, tenant: str | None = None, limit: int | None = None
) -> list[Row[Any]]:
    """Return deliveries nobody knows the outcome of, in key order."""
    query = _of_period(digest, period, tenant).where(_d.state == State.UNKNOWN, _d.ambiguous_at.is_not(None))
    return list(conn.execute(query.limit(limit)))


def by_keys(conn: Connection, digest: str, period: str, keys: Sequence[str]) -> dict[str, Row[Any]]:
    """Return those of the keys that are deliveries of this period."""
    found: dict[str, Row[Any]] = {}
    for start in range(0, len(keys), PAGE):
        page = _of_period(digest, period, None).where(
            manifest_entry.c.operation_key.in_(keys[start : start + PAGE])
        )
        found.update((row.operation_key, row) for row in conn.execute(page))
    return found


def _of_period(digest: str, period: str, tenant: str | None) -> Select[Any]:
    was_accepted = exists().where(
        attempt.c.manifest_id == _d.manifest_id,
        attempt.c.ordinal == _d.ordinal,
        or_(attempt.c.outcome == "accepted", attempt.c.late_outcome.in_(("accepted", "replayed"))),
    )
    has_content = exists().where(content.c.manifest_id == _d.manifest_id, content.c.ordinal == _d.ordinal)
    before_restore = exists().where(ledger_identity.c.restored_at > _d.finished_at)
    query = (
        select(
            manifest_entry.c.operation_key,
            manifest_entry.c.customer_id,
            manifest_entry.c.recipient.is_(None).label("is_erased"),
            manifest.c.tenant,
            _d.manifest_id,
            _d.ordinal,
            _d.token,
            _d.state,
            _d.failure_class,
            _d.hold_reason,
            _d.attempts,
            _d.gateway,
            _d.account,
            _d.ambiguous_at,
            _d.finished_at,
            was_accepted.label("was_accepted"),
            has_content.label("has_content"),
            before_restore.label("before_restore"),
        )
        .select_from(delivery)
        .join(
            manifest_entry,
            and_(manifest_entry.c.manifest_id == _d.manifest_id, manifest_entry.c.ordinal == _d.ordinal),
        )
        .join(manifest, manifest.c.id == _d.manifest_id)
        .where(manifest.c.digest == digest, manifest.c.period == period)
        .order_by(manifest_entry.c.operation_key)
    )
    return query if tenant is None else query.where(manifest.c.tenant == tenant)


def tenants(conn: Connection, digest: str, period: str) -> list[str]:
    """Return the tenants of a period."""
    query = select(manifest.c.tenant).where(manifest.c.digest == digest, manifest.c.period == period)
    return list(conn.execute(query.order_by(manifest.c.tenant)).scalars())

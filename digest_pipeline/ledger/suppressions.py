"""The suppression list: addresses of a tenant that are left alone, why, and until when.

One row per tenant and address hash. The claim reads it in its own transaction, so an entry counts for
everything that has not been claimed yet. Durations are microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import BigInteger, Connection, Row, distinct, func, or_, select, update

from digest_pipeline.ledger.dialects import insert_new, ledger_now, locked, rowset, rowset_value
from digest_pipeline.ledger.schema import manifest, manifest_entry, provider_event, push_receipt, suppression
from digest_pipeline.spec_suppression import Suppression
from digest_pipeline.states import SuppressionReason

_s, _v = suppression.c, provider_event.c
_MICROS_PER_DAY = 86_400_000_000
_RANK = (SuppressionReason.BOUNCED, SuppressionReason.COMPLAINED, SuppressionReason.OPTED_OUT)
REASONS = frozenset(_RANK)
"""Why an address, rather than one delivery, is left alone."""

BOUNCES = ("bounced", "rejected")
"""Kinds of provider events that can count as bounces."""


def add(
    conn: Connection,
    tenant: str,
    address_hash: str,
    reason: SuppressionReason,
    *,
    lasts: int | None,
    source: str,
    operation_key: str | None = None,
) -> bool:
    """Leave an address alone, for ``lasts`` or (None) for good; return whether that changed anything.

    An entry that still counts is never weakened: an opt-out outranks a complaint, that a bounce, and of
    two expiries the later one stays.
    """
    now = conn.execute(select(ledger_now())).scalar_one()
    expires = None if lasts is None else now + lasts
    new = {"reason": reason, "expires_at": expires, "source": source, "operation_key": operation_key}
    place = {"tenant": tenant, "address_hash": address_hash}
    if insert_new(conn, suppression, {**place, **new, "since_at": now}):
        return True
    old = _locked(conn, tenant, address_hash)
    if old.expires_at is not None and old.expires_at <= now:
        changes: dict[str, Any] = {**new, "since_at": now}
    else:
        changes = _stronger(old, new)
    if not changes:
        return False
    conn.execute(update(suppression).where(*_at(tenant, address_hash)).values(changes))
    return True


def _stronger(old: Row[Any], new: dict[str, Any]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if _RANK.index(new["reason"]) > _RANK.index(SuppressionReason(old.reason)):
        changes = {name: new[name] for name in ("reason", "source", "operation_key")}
    if old.expires_at is not None and (new["expires_at"] is None or new["expires_at"] > old.expires_at):
        changes["expires_at"] = new["expires_at"]
    return changes


def lift(conn: Connection, tenant: str, address_hash: str) -> SuppressionReason | None:
    """Let an address be written to again; return why it was not, or None where nothing stood in the way.

    The bounces so far count no more: only new ones can suppress it again.
    """
    old = _locked(conn, tenant, address_hash, required=False)
    now = conn.execute(select(ledger_now())).scalar_one()
    if old is None or (old.expires_at is not None and old.expires_at <= now):
        return None
    conn.execute(update(suppression).where(*_at(tenant, address_hash)).values(expires_at=now, lifted_at=now))
    return SuppressionReason(old.reason)


def active(conn: Connection, tenant: str | None, limit: int) -> list[Row[Any]]:
    """Return the entries that count now, newest first; of one tenant, or of all."""
    query = select(suppression).where(or_(_s.expires_at.is_(None), _s.expires_at > ledger_now()))
    if tenant is not None:
        query = query.where(_s.tenant == tenant)
    return list(conn.execute(query.order_by(_s.since_at.desc(), _s.tenant, _s.address_hash).limit(limit)))


def count_bounces(
    conn: Connection, tenant: str, address_hash: str, limits: Suppression, operation_key: str
) -> bool:
    """Suppress an address whose bounces have become too many; return whether that changed anything.

    Counted by message, over ``within_days``, since the last entry was lifted or ran out.
    """
    now = conn.execute(select(ledger_now())).scalar_one()
    since = now - _days(limits.within_days)
    old = _locked(conn, tenant, address_hash, required=False)
    if old is not None:
        ran_out = old.expires_at if old.expires_at is not None and old.expires_at <= now else 0
        since = max(since, old.lifted_at or 0, ran_out)
    counted = (
        select(_v.permanent, func.count(distinct(_v.operation_key)))
        .where(
            _v.tenant == tenant, _v.address_hash == address_hash, _v.kind.in_(BOUNCES), _v.happened_at > since
        )
        .group_by(_v.permanent)
    )
    counts: dict[bool | None, int] = {permanent: count for permanent, count in conn.execute(counted)}  # noqa: C416 - rows are no pairs
    hard, soft = counts.get(True, 0), counts.get(False, 0)
    if hard >= limits.hard_bounces:
        days = limits.hard_bounce_days
    elif hard + soft >= limits.soft_bounces:
        days = limits.soft_bounce_days
    else:
        return False
    return add(
        conn,
        tenant,
        address_hash,
        SuppressionReason.BOUNCED,
        lasts=_days(days),
        source="provider event",
        operation_key=operation_key,
    )


def suppress_refused(conn: Connection, places: Sequence[dict[str, int]], limits: Suppression) -> int:
    """Leave the addresses alone that a provider refused as suppressed or not existing; return how many.

    Places: manifest_id and ordinal. In the transaction that settles the refusals.
    """
    if not places:
        return 0
    return sum(
        add(
            conn,
            row.tenant,
            row.address_hash,
            SuppressionReason.BOUNCED,
            lasts=_days(limits.hard_bounce_days),
            source="refusal",
            operation_key=row.operation_key,
        )
        for row in _addresses(conn, places)
    )


def opt_out(conn: Connection, operation_key: str, source: str) -> bool | None:
    """Leave the recipient of a message alone for good, in the message's tenant.

    Returns whether that changed anything, and None for a key that the ledger does not know.
    """
    query = (
        select(manifest.c.tenant, manifest_entry.c.address_hash)
        .join(manifest, manifest.c.id == manifest_entry.c.manifest_id)
        .where(manifest_entry.c.operation_key == operation_key)
    )
    found = conn.execute(query).one_or_none() or _pushed_here(conn, operation_key)
    if found is None:
        return None
    return add(
        conn,
        found.tenant,
        found.address_hash,
        SuppressionReason.OPTED_OUT,
        lasts=None,
        source=source,
        operation_key=operation_key,
    )


def _pushed_here(conn: Connection, operation_key: str) -> Row[Any] | None:
    """Whom a message is about that a pipeline with a ledger of its own pushed here."""
    r = push_receipt.c
    known = r.operation_key == operation_key, r.tenant.is_not(None), r.address_hash.is_not(None)
    return conn.execute(select(r.tenant, r.address_hash).where(*known)).one_or_none()


def _addresses(conn: Connection, places: Sequence[dict[str, int]]) -> list[Row[Any]]:
    r = rowset(conn, "r", {"manifest_id": BigInteger(), "ordinal": BigInteger()})
    e = manifest_entry.c
    query = (
        select(manifest.c.tenant, e.address_hash, e.operation_key)
        .join(manifest, manifest.c.id == e.manifest_id)
        .join(r, (e.manifest_id == r.c.manifest_id) & (e.ordinal == r.c.ordinal))
        # In one order for everybody, or two groups of results could wait for each other.
        .order_by(manifest.c.tenant, e.address_hash)
    )
    return list(conn.execute(query, {"r": rowset_value(places)}))


def _locked(conn: Connection, tenant: str, address_hash: str, *, required: bool = True) -> Any:
    found = conn.execute(locked(conn, select(suppression).where(*_at(tenant, address_hash))))
    return found.one() if required else found.one_or_none()


def _at(tenant: str, address_hash: str) -> tuple[Any, Any]:
    return _s.tenant == tenant, _s.address_hash == address_hash


def _days(days: float) -> int:
    return int(days * _MICROS_PER_DAY)

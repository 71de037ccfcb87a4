"""What a person may do to the suppression list: look at it, add to it, and lift an entry. Audited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row

from digest_pipeline.addresses import Rejection, address_hash, check_address
from digest_pipeline.errors import InputError, UnknownKeyError
from digest_pipeline.keys import DEFAULT_TENANT
from digest_pipeline.ledger import audit, recipients, suppressions
from digest_pipeline.ledger.audit import Action
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.operations.decisions import require_signed
from digest_pipeline.states import SuppressionReason

MICROS_PER_DAY = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Whose:
    """One address: a customer's newest, or one that was typed. It is kept and shown as a hash only."""

    customer_id: str | None = None
    address: str | None = None

    def __repr__(self) -> str:
        return f"Whose(customer_id={self.customer_id!r})"


@dataclass(frozen=True, slots=True)
class Order:
    """Who wants what done, in which tenant (needed where there are several), and why."""

    whose: Whose
    tenant: str | None
    who: str
    reason: str


def add(ledger: Ledger, order: Order, why: SuppressionReason, days: float | None) -> bool:
    """Leave an address alone, for ``days`` or for good; False where it was suppressed as strongly already.

    Raises InputError for a tenant or an address that cannot be, UnknownKeyError for an unknown customer.
    """

    def change(conn: Connection, tenant: str, hashed: str) -> bool:
        lasts = None if days is None else int(days * MICROS_PER_DAY)
        return suppressions.add(conn, tenant, hashed, why, lasts=lasts, source="operator")

    return _changed(ledger, order, "suppress", {"suppressed": str(why), "days": days}, change)


def lift(ledger: Ledger, order: Order) -> bool:
    """Let an address be written to again, and forget its bounces so far; False where nothing suppressed it.

    What was suppressed meanwhile is not sent by this; the provider may have a list of its own.
    """

    def change(conn: Connection, tenant: str, hashed: str) -> bool:
        return suppressions.lift(conn, tenant, hashed) is not None

    return _changed(ledger, order, "lift suppression", {"lifted": True}, change)


def listed(ledger: Ledger, tenant: str | None, limit: int) -> list[Row[Any]]:
    """Return what is suppressed now, newest first; of every tenant without one."""
    with ledger.read() as conn:
        if tenant is not None:
            _require_known(tenant, recipients.tenants(conn))
        return suppressions.active(conn, tenant, limit)


def _changed(
    ledger: Ledger,
    order: Order,
    kind: str,
    effect: dict[str, Any],
    change: Callable[[Connection, str, str], bool],
) -> bool:
    require_signed("a change of the suppression list", order.who, order.reason)

    def work(conn: Connection) -> bool:
        tenant = _tenant(conn, order.tenant)
        changed = change(conn, tenant, _hash(conn, order.whose, tenant))
        if changed:
            action = Action(kind, order.who, order.reason, tenant=tenant)
            audit.record(conn, action, {**effect, "customer": order.whose.customer_id})
        return changed

    return ledger.transact(work)


def _tenant(conn: Connection, named: str | None) -> str:
    known = recipients.tenants(conn)
    if named is not None:
        _require_known(named, known)
        return named
    if set(known) - {DEFAULT_TENANT}:
        raise InputError(
            f"an address is suppressed in one tenant: name it with --tenant ({', '.join(known)})"
        )
    return DEFAULT_TENANT


def _require_known(tenant: str, known: tuple[str, ...]) -> None:
    if known and tenant not in known:
        raise InputError(f"the ledger has no tenant {tenant!r}; there are: {', '.join(known)}")


def _hash(conn: Connection, whose: Whose, tenant: str) -> str:
    if whose.customer_id is not None:
        found = recipients.newest_address_of(conn, whose.customer_id, tenant)
        if found is None:
            raise UnknownKeyError(f"no manifest of tenant {tenant} has a customer {whose.customer_id!r}")
        return found
    checked = check_address(whose.address)
    if isinstance(checked, Rejection):
        raise InputError(f"that is no address a digest could go to ({checked.reason})")
    return address_hash(checked.value)

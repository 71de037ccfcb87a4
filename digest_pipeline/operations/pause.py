"""Pausing: no new claim for a digest, a tenant or a gateway. What is under way ends as it ends."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from digest_pipeline.errors import InputError
from digest_pipeline.gateways import registry
from digest_pipeline.ledger import audit, pauses, reads
from digest_pipeline.ledger.audit import Action
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.operations.decisions import require_signed
from digest_pipeline.spec import Digest


@dataclass(frozen=True, slots=True)
class Scope:
    """What is paused: exactly one of a digest, a tenant of a digest, or a gateway."""

    digest: str | None = None
    tenant: str | None = None
    gateway: str | None = None

    @property
    def row(self) -> tuple[str, str]:
        """How the ledger names it. Raises InputError for no scope, or for two."""
        if self.gateway is not None:
            if self.digest is not None or self.tenant is not None:
                raise InputError("pause a digest, one tenant of a digest, or a gateway: not two at once")
            return "gateway", self.gateway
        if self.digest is None:
            raise InputError("name what to pause: --digest (and --tenant), or --gateway")
        return ("tenant", f"{self.digest}/{self.tenant}") if self.tenant else ("digest", self.digest)


def pause(ledger: Ledger, scope: Scope, *, who: str, reason: str) -> bool:
    """Stop new sends in a scope; False when it was paused already. Audited."""
    require_signed("a pause", who, reason)
    return ledger.transact(lambda conn: _change(conn, "pause", scope, who, reason))


def resume(ledger: Ledger, scope: Scope, *, who: str, reason: str) -> bool:
    """Let a scope send again; False when it was not paused. Audited."""
    require_signed("ending a pause", who, reason)
    return ledger.transact(lambda conn: _change(conn, "resume", scope, who, reason))


def require_known(ledger: Ledger, scope: Scope, digest: Digest | None) -> None:
    """Raise InputError for a gateway or a tenant that is not there: a pause of a misspelt name stops nobody.

    ``digest``: the one that the scope names. Before its first period is frozen, any tenant may exist.
    """
    if scope.gateway is not None and scope.gateway not in registry.KINDS:
        raise InputError(f"no gateway kind {scope.gateway!r}; there are: {', '.join(registry.KINDS)}")
    if scope.tenant is None or digest is None:
        return
    with ledger.read() as conn:
        headers = reads.headers(conn, reads.other_manifest_ids(conn, digest.name, ()))
    single = digest.single_tenant
    tenants = {header.tenant for header in headers} if single is None else {single}
    if tenants and scope.tenant not in tenants:
        raise InputError(
            f"{digest.name} has no tenant {scope.tenant!r}; there are: {', '.join(sorted(tenants))}"
        )


def _change(conn: Connection, kind: str, scope: Scope, who: str, reason: str) -> bool:
    scope_kind, name = scope.row
    act = pauses.add if kind == "pause" else pauses.remove
    changed = act(conn, scope_kind, name)
    if changed:
        action = Action(kind, who, reason, scope.digest, None, scope.tenant)
        audit.record(conn, action, {scope_kind: name})
    return changed

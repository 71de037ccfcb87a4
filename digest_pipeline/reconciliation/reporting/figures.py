"""Everything a report says about a period, read from one state of the ledger."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from digest_pipeline.eligibility.drift import Drift
from digest_pipeline.errors import UnknownKeyError
from digest_pipeline.gateways.sanitise import sanitise
from digest_pipeline.instants import as_datetime
from digest_pipeline.ledger import measures, reads
from digest_pipeline.ledger.measures import Delays, Tries
from digest_pipeline.ledger.reads import Summary
from digest_pipeline.ledger.schema import ManifestState
from digest_pipeline.periods import Period
from digest_pipeline.reconciliation.comparison import Comparison
from digest_pipeline.reconciliation.reporting.speed import Speed, read_speed
from digest_pipeline.reconciliation.reporting.timeline import Timeline, read_timeline
from digest_pipeline.spec import Digest
from digest_pipeline.states import DEAD_LETTERS, UNSETTLED, HoldReason, State


@dataclass(frozen=True, slots=True)
class TenantFigures:
    """One manifest: who should receive the digest, and in which state each of them is.

    ``unaccounted``: eligible less everyone found in a state. Anything but 0 is an imbalance.
    """

    tenant: str
    eligible: int
    states: dict[str, int]
    unaccounted: int
    on_time: int
    problems: tuple[str, ...] = ()

    @property
    def balanced(self) -> bool:
        """Whether every customer of the manifest is in exactly one state."""
        return not self.problems

    @property
    def coverage(self) -> float:
        """The share of those to be reached who were, in time; 1.0 when there was nobody to reach."""
        owed = self.eligible - self.states[State.SUPPRESSED]
        return self.on_time / owed if owed else 1.0


@dataclass(frozen=True, slots=True)
class Figures:
    """A period in numbers. ``at``: the ledger's clock when they were read. ``speed``: by run."""

    digest: Digest
    period: Period
    run_id: str
    at: datetime
    manifests: Sequence[Row[Any]]
    tenants: Sequence[TenantFigures]
    summary: Summary
    duplicates: Sequence[str]
    tries: Sequence[Tries]
    delays: Delays | None
    timeline: Timeline | None
    speed: dict[str, Speed]
    actions: Sequence[dict[str, Any]]
    halted: dict[str, str]
    comparison: Comparison | None
    drift: Drift | None
    problems: list[str] = field(default_factory=list)

    @property
    def balanced(self) -> bool:
        """Whether the identity holds in every tenant."""
        return not self.problems

    @property
    def eligible(self) -> int:
        """Customers in the sealed manifests."""
        return sum(one.eligible for one in self.tenants)

    @property
    def states(self) -> dict[str, int]:
        """Deliveries by state, over all tenants."""
        total: Counter[str] = Counter()
        for one in self.tenants:
            total.update(one.states)
        return {str(state): total[state] for state in State}

    @property
    def reached(self) -> int:
        """Deliveries that were sent, cleaned or not."""
        return self.states[State.SENT] + self.states[State.CLEANED]

    @property
    def open(self) -> int:
        """Deliveries that are not settled."""
        return sum(self.states[state] for state in UNSETTLED)

    @property
    def stopped(self) -> int:
        """Dead letters: what stopped without a send and may be replayed."""
        return sum(self.states[state] for state in DEAD_LETTERS)

    @property
    def meets_objective(self) -> bool:
        """Whether enough of them were reached in time."""
        return self.summary.coverage >= self.digest.objective.coverage


def read_figures(
    conn: Connection,
    digest: Digest,
    period: Period,
    run_id: str,
    comparison: Comparison | None,
    drift: Drift | None,
) -> Figures:
    """Return the figures of a period. Raises UnknownKeyError when it has no manifest."""
    ids = reads.manifest_ids(conn, digest.name, period.label)
    if not ids:
        raise UnknownKeyError(f"{digest.name} {period.label} has no manifest: there is nothing to report")
    manifests = reads.headers(conn, ids)
    tenants = _tenants(conn, manifests)
    return Figures(
        digest=digest,
        period=period,
        run_id=run_id,
        at=as_datetime(reads.now(conn)),
        manifests=manifests,
        tenants=tenants,
        summary=reads.summarise(conn, ids, sends=digest.sending.enabled, gateway=digest.gateway.kind),
        duplicates=reads.duplicate_sends(conn, ids, limit=20),
        tries=measures.tries(conn, ids),
        delays=measures.claim_delays(conn, ids),
        timeline=read_timeline(conn, ids),
        speed=read_speed(conn, ids),
        actions=[_readable(row) for row in reads.actions(conn, digest.name, period.label)],
        halted={
            name: sanitise(why) for name, why in measures.halted_gates(conn, digest.gateway.kind).items()
        },
        comparison=comparison,
        drift=drift,
        problems=[problem for one in tenants for problem in one.problems],
    )


def waits_because(digest: Digest, manifest: Row[Any], now: int) -> str | None:
    """Return why nothing of a manifest can be claimed at an instant (microseconds); None when it can."""
    if manifest.content_sealed_at is None:
        return HoldReason.CONTENT_NOT_SEALED
    if not digest.sending.enabled:
        return HoldReason.SENDING_DISABLED
    if manifest.in_doubt_from_at is not None and manifest.doubted_at is None:
        return HoldReason.RESTORED
    if now < manifest.window_opens_at:
        return HoldReason.WINDOW_NOT_OPEN
    late = manifest.late_until is not None and now < manifest.late_until
    return HoldReason.WINDOW_CLOSED if now >= manifest.window_closes_at and not late else None


def _tenants(conn: Connection, manifests: Sequence[Row[Any]]) -> list[TenantFigures]:
    ids = [row.id for row in manifests]
    entries, states = measures.entry_rows(conn, ids), measures.state_rows(conn, ids)
    on_time = measures.reached_on_time(conn, ids)
    return [
        _tenant(row, entries.get(row.id, 0), states.get(row.id, {}), on_time.get(row.id, 0))
        for row in manifests
    ]


def _tenant(row: Row[Any], entries: int, found: dict[str, int], on_time: int) -> TenantFigures:
    eligible = row.entries or 0
    states = {str(state): found.get(state, 0) for state in State}
    unaccounted = eligible - sum(found.values())
    if row.content_sealed_at is None and unaccounted > 0:
        # Deliveries are made with the content: until its seal, everyone waits.
        states[State.PENDING] += unaccounted
        unaccounted = 0
    problems = tuple(_problems(row, eligible, entries, unaccounted))
    return TenantFigures(row.tenant, eligible, states, unaccounted, on_time, problems)


def _problems(row: Row[Any], eligible: int, entries: int, unaccounted: int) -> list[str]:
    who = f"tenant {row.tenant}"
    if row.state == ManifestState.BUILDING:
        return [f"{who}: the manifest is not sealed"]
    found = []
    if unaccounted > 0:
        found.append(f"{who}: {unaccounted:,} of {eligible:,} customers are in no state")
    if unaccounted < 0:
        found.append(f"{who}: {-unaccounted:,} deliveries too many for {eligible:,} customers")
    if entries != eligible and row.state == ManifestState.SEALED:
        found.append(f"{who}: sealed with {eligible:,} customers, {entries:,} are listed")
    excluded = sum(reads.as_counts(row.excluded).values())
    if (row.selected or 0) != eligible + excluded:
        found.append(
            f"{who}: {row.selected or 0:,} rows selected, {eligible:,} eligible and {excluded:,} excluded"
        )
    return found


def _readable(row: Row[Any]) -> dict[str, Any]:
    """An action without addresses: people type them into reasons."""
    keys = json.loads(row.keys) if row.keys else []
    return {
        "at": as_datetime(row.at),
        "kind": row.kind,
        # An operator signs with an account name; the domain of a mail address is cut off.
        "who": sanitise(row.who.partition("@")[0]),
        "approver": sanitise((row.approver or "").partition("@")[0]),
        "reason": sanitise(row.reason),
        "tenant": row.tenant or "",
        "keys": len(keys),
        "effect": ", ".join(f"{name} {value}" for name, value in json.loads(row.effect).items()),
    }

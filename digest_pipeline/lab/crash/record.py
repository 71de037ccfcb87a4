"""Reading what became of a cell's period: the ledger's rows, the provider's store, the pipeline's own checks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection, and_, select

from digest_pipeline.lab.crash.provider import Provider
from digest_pipeline.lab.crash.verdict import Record, Row
from digest_pipeline.lab.time_shift import MICROS
from digest_pipeline.ledger import reads
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.schema import attempt, content, delivery, manifest, manifest_entry
from digest_pipeline.ledger.windows import window_is_open
from digest_pipeline.reconciliation import invariants
from digest_pipeline.spec import Digest
from digest_pipeline.states import CLAIMABLE, REACHED, HoldReason, State

CHECKS: tuple[invariants.Invariant, ...] = (
    invariants.manifest_is_frozen,
    invariants.manifest_accounts_for_everyone,
    invariants.no_duplicate_sends,
    invariants.every_delivery_is_visible,
    invariants.attempts_within_policy,
    invariants.no_unknown_past_retention,
    invariants.cleanup_only_after_definitive_send,
    invariants.one_cleanup_per_key,
)


def read_record(
    ledger: Ledger, digest: Digest, label: str, expected: list[str], provider: Provider
) -> Record:
    """Return everything that the verdict is about."""
    acceptances = list(provider.acceptances())
    with ledger.snapshot() as conn:
        ids = reads.manifest_ids(conn, digest.name, label)
        headers = reads.headers(conn, ids)
        broken = {check.__name__: check(conn, digest, ids).violations for check in CHECKS}
        return Record(
            expected=expected,
            rows=read_rows(conn, ids),
            acceptances=acceptances,
            selected=sum(row.selected or 0 for row in headers),
            excluded=sum(sum(reads.as_counts(row.excluded).values()) for row in headers),
            broken_checks={name: count for name, count in broken.items() if count},
            admitted=reads.duplicate_sends(conn, ids),
        )


def read_rows(conn: Connection, ids: tuple[int, ...]) -> list[Row]:
    """Return one Row for each entry of these manifests."""
    e, d, c = manifest_entry.c, delivery.c, content.c
    query = (
        select(e.operation_key, delivery, c.ordinal.label("content"), window_is_open().label("open"))
        .select_from(manifest_entry)
        .join(manifest, manifest.c.id == e.manifest_id)
        .outerjoin(delivery, and_(d.manifest_id == e.manifest_id, d.ordinal == e.ordinal))
        .outerjoin(content, and_(c.manifest_id == e.manifest_id, c.ordinal == e.ordinal))
        .where(e.manifest_id.in_(ids))
        .order_by(e.operation_key)
    )
    now = reads.now(conn)
    return [_row(found, now) for found in conn.execute(query)]


def _row(found: Any, now: int) -> Row:
    held = found.hold_reason
    if found.state in CLAIMABLE and not found.open:
        held = str(HoldReason.WINDOW_CLOSED)
    return Row(
        key=found.operation_key,
        state=found.state,
        due_in=None if found.due_at is None else (found.due_at - now) / MICROS,
        held=held,
        proof=found.proof,
        cleaned_by=found.cleaned_by,
        has_content=found.content is not None,
    )


def is_finished(ledger: Ledger, digest: Digest, label: str) -> bool:
    """Whether a further run would find nothing to do: now, and at any time to come."""
    with ledger.read() as conn:
        ids = reads.manifest_ids(conn, digest.name, label)
        if not ids or not reads.content_is_sealed(conn, ids):
            return False
        return all(_is_at_rest(row) for row in read_rows(conn, ids))


def _is_at_rest(row: Row) -> bool:
    if row.state in REACHED:
        return row.state == State.CLEANED
    if row.state == State.CLAIMED:
        return False
    return row.held is not None or row.due_in is None


@dataclass(frozen=True, slots=True)
class Attempts:
    """The attempts of a period: how many ended how, how many got a late result besides, and the seconds
    between an end and the next claim.
    """

    by_outcome: dict[str, int]
    late: int
    retry_delays: tuple[float, ...]


def read_attempts(ledger: Ledger, digest: Digest, label: str) -> Attempts:
    """Return what was tried. The delays hold the time that the harness let pass."""
    a = attempt.c
    with ledger.read() as conn:
        ids = reads.manifest_ids(conn, digest.name, label)
        by_outcome = reads.attempts_by_outcome(conn, ids)
        query = select(a.manifest_id, a.ordinal, a.claimed_at, a.ended_at, a.late_outcome)
        rows = list(
            conn.execute(query.where(a.manifest_id.in_(ids)).order_by(a.manifest_id, a.ordinal, a.token))
        )
    delays = [
        round((later.claimed_at - earlier.ended_at) / MICROS, 3)
        for earlier, later in pairwise(rows)
        if (earlier.manifest_id, earlier.ordinal) == (later.manifest_id, later.ordinal)
    ]
    return Attempts(by_outcome, sum(row.late_outcome is not None for row in rows), tuple(delays))


def wrong_instants(ledger: Ledger, slack: float) -> int:
    """Return how many instants of deliveries and attempts lie ahead of the ledger's clock, or before ``slack``."""
    d, a = delivery.c, attempt.c
    with ledger.read() as conn:
        now = reads.now(conn)
        found = [value for row in conn.execute(select(d.claimed_at, d.finished_at)) for value in row]
        found += [value for row in conn.execute(select(a.claimed_at, a.ended_at)) for value in row]
    return sum(not now - slack * MICROS <= value <= now + MICROS for value in found if value is not None)

"""Questions to the ledger. Nothing here writes, and nothing returns an address or a message."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, and_, case, distinct, func, or_, select

from digest_pipeline.errors import UnknownKeyError
from digest_pipeline.ledger import pauses
from digest_pipeline.ledger.dialects import ledger_now
from digest_pipeline.ledger.schema import (
    attempt,
    content,
    delivery,
    manifest,
    manifest_entry,
    operator_action,
    template,
)
from digest_pipeline.states import CLAIMABLE, REACHED, HoldReason, State

_d = delivery.c
_entry_is_deliverys = and_(
    manifest_entry.c.manifest_id == _d.manifest_id, manifest_entry.c.ordinal == _d.ordinal
)


def now(conn: Connection) -> int:
    """Return the ledger's clock, in microseconds."""
    return conn.execute(select(ledger_now())).scalar_one()


def as_counts(stored: str | None) -> dict[str, int]:
    """Return a stored JSON object of counts."""
    return {str(key): int(value) for key, value in json.loads(stored or "{}").items()}


def manifest_ids(conn: Connection, digest: str, period: str) -> tuple[int, ...]:
    """Return the manifests of a period, in tenant order."""
    query = select(manifest.c.id).where(manifest.c.digest == digest, manifest.c.period == period)
    return tuple(conn.execute(query.order_by(manifest.c.tenant)).scalars())


def headers(conn: Connection, ids: Sequence[int]) -> list[Row[Any]]:
    """Return manifest headers, in tenant order."""
    return list(conn.execute(select(manifest).where(manifest.c.id.in_(ids)).order_by(manifest.c.tenant)))


def frozen_periods(conn: Connection, digest: str) -> list[str]:
    """Return the labels of the periods that have a manifest, oldest first."""
    query = select(manifest.c.period).where(manifest.c.digest == digest).distinct()
    return sorted(conn.execute(query).scalars())


def recipient_hashes(conn: Connection, keys: Sequence[str]) -> dict[str, str]:
    """Return the frozen recipient hash of those operation keys that the ledger has."""
    query = select(manifest_entry.c.operation_key, manifest_entry.c.recipient_hash)
    found: dict[str, str] = {}
    for start in range(0, len(keys), 1_000):
        page = keys[start : start + 1_000]
        rows = conn.execute(query.where(manifest_entry.c.operation_key.in_(page)))
        found.update((key, hash_) for key, hash_ in rows)
    return found


def entry_count(conn: Connection, ids: Sequence[int]) -> int:
    """Return how many customers these manifests hold, counted."""
    query = select(func.count()).select_from(manifest_entry)
    return conn.execute(query.where(manifest_entry.c.manifest_id.in_(ids))).scalar_one()


def content_is_sealed(conn: Connection, ids: Sequence[int]) -> bool:
    """Whether the content of every one of these manifests is sealed."""
    query = select(func.count()).where(manifest.c.id.in_(ids), manifest.c.content_sealed_at.is_(None))
    return conn.execute(query).scalar_one() == 0


def content_counts(conn: Connection, ids: Sequence[int]) -> tuple[int, int]:
    """Return how many deliveries had something to tell, and how many were empty."""
    empty = func.coalesce(func.sum(case((_d.suppression == "empty", 1), else_=0)), 0)
    total, without = conn.execute(select(func.count(), empty).where(_d.manifest_id.in_(ids))).one()
    return total - without, without


def closed_windows(conn: Connection, ids: Sequence[int]) -> list[int]:
    """Return those manifests whose delivery window is over and that have no permission to be late."""
    current = ledger_now()
    query = select(manifest.c.id).where(
        manifest.c.id.in_(ids),
        manifest.c.window_closes_at <= current,
        or_(manifest.c.late_until.is_(None), manifest.c.late_until <= current),
    )
    return list(conn.execute(query).scalars())


@dataclass(frozen=True, slots=True)
class Summary:
    """What became of the customers of some manifests: every one of them is in exactly one state.

    ``held``: rows that wait and will not go by themselves, by reason; they are among pending, retry
    and unknown. ``paused``: the pauses behind it, kind and name. ``on_time``: reached inside the window (or a granted lateness). Seconds where named.
    """

    entries: int
    states: dict[str, int]
    held: dict[str, int]
    suppressed: dict[str, int]
    failed: dict[str, int]
    attempts: dict[str, int]
    duplicates: int
    on_time: int
    oldest_pending_seconds: float | None
    cleanup_lag_seconds: float | None
    excluded: dict[str, int] = field(default_factory=dict)
    selected: int = 0
    paused: tuple[tuple[str, str], ...] = ()

    @property
    def coverage(self) -> float:
        """The share of those to be reached who were, in time; 1.0 when there was nobody to reach."""
        owed = self.entries - self.states.get(State.SUPPRESSED, 0)
        return self.on_time / owed if owed else 1.0

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to do or to find out."""
        waiting = (State.PENDING, State.CLAIMED, State.RETRY, State.UNKNOWN)
        return not any(self.states.get(state, 0) for state in waiting)


def summarise(conn: Connection, ids: Sequence[int], *, sends: bool = True, gateway: str = "") -> Summary:
    """Return the summary of some manifests (of one period, usually one per tenant).

    ``sends`` False: sending is disabled here, so that all that waits is held for that. ``gateway``: the one
    they would go through, so that a pause of it counts too.
    """
    rows = headers(conn, ids)
    current = now(conn)
    states: Counter[str] = Counter({str(state): 0 for state in State})
    held: Counter[str] = Counter()
    oldest: int | None = None
    on_time = 0
    paused: set[tuple[str, str]] = set()
    for row in rows:
        paused.update(pauses.covering(conn, row.digest, row.tenant, gateway))
        counts = _state_counts(conn, row.id)
        missing = (row.entries or 0) - sum(counts.values())
        if missing > 0 and row.content_sealed_at is None:
            # Later on, a customer without a delivery is lost, and must not be counted as waiting.
            counts[State.PENDING] += missing
            held[HoldReason.CONTENT_NOT_SEALED] += missing
        states.update(counts)
        held.update(_held(conn, row, current, counts, sends, gateway))
        if sum(counts.get(s, 0) for s in (State.PENDING, State.RETRY, State.CLAIMED, State.UNKNOWN)):
            since = row.content_sealed_at or row.sealed_at or row.selected_at
            oldest = since if oldest is None else min(oldest, since)
        on_time += _reached_by(conn, row.id, max(row.window_closes_at, row.late_until or 0))
    excluded: Counter[str] = Counter()
    for row in rows:
        excluded.update(as_counts(row.excluded))
    return Summary(
        entries=sum(row.entries or 0 for row in rows),
        selected=sum(row.selected or 0 for row in rows),
        excluded=dict(excluded),
        paused=tuple(sorted(paused)),
        states={str(state): states[state] for state in State},
        held=dict(held),
        suppressed=_counted(conn, ids, _d.suppression, State.SUPPRESSED),
        failed=_counted(conn, ids, _d.failure_class, State.FAILED, State.DEAD),
        attempts=attempts_by_outcome(conn, ids),
        duplicates=len(list(duplicate_sends(conn, ids))),
        on_time=on_time,
        oldest_pending_seconds=None if oldest is None else (current - oldest) / 1e6,
        cleanup_lag_seconds=_cleanup_lag(conn, ids, current),
    )


def _state_counts(conn: Connection, manifest_id: int) -> Counter[str]:
    query = select(_d.state, func.count()).where(_d.manifest_id == manifest_id).group_by(_d.state)
    return Counter({str(state): int(count) for state, count in conn.execute(query)})


def _held(
    conn: Connection, row: Row[Any], current: int, counts: Counter[str], sends: bool, gateway: str
) -> Counter[str]:
    held: Counter[str] = Counter()
    waiting = counts[State.PENDING] + counts[State.RETRY]
    late = row.late_until is not None and current < row.late_until
    if row.content_sealed_at is not None and waiting:
        if not sends:
            held[HoldReason.SENDING_DISABLED] += waiting
        elif row.in_doubt_from_at is not None and row.doubted_at is None:
            held[HoldReason.RESTORED] += waiting
        elif pauses.covering(conn, row.digest, row.tenant, gateway):
            held[HoldReason.PAUSED] += waiting
        elif current < row.window_opens_at:
            held[HoldReason.WINDOW_NOT_OPEN] += waiting
        elif current >= row.window_closes_at and not late:
            held[HoldReason.WINDOW_CLOSED] += waiting - _permitted(conn, row.id, current)
    query = (
        select(_d.hold_reason, func.count())
        .where(_d.manifest_id == row.id, _d.ambiguous_at.is_not(None), _d.hold_reason.is_not(None))
        .where(_d.state == State.UNKNOWN)
        .group_by(_d.hold_reason)
    )
    held.update({str(reason): int(count) for reason, count in conn.execute(query)})
    return held


def _permitted(conn: Connection, manifest_id: int, current: int) -> int:
    query = select(func.count()).where(
        _d.manifest_id == manifest_id, _d.state.in_(sorted(CLAIMABLE)), _d.late_until > current
    )
    return conn.execute(query).scalar_one()


def _reached_by(conn: Connection, manifest_id: int, deadline: int) -> int:
    query = select(func.count()).where(
        _d.manifest_id == manifest_id, _d.state.in_(sorted(REACHED)), _d.finished_at <= deadline
    )
    return conn.execute(query).scalar_one()


def _counted(conn: Connection, ids: Sequence[int], column: Any, *states: State) -> dict[str, int]:
    query = select(column, func.count()).where(_d.manifest_id.in_(ids), _d.state.in_(sorted(states)))
    return {str(value): count for value, count in conn.execute(query.group_by(column))}


def _cleanup_lag(conn: Connection, ids: Sequence[int], current: int) -> float | None:
    query = select(func.min(_d.finished_at)).where(_d.manifest_id.in_(ids), _d.state == State.SENT)
    oldest = conn.execute(query).scalar_one()
    return None if oldest is None else (current - oldest) / 1e6


def attempts_by_outcome(conn: Connection, ids: Sequence[int]) -> dict[str, int]:
    """Return how many attempts ended how, ``outcome`` or ``outcome:class``."""
    query = (
        select(attempt.c.outcome, attempt.c.failure_class, func.count())
        .where(attempt.c.manifest_id.in_(ids))
        .group_by(attempt.c.outcome, attempt.c.failure_class)
    )
    return {
        outcome if failure_class in (None, outcome) else f"{outcome}:{failure_class}": count
        for outcome, failure_class, count in conn.execute(query)
    }


_accepted = or_(
    and_(attempt.c.outcome == "accepted", attempt.c.replayed.is_(False)),
    attempt.c.late_outcome == "accepted",
)


def duplicate_sends(conn: Connection, ids: Sequence[int] | None = None, limit: int = 1_000) -> list[str]:
    """Return the operation keys that a provider accepted twice, as the attempts tell.

    Two acceptances count as two unless one was a replayed answer or both name the same message.
    """
    message = func.coalesce(attempt.c.message_id, attempt.c.late_message_id)
    two = or_(
        func.count(distinct(message)) > 1,
        and_(func.count() > 1, func.count(message) < func.count()),
    )
    grouped = (
        select(attempt.c.manifest_id, attempt.c.ordinal)
        .where(_accepted)
        .group_by(attempt.c.manifest_id, attempt.c.ordinal)
        .having(two)
    )
    if ids is not None:
        grouped = grouped.where(attempt.c.manifest_id.in_(ids))
    twice = grouped.limit(limit).subquery()
    query = select(manifest_entry.c.operation_key).join(
        twice,
        and_(
            manifest_entry.c.manifest_id == twice.c.manifest_id, manifest_entry.c.ordinal == twice.c.ordinal
        ),
    )
    return sorted(conn.execute(query).scalars())


def find_entry(conn: Connection, operation_key: str) -> Row[Any]:
    """Return the manifest entry and delivery of a key, without the address. Raises UnknownKeyError."""
    query = (
        select(
            manifest.c.digest,
            manifest.c.period,
            manifest.c.tenant,
            manifest_entry.c.operation_key,
            manifest_entry.c.customer_id,
            manifest_entry.c.manifest_id,
            manifest_entry.c.ordinal.label("entry_ordinal"),
            *[c for c in delivery.c if c.name not in ("manifest_id",)],
        )
        .select_from(manifest_entry)
        .join(manifest, manifest.c.id == manifest_entry.c.manifest_id)
        .outerjoin(delivery, _entry_is_deliverys)
        .where(manifest_entry.c.operation_key == operation_key)
    )
    row = conn.execute(query).one_or_none()
    if row is None:
        raise UnknownKeyError(f"no delivery has the operation key {operation_key!r}")
    return row


def entries(conn: Connection, ids: Sequence[int], page: int = 5_000) -> Iterator[list[dict[str, Any]]]:
    """Yield pages of one row per manifest entry: key, customer, tenant, state, proof, attempts, reason."""
    for manifest_id in ids:
        after = 0
        while True:
            query = (
                select(
                    manifest_entry.c.ordinal,
                    manifest_entry.c.operation_key,
                    manifest.c.tenant,
                    manifest_entry.c.customer_id,
                    func.coalesce(_d.state, "pending").label("state"),
                    _d.proof,
                    func.coalesce(_d.attempts, 0).label("attempts"),
                    func.coalesce(_d.suppression, _d.failure_class, _d.hold_reason).label("reason"),
                    _d.finished_at,
                )
                .select_from(manifest_entry)
                .join(manifest, manifest.c.id == manifest_entry.c.manifest_id)
                .outerjoin(delivery, _entry_is_deliverys)
                .where(manifest_entry.c.manifest_id == manifest_id, manifest_entry.c.ordinal > after)
                .order_by(manifest_entry.c.ordinal)
                .limit(page)
            )
            rows = [dict(row) for row in conn.execute(query).mappings()]
            if not rows:
                break
            after = rows[-1]["ordinal"]
            yield rows


def find_customer(conn: Connection, digest: str, period: str, customer_id: str) -> Row[Any]:
    """Return a customer's entry with address and content, to render a preview. Raises UnknownKeyError."""
    query = (
        select(
            manifest_entry,
            manifest.c.tenant,
            manifest.c.render_inputs,
            template.c.text.label("template_text"),
            content.c.document,
            _d.payload_hash,
            _d.state,
            _d.suppression,
        )
        .select_from(manifest_entry)
        .join(manifest, manifest.c.id == manifest_entry.c.manifest_id)
        .outerjoin(template, template.c.hash == manifest.c.template_hash)
        .outerjoin(
            content,
            and_(
                content.c.manifest_id == manifest_entry.c.manifest_id,
                content.c.ordinal == manifest_entry.c.ordinal,
            ),
        )
        .outerjoin(delivery, _entry_is_deliverys)
        .where(
            manifest.c.digest == digest,
            manifest.c.period == period,
            manifest_entry.c.customer_id == customer_id,
        )
    )
    row = conn.execute(query).first()
    if row is None:
        raise UnknownKeyError(f"{digest} {period} has no customer {customer_id!r}")
    return row


def actions(conn: Connection, digest: str, period: str) -> list[Row[Any]]:
    """Return the audited actions on a period, oldest first."""
    query = select(operator_action).where(
        operator_action.c.digest == digest, operator_action.c.period == period
    )
    return list(conn.execute(query.order_by(operator_action.c.id)))


def accepted_by_run(conn: Connection, ids: Sequence[int], run_id: str) -> int:
    """Return how many deliveries a Dagster run's own attempts got accepted."""
    query = select(func.count()).where(
        attempt.c.manifest_id.in_(ids),
        attempt.c.outcome == "accepted",
        attempt.c.claimed_by.startswith(f"{run_id}/", autoescape=True),
    )
    return conn.execute(query).scalar_one()


def other_manifest_ids(conn: Connection, digest: str, ids: Sequence[int]) -> tuple[int, ...]:
    """Return the manifests of a digest's other periods."""
    query = select(manifest.c.id).where(manifest.c.digest == digest, manifest.c.id.not_in(ids))
    return tuple(conn.execute(query.order_by(manifest.c.id)).scalars())


def progress(conn: Connection, digest: str, period: str) -> tuple[int, int]:
    """Return how many deliveries of a period are final, and how many there are."""
    final = case((_d.finished_at.is_not(None), 1), else_=0)
    query = select(func.coalesce(func.sum(final), 0), func.count()).where(
        _d.manifest_id.in_(manifest_ids(conn, digest, period))
    )
    settled, total = conn.execute(query).one()
    return settled, total

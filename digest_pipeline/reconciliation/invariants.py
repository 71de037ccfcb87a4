"""What must hold of every period: the questions behind the asset checks, without Dagster.

Each invariant is one function over a set of manifests that returns a Verdict: how many deliveries
break it, which (operation keys, never addresses), why that matters, which command comes next, and in
``facts`` what was looked at. Each is proven in the tests by planting the violation with raw SQL. The
promises to customers, coverage and nothing held, are in ``objectives``.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, CursorResult, Select, and_, exists, func, or_, select

from digest_pipeline.ledger import measures, reads
from digest_pipeline.ledger.dialects import ledger_now
from digest_pipeline.ledger.manifests import checksum_line
from digest_pipeline.ledger.schema import ManifestState, attempt, content, delivery, manifest, manifest_entry
from digest_pipeline.outcomes import Proof
from digest_pipeline.reconciliation.comparison import Comparison
from digest_pipeline.spec import Digest
from digest_pipeline.states import CLAIMABLE, REACHED, STOPPED, UNSETTLED, State

SHOWN = 20
BULK = 0.05
"""The share of sent messages missing at the provider from which it is no matter of single ones."""
IS_BULK = "is_bulk"
UNANSWERED = "provider_unanswered"
"""Keys that the provider gave no readable answer about: a warning, since nothing was found to be wrong."""
NOT_ASKED = "provider_not_asked"
"""Why the provider was not asked, or not to the end."""
MICROS_PER_DAY = 86_400_000_000
_d = delivery.c
_e = manifest_entry.c


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an invariant stands. ``keys``: at most twenty of the deliveries that break it.

    ``is_final`` False: what breaks it may still come right by itself.
    """

    violations: int = 0
    keys: tuple[str, ...] = ()
    why: str = ""
    next_command: str = ""
    facts: tuple[tuple[str, float | int | str], ...] = ()
    is_final: bool = True

    @property
    def holds(self) -> bool:
        """Whether nothing breaks it."""
        return self.violations == 0


Ids = Sequence[int]
Invariant = Callable[[Connection, Digest, Ids], Verdict]


def manifest_is_frozen(conn: Connection, digest: Digest, ids: Ids) -> Verdict:
    """Sealed, and every key, recipient and payload is what was sealed. Streams every entry."""
    broken = [found for row in reads.headers(conn, ids) if (found := _thawed(conn, row))]
    why = "; ".join(why for why, _ in broken)
    keys = tuple(key for _, key in broken if key is not None)[:SHOWN]
    facts = ("manifests", len(ids)), ("eligible", _eligible(conn, ids))
    pause = f'digest pause --digest {digest.name} --reason "REASON"'
    return Verdict(len(broken), keys, why, pause, facts)


def _thawed(conn: Connection, row: Any) -> tuple[str, str | None] | None:
    """Return how a manifest differs from what was sealed, and the key if it is one recipient."""
    if row.state == ManifestState.BUILDING:
        return f"manifest {row.id} is not sealed", None
    sealed, composed = hashlib.sha256(), hashlib.sha256()
    count = 0
    # Closed: this returns at the first difference, and a server's cursor would stay open.
    with closing(_sealed_rows(conn, row.id)) as entries:
        for ordinal, key, recipient, recipient_hash, payload_hash in entries:
            count += 1
            sealed.update(checksum_line(ordinal, key, recipient_hash))
            composed.update(checksum_line(ordinal, key, recipient_hash, payload_hash))
            if recipient is not None and hashlib.sha256(recipient.encode()).hexdigest() != recipient_hash:
                return f"manifest {row.id}: the recipient of {key} was changed after the seal", key
    changed = _differs(row, count, sealed.hexdigest(), composed.hexdigest())
    return None if changed is None else (changed, None)


def _differs(row: Any, count: int, sealed: str, composed: str) -> str | None:
    if count != row.entries:
        return f"manifest {row.id} was sealed with {row.entries} entries and has {count}"
    if sealed != row.checksum:
        return f"manifest {row.id}: a key or recipient was changed after the seal"
    if row.content_sealed_at is not None and composed != row.content_checksum:
        return f"manifest {row.id}: content was changed after its seal"
    return None


def _sealed_rows(conn: Connection, manifest_id: int) -> CursorResult[Any]:
    query = (
        select(_e.ordinal, _e.operation_key, _e.recipient, _e.recipient_hash, _d.payload_hash)
        .select_from(manifest_entry)
        .outerjoin(delivery, _same_delivery())
        .where(_e.manifest_id == manifest_id)
        .order_by(_e.ordinal)
    )
    return conn.execute(query, execution_options={"yield_per": 5_000})


def manifest_accounts_for_everyone(conn: Connection, digest: Digest, ids: Ids) -> Verdict:
    """Every row the source returned is an entry or excluded for a reason; every entry has a delivery."""
    lost = selected = out = 0
    reasons: list[str] = []
    for row in reads.headers(conn, ids):
        selected += row.selected or 0
        out += (excluded := sum(reads.as_counts(row.excluded).values()))
        gap = abs((row.selected or 0) - (row.entries or 0) - excluded)
        if gap:
            reasons.append(
                f"manifest {row.id}: {row.selected} selected, {row.entries} + {excluded} accounted for"
            )
        lost += gap
    sealed = [row.id for row in reads.headers(conn, ids) if row.content_sealed_at is not None]
    without = (
        select(_e.operation_key)
        .select_from(manifest_entry)
        .outerjoin(delivery, _same_delivery())
        .where(_e.manifest_id.in_(sealed), _d.state.is_(None))
    )
    count, keys = _count(conn, without)
    if count:
        reasons.append(f"{count} customers of sealed manifests have no delivery")
    facts = ("selected", selected), ("eligible", _eligible(conn, ids)), ("excluded", out)
    return Verdict(lost + count, keys, "; ".join(reasons), "digest report" + which(conn, digest, ids), facts)


def no_duplicate_sends(conn: Connection, digest: Digest, ids: Ids) -> Verdict:
    """No operation key was accepted twice, as the attempts tell."""
    keys = reads.duplicate_sends(conn, ids)
    return Verdict(
        len(keys),
        tuple(keys[:SHOWN]),
        "a provider accepted more than one message for these customers",
        _trace(keys),
        (("sent", sum(_states(conn, ids)[state] for state in REACHED)),),
    )


def every_delivery_is_visible(conn: Connection, digest: Digest, ids: Ids) -> Verdict:
    """No delivery is stuck: waiting without a due time, claimed long after its lease, unknown unseen."""
    slack = 2 * int(digest.sending.lease_seconds * 1_000_000)
    stuck: dict[str, ColumnElement[bool]] = {
        "wait without a due time": and_(_d.state.in_(sorted(CLAIMABLE)), _d.due_at.is_(None)),
        "are claimed by a sender whose lease ended long ago": and_(
            _d.state == State.CLAIMED, _d.lease_ends < ledger_now() - slack
        ),
        "are unknown, and neither is evidence looked for nor is there a reason to hold them": and_(
            _d.state == State.UNKNOWN, _d.due_at.is_(None), _d.hold_reason.is_(None)
        ),
    }
    count, keys = _count(conn, _deliveries(ids).where(or_(*stuck.values())))
    found = {why: _count(conn, _deliveries(ids).where(one))[0] for why, one in stuck.items()} if count else {}
    why = "no run moves these by itself: " + "; ".join(f"{n} {why}" for why, n in found.items() if n)
    states = _states(conn, ids)
    open_ones = tuple((str(state), states[state]) for state in State if state in UNSETTLED)
    facts = ("deliveries", states.total()), *open_ones
    return Verdict(count, keys, why, "digest run" + which(conn, digest, ids), facts)


def provider_lists_what_it_accepted(found: Comparison) -> Verdict:
    """The provider still lists what it said it had accepted; a message it dropped was never delivered.

    ``is_bulk`` in the facts: so many are missing that cleaning up would destroy what has to be sent again.
    """
    missing, listed = len(found.missing_at_provider), found.confirmed
    is_bulk = missing > 0 and missing >= BULK * (missing + listed)
    keys = tuple(found.missing_at_provider)
    why = f"accepted, says the ledger, and not listed by the provider, which lists {listed} others"
    facts: list[tuple[str, float | int | str]] = [
        ("provider_asked", found.asked),
        ("provider_confirmed", found.confirmed),
        (UNANSWERED, len(found.unanswered)),
        (IS_BULK, int(is_bulk)),
    ]
    if found.reason:
        facts.append((NOT_ASKED, found.reason))
    return Verdict(missing, keys, why, _trace(keys), tuple(facts))


def attempts_within_policy(conn: Connection, digest: Digest, ids: Ids) -> Verdict:
    """No delivery was tried more often than the policy allows (ambiguous attempts are not retries)."""
    tried = (
        select(attempt.c.manifest_id, attempt.c.ordinal)
        .join(delivery, and_(_d.manifest_id == attempt.c.manifest_id, _d.ordinal == attempt.c.ordinal))
        .where(attempt.c.manifest_id.in_(ids), attempt.c.outcome == "not_sent", attempt.c.charged)
        # A replay starts the budget anew.
        .where(attempt.c.claimed_at >= func.coalesce(_d.budget_from, 0))
        .group_by(attempt.c.manifest_id, attempt.c.ordinal)
        .having(func.count() > digest.retry.max_attempts)
        .subquery()
    )
    query = select(_e.operation_key).join(
        tried, and_(tried.c.manifest_id == _e.manifest_id, tried.c.ordinal == _e.ordinal)
    )
    count, keys = _count(conn, query)
    why = f"tried more than the {digest.retry.max_attempts} times that the policy allows"
    attempts = sum(reads.attempts_by_outcome(conn, ids).values())
    facts = ("attempts", attempts), ("max_attempts", digest.retry.max_attempts)
    return Verdict(count, keys, why, _trace(keys), facts)


def no_unknown_past_retention(conn: Connection, digest: Digest, ids: Ids) -> Verdict:
    """No delivery stayed unknown for longer than the retention rule allows."""
    age = int(digest.retention.unknown_days * MICROS_PER_DAY)
    late = and_(_d.ambiguous_at.is_not(None), _d.state == State.UNKNOWN, _d.ambiguous_at < ledger_now() - age)
    count, keys = _count(conn, _deliveries(ids).where(late))
    why = f"unknown for more than the {digest.retention.unknown_days:g} days of retention.unknown_days"
    facts = (("unknown", _states(conn, ids)[State.UNKNOWN]),)
    return Verdict(count, keys, why, "digest unknowns list" + which(conn, digest, ids), facts)


def cleanup_only_after_definitive_send(conn: Connection, digest: Digest, ids: Ids) -> Verdict:
    """Generated rows are gone only where a send with the configured proof came first, or by retention."""
    gone = and_(_d.payload_hash.is_not(None), ~exists().where(_same_content()))
    proofs = [p for p in Proof if p.rank >= digest.cleanup.proof.rank]
    after_send = and_(
        _d.state == State.CLEANED,
        _d.proof.in_(proofs),
        _d.cleaned_at >= _d.finished_at,
        # Evidence found by a look-up belongs to an ambiguous attempt: nothing was ever accepted unclaimed.
        exists().where(
            attempt.c.manifest_id == _d.manifest_id,
            attempt.c.ordinal == _d.ordinal,
            or_(
                attempt.c.outcome.in_(("accepted", "ambiguous", "expired", "restored")),
                attempt.c.late_outcome.in_(("accepted", "replayed")),
            ),
        ),
    )
    by_rule = and_(
        _d.state.in_(sorted(STOPPED | REACHED)), _d.cleaned_by.like("retention:%"), _d.cleaned_at.is_not(None)
    )
    query = _deliveries(ids).where(gone, ~after_send, ~by_rule)
    sealed = select(manifest.c.id).where(manifest.c.content_sealed_at.is_not(None))
    count, keys = _count(conn, query.where(_d.manifest_id.in_(sealed)))
    why = "generated rows were removed without a definitive send and outside the retention rule"
    return Verdict(count, keys, why, _trace(keys), (("cleaned", _states(conn, ids)[State.CLEANED]),))


def one_cleanup_per_key(conn: Connection, digest: Digest, ids: Ids) -> Verdict:
    """Cleanup is whole: a cleaned delivery has no generated rows left, and no other claims to be clean."""
    half = or_(
        and_(_d.state == State.CLEANED, exists().where(_same_content())),
        and_(
            _d.cleaned_at.is_not(None),
            _d.state != State.CLEANED,
            or_(_d.cleaned_by.is_(None), ~_d.cleaned_by.like("retention:%")),
        ),
    )
    count, keys = _count(conn, _deliveries(ids).where(half))
    why = "marked cleaned while generated rows are left, or cleaned without the state saying so"
    return Verdict(count, keys, why, _trace(keys), (("cleaned", _states(conn, ids)[State.CLEANED]),))


def _same_delivery() -> ColumnElement[bool]:
    return and_(_d.manifest_id == _e.manifest_id, _d.ordinal == _e.ordinal)


def _same_content() -> ColumnElement[bool]:
    return and_(content.c.manifest_id == _d.manifest_id, content.c.ordinal == _d.ordinal)


def _deliveries(ids: Ids) -> Select[Any]:
    query = select(_e.operation_key).select_from(delivery).join(manifest_entry, _same_delivery())
    return query.where(_d.manifest_id.in_(ids))


def _count(conn: Connection, query: Select[Any]) -> tuple[int, tuple[str, ...]]:
    found = conn.execute(select(func.count()).select_from(query.subquery())).scalar_one()
    shown = conn.execute(query.order_by(_e.operation_key).limit(SHOWN)).scalars() if found else ()
    return found, tuple(shown)


def which(conn: Connection, digest: Digest, ids: Ids) -> str:
    """Return the options that name these manifests' period, so that the command can be run as it stands."""
    labels = {row.period for row in reads.headers(conn, ids)}
    return f" --digest {digest.name}" + "".join(f" --period {label}" for label in labels if len(labels) == 1)


def _states(conn: Connection, ids: Ids) -> Counter[str]:
    total: Counter[str] = Counter()
    for counts in measures.state_rows(conn, ids).values():
        total.update(counts)
    return total


def _eligible(conn: Connection, ids: Ids) -> int:
    return sum(row.entries or 0 for row in reads.headers(conn, ids))


def _trace(keys: Sequence[str]) -> str:
    return f"digest trace {keys[0]}" if keys else ""

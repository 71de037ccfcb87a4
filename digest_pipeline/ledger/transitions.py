"""One function per arrow of ``states.TRANSITIONS``: each a single UPDATE guarded by state and token.

A row that the guard does not match is not changed and not returned: the claim was lost, which is a
value for the caller and not an error. Nothing else in the package writes the state column, but for
the insert that makes a delivery. Durations are microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Executable,
    Integer,
    Row,
    Text,
    and_,
    bindparam,
    case,
    exists,
    func,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.types import TypeEngine

from digest_pipeline.ledger.dialects import (
    built_once,
    keep_tokens,
    ledger_now,
    rowset,
    rowset_value,
    token_by_ordinal,
)
from digest_pipeline.ledger.schema import attempt, content, delivery, ledger_identity, manifest
from digest_pipeline.ledger.windows import is_out_of_doubt
from digest_pipeline.outcomes import FailureClass, Proof
from digest_pipeline.states import REACHED, TRANSITIONS, HoldReason

ARROWS = {arrow.name: arrow for arrow in TRANSITIONS}

_KEY: dict[str, TypeEngine[Any]] = {
    "manifest_id": BigInteger(),
    "ordinal": BigInteger(),
    "token": BigInteger(),
}
_d = delivery.c
_CLEAR = _d.ambiguous_at.is_(None)
_UNCLAIMED = {"lease_ends": null()}
_SETTLED_AMBIGUITY = {"ambiguous_at": null(), "ambiguous_token": null(), "absent_at": null()}
_CHARGE = {
    "attempts": _d.attempts + 1,
    "budget_from": func.coalesce(_d.budget_from, _d.claimed_at),
}

Rows = Sequence[Mapping[str, Any]]
"""Each with manifest_id, ordinal, token, and what the arrow's docstring adds."""


def _take(
    conn: Connection,
    arrow_name: str,
    rows: Rows,
    more: Mapping[str, TypeEngine[Any]],
    values: Any,
    *guards: ColumnElement[bool],
) -> set[int]:
    """Move the rows that still are where the arrow starts; return the tokens of those moved."""
    if not rows:
        return set()
    key = (conn.dialect.name, arrow_name)
    if key not in _statements:  # an arrow is always taken with the same columns, values and guards
        _statements[key] = _arrow_statement(conn, arrow_name, more, values, guards)
    return set(conn.execute(_statements[key], {"r": rowset_value(rows)}).scalars())


_statements: dict[tuple[str, str], Executable] = {}


def _arrow_statement(
    conn: Connection,
    arrow_name: str,
    more: Mapping[str, TypeEngine[Any]],
    values: Any,
    guards: Sequence[ColumnElement[bool]],
) -> Executable:
    arrow = ARROWS[arrow_name]
    r = rowset(conn, "r", {**_KEY, **more})
    return (
        update(delivery)
        .where(
            _d.manifest_id == r.c.manifest_id,
            _d.ordinal == r.c.ordinal,
            _d.token == r.c.token,
            _d.state.in_(sorted(arrow.sources)),
            *guards,
        )
        .values(state=arrow.target, **values(r))
        .returning(_d.token)
    )


def claim(
    conn: Connection, rows: Rows, lease: int, claimed_by: str, gateway: str, account: str
) -> Sequence[Row[Any]]:
    """Claim rows that were locked in this transaction, under their new tokens (``token``)."""
    return _claim(conn, "claim", rows, lease, claimed_by, gateway, account)


def reclaim_unknown(
    conn: Connection, rows: Rows, lease: int, claimed_by: str, gateway: str, account: str
) -> Sequence[Row[Any]]:
    """Claim unknown rows for an idempotent re-send by the gateway and account of the first one.

    They stay ambiguous: whatever comes back but an acceptance leads to unknown again.
    """
    return _claim(conn, "reclaim_unknown", rows, lease, claimed_by, gateway, account)


def _claim(
    conn: Connection, arrow_name: str, rows: Rows, lease: int, claimed_by: str, gateway: str, account: str
) -> Sequence[Row[Any]]:
    if not rows:
        return []
    values = {"for_us": lease, "by": claimed_by, "by_gateway": gateway, "by_account": account}
    return conn.execute(_claim_statement(conn, arrow_name), {"r": rowset_value(rows), **values}).all()


@built_once
def _claim_statement(conn: Connection, arrow_name: str) -> Executable:
    r = rowset(conn, "r", _KEY)
    gateway, account = bindparam("by_gateway", type_=Text()), bindparam("by_account", type_=Text())
    again = arrow_name == "reclaim_unknown"
    same_account = (_d.gateway == gateway, _d.account == account) if again else ()
    # A first send is in no batch yet; a repeat goes in the one that it was in, or alone.
    batch = {} if again else {"batch_id": null()}
    return (
        update(delivery)
        .where(
            _d.manifest_id == r.c.manifest_id,
            _d.ordinal == r.c.ordinal,
            _d.state.in_(sorted(ARROWS[arrow_name].sources)),
            *same_account,
        )
        .values(
            state=ARROWS[arrow_name].target,
            token=r.c.token,
            due_at=null(),
            lease_ends=ledger_now() + bindparam("for_us", type_=BigInteger()),
            claimed_at=ledger_now(),
            claimed_by=bindparam("by", type_=Text()),
            gateway=gateway,
            account=account,
            hold_reason=null(),
            **batch,
        )
        .returning(_d.ordinal, _d.token, _d.claimed_at)
    )


def settle_sent(conn: Connection, rows: Rows) -> set[int]:
    """Accepted. Rows add ``message_id`` and ``proof``."""
    return _take(
        conn,
        "settle_sent",
        rows,
        {"message_id": Text(), "proof": Text()},
        lambda r: {
            **_UNCLAIMED,
            **_SETTLED_AMBIGUITY,
            **_CHARGE,
            "message_id": r.c.message_id,
            "proof": r.c.proof,
            "failure_class": null(),
            "finished_at": ledger_now(),
        },
    )


def settle_retry(conn: Connection, rows: Rows) -> set[int]:
    """Proven not sent, and worth another attempt. Rows add ``delay`` and ``failure_class``."""
    return _take(
        conn,
        "settle_retry",
        rows,
        {"delay": BigInteger(), "failure_class": Text()},
        lambda r: {
            **_UNCLAIMED,
            **_CHARGE,
            "due_at": ledger_now() + r.c.delay,
            "failure_class": r.c.failure_class,
        },
        _CLEAR,
    )


def settle_failed(conn: Connection, rows: Rows) -> set[int]:
    """A verdict that a repeat cannot change. Rows add ``failure_class``."""
    return _stop(conn, "settle_failed", rows)


def settle_dead(conn: Connection, rows: Rows) -> set[int]:
    """The retry budget is used up. Rows add ``failure_class``."""
    return _stop(conn, "settle_dead", rows)


def _stop(conn: Connection, arrow: str, rows: Rows) -> set[int]:
    return _take(
        conn,
        arrow,
        rows,
        {"failure_class": Text()},
        lambda r: {**_UNCLAIMED, **_CHARGE, "failure_class": r.c.failure_class, "finished_at": ledger_now()},
        _CLEAR,
    )


def release_pending(conn: Connection, rows: Rows) -> set[int]:
    """Back to pending: the request never reached the wire. Not an attempt. Rows add ``delay``."""
    return _release(conn, "release_pending", rows)


def release_retry(conn: Connection, rows: Rows) -> set[int]:
    """Back to retry: the request never reached the wire. Not an attempt. Rows add ``delay``."""
    return _release(conn, "release_retry", rows)


def _release(conn: Connection, arrow: str, rows: Rows) -> set[int]:
    return _take(
        conn,
        arrow,
        rows,
        {"delay": BigInteger()},
        lambda r: {**_UNCLAIMED, "due_at": ledger_now() + r.c.delay},
        _CLEAR,
    )


def settle_unknown(conn: Connection, rows: Rows) -> set[int]:
    """It may have been accepted. Rows add ``delay`` (NULL: no evidence will come by itself),
    ``hold_reason``, ``failure_class``, ``charge`` (0 or 1) and ``may_have_been_sent`` (0: this attempt
    itself was proven not sent, and the row stays as ambiguous as it was).
    """
    return _take(
        conn,
        "settle_unknown",
        rows,
        {
            "delay": BigInteger(),
            "hold_reason": Text(),
            "failure_class": Text(),
            "charge": Integer(),
            "may_have_been_sent": Integer(),
        },
        lambda r: {
            **_UNCLAIMED,
            "attempts": _d.attempts + r.c.charge,
            "budget_from": func.coalesce(_d.budget_from, _d.claimed_at),
            "due_at": ledger_now() + r.c.delay,
            "hold_reason": r.c.hold_reason,
            "failure_class": r.c.failure_class,
            "ambiguous_at": func.coalesce(_d.ambiguous_at, _d.claimed_at),
            "ambiguous_token": case(
                (or_(r.c.may_have_been_sent == 1, _d.ambiguous_token.is_(None)), _d.token),
                else_=_d.ambiguous_token,
            ),
            "absent_at": case((r.c.may_have_been_sent == 1, null()), else_=_d.absent_at),
        },
    )


def expire_lease(
    conn: Connection, manifest_ids: Sequence[int], gateway: str, account: str, delay: int | None
) -> Sequence[Row[Any]]:
    """Claims whose lease is over become unknown: nobody knows whether they were sent.

    Evidence is due after ``delay`` where the claim was made for this gateway and account; elsewhere,
    or without a delay, the row is held. Returns what the attempt's record needs.
    """
    same = and_(_d.gateway == gateway, _d.account == account)
    due = case((same, ledger_now() + delay), else_=null()) if delay is not None else null()
    held = case(
        (same, null() if delay is not None else HoldReason.NO_EVIDENCE), else_=HoldReason.OTHER_ACCOUNT
    )
    statement = (
        update(delivery)
        .where(
            _d.manifest_id.in_(manifest_ids),
            _d.state.in_(sorted(ARROWS["expire_lease"].sources)),
            _d.lease_ends < ledger_now(),
        )
        .values(
            state=ARROWS["expire_lease"].target,
            lease_ends=null(),
            due_at=due,
            hold_reason=held,
            failure_class=FailureClass.AMBIGUOUS,
            attempts=_d.attempts + 1,
            budget_from=func.coalesce(_d.budget_from, _d.claimed_at),
            ambiguous_at=func.coalesce(_d.ambiguous_at, _d.claimed_at),
            ambiguous_token=_d.token,
            absent_at=null(),
        )
        .returning(
            _d.manifest_id,
            _d.ordinal,
            _d.token,
            _d.claimed_by,
            _d.gateway,
            _d.account,
            _d.batch_id,
            _d.claimed_at,
        )
    )
    return conn.execute(statement).all()


def doubt(conn: Connection, rows: Rows) -> set[int]:
    """The lost copy of a restored ledger may have sent these. Rows: manifest_id, ordinal, ``new_token``,
    ``since`` (from when), ``gateway`` and ``account``; none has a ``token``. Returns the new tokens.

    Evidence counts as for an attempt that ends now: until then the lost copy may have been sending.
    """
    if not rows:
        return set()
    arrow = ARROWS["doubt"]
    r = rowset(
        conn,
        "r",
        {
            "manifest_id": BigInteger(),
            "ordinal": BigInteger(),
            "new_token": BigInteger(),
            "since": BigInteger(),
            "gateway": Text(),
            "account": Text(),
        },
    )
    statement = (
        update(delivery)
        .where(
            _d.manifest_id == r.c.manifest_id,
            _d.ordinal == r.c.ordinal,
            _d.state.in_(sorted(arrow.sources)),
        )
        .values(
            state=arrow.target,
            token=r.c.new_token,
            due_at=ledger_now(),
            claimed_at=ledger_now(),
            gateway=r.c.gateway,
            account=r.c.account,
            hold_reason=null(),
            failure_class=FailureClass.AMBIGUOUS,
            ambiguous_at=func.coalesce(_d.ambiguous_at, r.c.since),
            ambiguous_token=r.c.new_token,
            absent_at=null(),
        )
        .returning(_d.token)
    )
    return set(conn.execute(statement, {"r": rowset_value(rows)}).scalars())


def apply_acceptance(conn: Connection, rows: Rows) -> Sequence[Row[Any]]:
    """Positive evidence, from whatever state but cleaned. Rows add ``message_id`` and ``proof``.

    Not guarded by the newest token: an acceptance is a fact about the customer, also when it comes
    late. Returns the rows moved with their newest token, so that a caller sees a newer attempt.
    """
    if not rows:
        return []
    arrow = ARROWS["apply_acceptance"]
    r = rowset(conn, "r", {**_KEY, "message_id": Text(), "proof": Text()})
    statement = (
        update(delivery)
        .where(
            _d.manifest_id == r.c.manifest_id,
            _d.ordinal == r.c.ordinal,
            _d.state.in_(sorted(arrow.sources)),
        )
        .values(
            **_UNCLAIMED,
            **_SETTLED_AMBIGUITY,
            state=arrow.target,
            due_at=null(),
            hold_reason=null(),
            suppression=null(),
            failure_class=null(),
            message_id=r.c.message_id,
            proof=r.c.proof,
            finished_at=ledger_now(),
        )
        .returning(_d.manifest_id, _d.ordinal, _d.token)
    )
    return conn.execute(statement, {"r": rowset_value(rows)}).all()


def resolve_sent(conn: Connection, rows: Rows) -> set[int]:
    """A person's word that an unknown was sent: only while it is unknown, under the token they saw.

    Evidence from a provider is a fact and needs no such guard (``apply_acceptance``). Rows add
    ``message_id`` and ``proof``.
    """
    return _take(
        conn,
        "resolve_sent",
        rows,
        {"message_id": Text(), "proof": Text()},
        lambda r: {
            **_SETTLED_AMBIGUITY,
            "due_at": null(),
            "hold_reason": null(),
            "failure_class": null(),
            "message_id": r.c.message_id,
            "proof": r.c.proof,
            "finished_at": ledger_now(),
        },
    )


def disprove_unknown(conn: Connection, rows: Rows) -> set[int]:
    """Every ambiguous attempt is disproved; the row may be sent again. Rows add ``delay``."""
    return _take(
        conn,
        "disprove_unknown",
        rows,
        {"delay": BigInteger()},
        lambda r: {**_SETTLED_AMBIGUITY, "hold_reason": null(), "due_at": ledger_now() + r.c.delay},
        _d.ambiguous_at.is_not(None),
    )


def write_off(conn: Connection, rows: Rows) -> set[int]:
    """Nobody will ever know: ended by a person or by the retention rule, and kept visible."""
    return _take(
        conn,
        "write_off",
        rows,
        {},
        lambda r: {"due_at": null(), "hold_reason": null(), "finished_at": ledger_now()},
    )


def fail_sent(conn: Connection, rows: Rows) -> set[int]:
    """The provider says that what it accepted never left. Rows add ``failure_class``."""
    return _take(
        conn,
        "fail_sent",
        rows,
        {"failure_class": Text()},
        lambda r: {"failure_class": r.c.failure_class, "proof": null(), "finished_at": ledger_now()},
    )


def raise_proof(conn: Connection, manifest_id: int, ordinal: int, proof: Proof) -> bool:
    """A sent delivery is better known about: keep the higher proof. No arrow, the state stays.

    Never lowers one: a late ``delivered`` leaves ``complained`` as it is. Returns whether it changed.
    """
    lower = [p for p in Proof if p.rank < proof.rank]
    return bool(
        conn.execute(
            update(delivery)
            .where(
                _d.manifest_id == manifest_id,
                _d.ordinal == ordinal,
                _d.state.in_(sorted(REACHED)),
                _d.proof.in_(lower),
            )
            .values(proof=proof)
        ).rowcount
    )


def clean(
    conn: Connection, manifest_id: int, after: int, limit: int, proof: Proof, waited: int, run: str
) -> list[int]:
    """Mark sent rows cleaned whose proof is reached and whose delay or window is over; return ordinals.

    The guard is here and not only in the pipeline's order: state, proof, age and content are read in
    the same statement, so a late or repeated cleanup changes nothing. ``waited``: how long after the
    send, or -1 for "when the delivery window has closed".
    """
    sources = sorted(ARROWS["clean"].sources)
    reached = [p for p in Proof if p in (Proof.ACCEPTED, Proof.DELIVERED) and p.rank >= proof.rank]
    over = (
        exists().where(
            manifest.c.id == manifest_id,
            manifest.c.window_closes_at < ledger_now(),
            func.coalesce(manifest.c.late_until, 0) < ledger_now(),
        )
        if waited < 0
        else _d.finished_at + waited <= ledger_now()
    )
    page = (
        select(_d.ordinal)
        .where(
            _d.manifest_id == manifest_id,
            _d.ordinal > after,
            _d.state.in_(sources),
            _d.proof.in_(reached),
            over,
        )
        .order_by(_d.ordinal)
        .limit(limit)
    )
    statement = (
        update(delivery)
        .where(
            _d.manifest_id == manifest_id,
            _d.ordinal.in_(page),
            _d.state.in_(sources),
            _d.proof.in_(reached),
            over,
        )
        .values(state=ARROWS["clean"].target, cleaned_at=ledger_now(), cleaned_by=run)
        .returning(_d.ordinal)
    )
    return sorted(conn.execute(statement).scalars())


def remove_content(conn: Connection, manifest_id: int, ordinals: Sequence[int]) -> int:
    """Remove generated rows by exact identity; return how many there were."""
    result = conn.execute(
        content.delete().where(content.c.manifest_id == manifest_id, content.c.ordinal.in_(ordinals))
    )
    return result.rowcount


def suppress(conn: Connection, manifest_id: int, reasons: Mapping[int, str]) -> list[int]:
    """Not to be sent after all: ordinal -> reason. Only rows that wait; returns those changed."""
    if not reasons:
        return []
    r = rowset(conn, "r", {"ordinal": BigInteger(), "reason": Text()})
    rows = [{"ordinal": ordinal, "reason": reason} for ordinal, reason in reasons.items()]
    statement = (
        update(delivery)
        .where(
            _d.manifest_id == manifest_id,
            _d.ordinal == r.c.ordinal,
            _d.state.in_(sorted(ARROWS["suppress"].sources)),
            # Before the content's seal nobody can have sent, doubt or not: an address that repeats is merged.
            exists().where(
                manifest.c.id == manifest_id, or_(manifest.c.content_sealed_at.is_(None), is_out_of_doubt())
            ),
        )
        .values(
            state=ARROWS["suppress"].target, suppression=r.c.reason, due_at=null(), finished_at=ledger_now()
        )
        .returning(_d.ordinal)
    )
    return list(conn.execute(statement, {"r": rowset_value(rows)}).scalars())


def close_window(conn: Connection, manifest_id: int) -> int:
    """The delivery window is over: what was tried and still waits is dead. Returns how many."""
    return len(_close(conn, "close_window", manifest_id, 0, {}))


def close_manifest(conn: Connection, manifest_id: int, age: int = 0) -> int:
    """What was never tried is dead, ``age`` after the window (and any permission) ended. Returns how many.

    Nothing does this by itself when a window closes: rows that were never tried are held, so that a
    period can still be sent late as a whole. ``age`` counts from the content's seal at the earliest: a week
    that was frozen long after its window is held like any other. They get a token, although no claim was ever made: a replay
    is guarded by the token it has seen.
    """
    ended = _close(conn, "close_manifest", manifest_id, age, {"token": token_by_ordinal(conn, _d.ordinal)})
    keep_tokens(conn, max(ended, default=0))
    return len(ended)


def _close(
    conn: Connection, arrow_name: str, manifest_id: int, age: int, more: Mapping[str, Any]
) -> list[int]:
    over = ledger_now() - age
    statement = (
        update(delivery)
        .where(
            _d.manifest_id == manifest_id,
            _d.state.in_(sorted(ARROWS[arrow_name].sources)),
            func.coalesce(_d.late_until, 0) <= over,
            # Asked again here: a permission may have come since the caller looked.
            exists().where(
                manifest.c.id == manifest_id,
                manifest.c.window_closes_at <= over,
                func.coalesce(manifest.c.late_until, 0) <= over,
                manifest.c.content_sealed_at <= over,
                is_out_of_doubt(),
            ),
        )
        .values(
            state=ARROWS[arrow_name].target,
            failure_class=FailureClass.WINDOW,
            due_at=null(),
            finished_at=ledger_now(),
            **more,
        )
        .returning(_d.ordinal)
    )
    return list(conn.execute(statement).scalars())


def replay(conn: Connection, rows: Rows) -> set[int]:
    """A person's order to try a dead letter again, with a fresh budget, its own key and a permission.

    Rows add ``late``: for how long it may be sent although its window has closed. A delivery of which
    any attempt was accepted, whose generated rows are gone, or that stopped before the ledger was
    restored from a backup (it may have been replayed since, in the copy that was lost), is never moved:
    that is a guard here, whatever the caller has looked at.
    """
    was_accepted = exists().where(
        attempt.c.manifest_id == _d.manifest_id,
        attempt.c.ordinal == _d.ordinal,
        or_(attempt.c.outcome == "accepted", attempt.c.late_outcome.in_(("accepted", "replayed"))),
    )
    return _take(
        conn,
        "replay",
        rows,
        {"late": BigInteger()},
        lambda r: {
            "due_at": ledger_now(),
            "late_until": ledger_now() + r.c.late,
            "attempts": 0,
            "budget_from": ledger_now(),
            "failure_class": null(),
            "finished_at": null(),
        },
        _CLEAR,
        ~was_accepted,
        ~exists().where(ledger_identity.c.restored_at > _d.finished_at),
        exists().where(content.c.manifest_id == _d.manifest_id, content.c.ordinal == _d.ordinal),
    )

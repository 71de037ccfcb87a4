"""The receipts of a subscriber: what became of each key that was pushed to it. One function per arrow.

```
(nothing) --receive--> received --claim--> sending --complete--> complete
sending --reject, not ambiguous--> rejected
sending --release, not ambiguous--> received
sending --doubt, or lease over--> unknown                    sets ambiguous_at
unknown --claim, where the gateway replays keys--> sending
unknown --absent twice--> received                           clears ambiguous_at
any state but complete --positive evidence--> complete
unknown --a person knows that it was sent--> complete
unknown | rejected --a person's order to let it be sent--> received
```

Each arrow is one UPDATE guarded by the state it starts from and the token of the newest claim; False means
that somebody else was faster. Instants and durations are microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, func, null, or_, select, update

from digest_pipeline.ledger.dialects import insert_new, ledger_now, locked, next_tokens
from digest_pipeline.ledger.schema import push_receipt
from digest_pipeline.outcomes import FailureClass, Proof

_r = push_receipt.c


class ReceiptState(StrEnum):
    """Where a pushed key stands."""

    RECEIVED = "received"
    SENDING = "sending"
    UNKNOWN = "unknown"
    COMPLETE = "complete"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Receipt:
    """One key as stored; ``now`` is the ledger's clock when it was read."""

    operation_key: str
    payload_hash: str
    state: ReceiptState
    token: int
    claimed_at: int | None
    lease_ends: int | None
    attempts: int
    gateway: str | None
    account: str | None
    ambiguous_at: int | None
    ended_at: int | None
    absent_at: int | None
    due_at: int | None
    message_id: str | None
    failure_class: FailureClass | None
    suppressed: bool
    now: int

    @property
    def lease_left(self) -> int:
        """Microseconds for which a sender may still be at it; 0 or less when nobody is."""
        return 0 if self.lease_ends is None else self.lease_ends - self.now


def read(conn: Connection, key: str) -> Receipt | None:
    """Return the receipt of a key."""
    return _found(conn, select(push_receipt, ledger_now().label("now")).where(_r.operation_key == key))


def lock(conn: Connection, key: str) -> Receipt | None:
    """Return the receipt of a key, and keep it from others until the transaction ends."""
    if conn.execute(locked(conn, select(_r.token).where(_r.operation_key == key))).first() is None:
        return None
    return read(conn, key)  # with a clock that is read once the lock is held


def receive(conn: Connection, key: str, payload_hash: str) -> bool:
    """(nothing) -> received; False where the key is known already."""
    values = {
        "operation_key": key,
        "payload_hash": payload_hash,
        "state": ReceiptState.RECEIVED,
        "token": 0,
        "attempts": 0,
        "received_at": conn.execute(select(ledger_now())).scalar_one(),
    }
    return insert_new(conn, push_receipt, values)


def claim(conn: Connection, receipt: Receipt, gateway: str, account: str, lease: int) -> int | None:
    """Received | unknown -> sending; return the token of the claim, or None when it was lost.

    An unknown is claimed only for a repeat under the same key, by the gateway and account it is in doubt at.
    """
    (token,) = next_tokens(conn, 1)
    same_account = [] if receipt.ambiguous_at is None else [_r.gateway == gateway, _r.account == account]
    changed = conn.execute(
        update(push_receipt)
        .where(
            _r.operation_key == receipt.operation_key,
            _r.state.in_((ReceiptState.RECEIVED, ReceiptState.UNKNOWN)),
            _r.state == receipt.state,
            _r.token == receipt.token,
            *same_account,
        )
        .values(
            state=ReceiptState.SENDING,
            token=token,
            claimed_at=ledger_now(),
            lease_ends=ledger_now() + lease,
            gateway=gateway,
            account=account,
            due_at=null(),
            attempts=_r.attempts + 1,
        )
    )
    return token if changed.rowcount else None


def address(conn: Connection, key: str, token: int, digest: str, tenant: str, address_hash: str) -> None:
    """Remember whom a claimed key is about: events and opt-outs name the key alone."""
    conn.execute(
        update(push_receipt)
        .where(_r.operation_key == key, *_claimed(token))
        .values(digest=digest, tenant=tenant, address_hash=address_hash)
    )


def complete(conn: Connection, key: str, message_id: str | None, proof: Proof) -> bool:
    """Any state but complete -> complete, on evidence: an acceptance, a look-up's hit, an event."""
    values = {"message_id": message_id, "proof": proof, "failure_class": null(), "ambiguous_at": null()}
    return _change(conn, key, ReceiptState.COMPLETE, [_r.state != ReceiptState.COMPLETE], values)


def reject(
    conn: Connection, key: str, token: int, failure_class: FailureClass, detail: str, *, suppressed: bool
) -> bool:
    """Sending -> rejected: a verdict about this message, which nothing in doubt speaks against."""
    values = {"failure_class": failure_class, "detail": detail, "suppressed": suppressed}
    return _change(conn, key, ReceiptState.REJECTED, [*_claimed(token), _r.ambiguous_at.is_(None)], values)


def refuse(
    conn: Connection, receipt: Receipt, failure_class: FailureClass, detail: str, *, suppressed: bool
) -> bool:
    """Received -> rejected, without an attempt: what is suppressed, erased or gone is not offered to anybody."""
    values = {"failure_class": failure_class, "detail": detail, "suppressed": suppressed}
    guard = [_r.state == ReceiptState.RECEIVED, _r.token == receipt.token]
    return _change(conn, receipt.operation_key, ReceiptState.REJECTED, guard, values)


def is_rejected(conn: Connection, key: str, token: int) -> bool:
    """Whether the claim with this token ended as a rejection."""
    rejected = _r.operation_key == key, _r.token == token, _r.state == ReceiptState.REJECTED
    return conn.execute(select(_r.token).where(*rejected)).first() is not None


def resolve_sent(conn: Connection, key: str, token: int) -> bool:
    """Unknown -> complete, on a person's word: only while it is unknown, under the token they saw."""
    values = {"proof": Proof.ACCEPTED, "ambiguous_at": null(), "due_at": null()}
    return _change(
        conn, key, ReceiptState.COMPLETE, [_r.state == ReceiptState.UNKNOWN, _r.token == token], values
    )


def reopen(conn: Connection, key: str, token: int) -> bool:
    """Unknown | rejected -> received, on a person's order: the next push of the key is sent."""
    names = ("ambiguous_at", "ended_at", "absent_at", "due_at", "failure_class", "suppressed", "detail")
    guard = [_r.state.in_((ReceiptState.UNKNOWN, ReceiptState.REJECTED)), _r.token == token]
    return _change(conn, key, ReceiptState.RECEIVED, guard, dict.fromkeys(names, null()))


def stuck(conn: Connection, limit: int) -> list[Row[Any]]:
    """Return receipts that nothing moves but a person, or an event: unknown without a due time, and rejected."""
    waiting = and_(_r.state == ReceiptState.UNKNOWN, _r.due_at.is_(None))
    query = select(push_receipt).where(or_(waiting, _r.state == ReceiptState.REJECTED))
    return list(conn.execute(query.order_by(_r.state.desc(), _r.operation_key).limit(limit)))


def release(conn: Connection, key: str, token: int, *, delay: int, charged: bool) -> bool:
    """Sending -> received: nobody has it. ``charged``: it was an attempt."""
    values = {"due_at": ledger_now() + delay, "attempts": _r.attempts - (0 if charged else 1)}
    return _change(conn, key, ReceiptState.RECEIVED, [*_claimed(token), _r.ambiguous_at.is_(None)], values)


def doubt(
    conn: Connection, key: str, token: int, *, delay: int | None, again: bool, charged: bool, detail: str
) -> bool:
    """Sending -> unknown. ``delay``: until evidence can be had, None: a person or an event settles it.

    ``again``: this claim may have been accepted; without it, an earlier one still may.
    """
    values: dict[str, Any] = {
        "due_at": null() if delay is None else ledger_now() + delay,
        "attempts": _r.attempts - (0 if charged else 1),
        "detail": detail,
        "ambiguous_at": func.coalesce(_r.ambiguous_at, _r.claimed_at),
    }
    if again:
        values |= {"ended_at": ledger_now(), "absent_at": null()}
    guard = [*_claimed(token)] if again else [*_claimed(token), _r.ambiguous_at.is_not(None)]
    return _change(conn, key, ReceiptState.UNKNOWN, guard, values)


def expire(conn: Connection, key: str, token: int, *, delay: int | None) -> bool:
    """Sending -> unknown, once its lease is over: its sender died, or is late."""
    values = {
        "due_at": null() if delay is None else _r.lease_ends + delay,
        "ended_at": _r.lease_ends,
        "absent_at": null(),
        "ambiguous_at": func.coalesce(_r.ambiguous_at, _r.claimed_at),
    }
    guard = [*_claimed(token), _r.lease_ends <= ledger_now()]
    return _change(conn, key, ReceiptState.UNKNOWN, guard, values)


def note_absence(conn: Connection, receipt: Receipt, delay: int) -> bool:
    """Remember a first absence that counts; the question is asked again after ``delay``."""
    return _keep_unknown(
        conn,
        receipt,
        {"absent_at": func.coalesce(_r.absent_at, ledger_now()), "due_at": ledger_now() + delay},
    )


def ask_later(conn: Connection, receipt: Receipt, delay: int) -> bool:
    """Put the question off."""
    return _keep_unknown(conn, receipt, {"due_at": ledger_now() + delay})


def hold(conn: Connection, receipt: Receipt) -> bool:
    """Nothing settles it by itself any more."""
    return _keep_unknown(conn, receipt, {"due_at": null()})


def disprove(conn: Connection, receipt: Receipt) -> bool:
    """Unknown -> received: absent twice, apart, while a key that was surely sent is listed."""
    values = {"ambiguous_at": null(), "ended_at": null(), "absent_at": null(), "due_at": null()}
    guard = [_r.state == ReceiptState.UNKNOWN, _r.token == receipt.token, _r.absent_at.is_not(None)]
    return _change(conn, receipt.operation_key, ReceiptState.RECEIVED, guard, values)


def known_sent_key(conn: Connection, gateway: str, account: str, visible: int, retention: int) -> str | None:
    """Return the newest key that a working look-up must find."""
    return conn.execute(
        select(_r.operation_key)
        .where(
            _r.state == ReceiptState.COMPLETE,
            _r.gateway == gateway,
            _r.account == account,
            _r.finished_at < ledger_now() - visible,
            _r.claimed_at > ledger_now() - retention,
        )
        .order_by(_r.token.desc())
        .limit(1)
    ).scalar_one_or_none()


def _claimed(token: int) -> list[ColumnElement[bool]]:
    return [_r.state == ReceiptState.SENDING, _r.token == token]


def _keep_unknown(conn: Connection, receipt: Receipt, values: dict[str, Any]) -> bool:
    guard = [_r.state == ReceiptState.UNKNOWN, _r.token == receipt.token]
    return _change(conn, receipt.operation_key, ReceiptState.UNKNOWN, guard, values)


def _change(
    conn: Connection, key: str, to: ReceiptState, guard: list[ColumnElement[bool]], values: dict[str, Any]
) -> bool:
    final = to in (ReceiptState.COMPLETE, ReceiptState.REJECTED)
    statement = (
        update(push_receipt)
        .where(_r.operation_key == key, *guard)
        .values(state=to, lease_ends=null(), finished_at=ledger_now() if final else null(), **values)
    )
    return conn.execute(statement).rowcount > 0


def _found(conn: Connection, query: Any) -> Receipt | None:
    row = conn.execute(query).one_or_none()
    if row is None:
        return None
    values = {name: getattr(row, name) for name in Receipt.__slots__}
    values["state"] = ReceiptState(row.state)
    values["failure_class"] = FailureClass(row.failure_class) if row.failure_class else None
    values["suppressed"] = bool(row.suppressed)
    return Receipt(**values)

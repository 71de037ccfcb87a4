"""A round of look-ups: ask the provider about what is unknown, and settle what the answers prove."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from sqlalchemy import Connection, Row

from digest_pipeline import faults, telemetry
from digest_pipeline.delivery.plan import MICROS, SendPlan
from digest_pipeline.ledger import acceptances, doubts, transitions
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.outcomes import Absent, Found, LookUp
from digest_pipeline.reconciliation.asking import ask, take_permits
from digest_pipeline.reconciliation.evidence import Doubt, Finding, apart, judge
from digest_pipeline.states import HoldReason

PAGE = 200
ASK_AGAIN = 30 * MICROS
CONTROL_WAIT = 60.0
"""Seconds for which the question about a key that was surely sent may wait for its permit."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One unknown row and what the provider said about its key, ``asked_at`` by the ledger's clock."""

    row: Row[Any]
    answer: LookUp
    asked_at: int


async def settle_unknowns(ledger: Ledger, plan: SendPlan) -> Counter[Finding]:
    """Settle the unknowns whose evidence is due and lies in a look-up; return how many of each kind.

    What this gateway can never settle is held, with the reason, and is not due any more. Look-ups
    take permits from the same gate as sends. Safe beside any number of others: every change is
    guarded by the token that was asked about.
    """
    ids = plan.manifest_ids
    name, account = plan.gateway.name, plan.gateway.account
    findings: Counter[Finding] = Counter()
    ledger.transact(lambda conn: doubts.hold_other_accounts(conn, ids, name, account))
    while True:
        with ledger.read() as conn:
            rows = doubts.to_ask(
                conn, ids, name, account, plan.resend_lifetime, PAGE, keyed_batches=plan.keyed_batches
            )
        if not rows:
            return findings
        if not plan.gateway.capabilities.look_up:
            _hold(ledger, plan, rows)
            findings[Finding.NO_EVIDENCE] += len(rows)
            continue
        starts = take_permits(ledger, plan, len(rows)).starts
        if not starts:
            return findings
        found = await _ask_page(ledger, plan, rows[: len(starts)], starts)
        findings += found
        telemetry.evidence_found({str(kind): count for kind, count in found.items()})


async def _ask_page(
    ledger: Ledger, plan: SendPlan, rows: Sequence[Row[Any]], starts: Sequence[float]
) -> Counter[Finding]:
    read_at = time.monotonic()
    faults.reach(faults.Point.DURING_LOOK_UP)
    replies = await ask(ledger, plan, [row.operation_key for row in rows], starts)
    # The ledger's clock when the question went out: read with the rows, carried on monotonically.
    answers = [
        Answer(row, reply.answer, row.now + int((reply.began - read_at) * MICROS))
        for row, reply in zip(rows, replies, strict=True)
    ]
    absent = any(isinstance(one.answer, Absent) for one in answers)
    hit = any(isinstance(one.answer, Found) for one in answers)
    control_found = absent and (hit or await _control_found(ledger, plan))
    findings = ledger.transact(lambda conn: apply_answers(conn, plan, answers, control_found))
    faults.reach(faults.Point.AFTER_EVIDENCE_COMMIT)
    return findings


async def _control_found(ledger: Ledger, plan: SendPlan) -> bool:
    """Whether look-ups work at all just now: a key that was surely sent must be found."""
    can = plan.gateway.capabilities
    assert can.visibility_delay is not None
    assert can.look_up_retention is not None
    with ledger.read() as conn:
        key = doubts.known_sent_key(
            conn,
            plan.manifest_ids,
            plan.gateway.name,
            plan.gateway.account,
            int(can.visibility_delay.total_seconds() * MICROS),
            int(can.look_up_retention.total_seconds() * MICROS),
        )
    if key is None:
        return False
    # A gate slower than one question a second must not keep absences from ever counting.
    starts = take_permits(ledger, plan, 1, CONTROL_WAIT).starts
    replies = await ask(ledger, plan, [key] * len(starts), starts)
    return any(isinstance(reply.answer, Found) for reply in replies)


def apply_answers(
    conn: Connection, plan: SendPlan, answers: list[Answer], control_found: bool
) -> Counter[Finding]:
    """Write what a page of answers proves, in one transaction."""
    can, timeout = plan.gateway.capabilities, plan.digest.sending.timeout_seconds
    groups: dict[Finding, list[dict[str, Any]]] = defaultdict(list)
    for one in answers:
        row = one.row
        doubt = Doubt(row.ambiguous_at, row.last_ended_at, row.absent_at)
        finding = judge(one.answer, doubt, can, timeout, one.asked_at, control_found=control_found)
        entry = {"manifest_id": row.manifest_id, "ordinal": row.ordinal, "token": row.token}
        groups[finding].append({**entry, **_fields(finding, one.answer, apart(can))})
    for finding, rows in groups.items():
        _apply(conn, finding, rows)
    faults.reach(faults.Point.BEFORE_EVIDENCE_COMMIT)
    return Counter({finding: len(rows) for finding, rows in groups.items()})


def _fields(finding: Finding, answer: LookUp, between: int) -> dict[str, Any]:
    match finding:
        case Finding.SENT:
            assert isinstance(answer, Found)
            return {"message_id": answer.message_id, "proof": answer.proof}
        case Finding.ABSENT_ONCE:
            return {"delay": between}
        case Finding.DISPROVED:
            return {"delay": 0}
        case Finding.ASK_LATER:
            return {"delay": max(ASK_AGAIN, between)}
        case Finding.NO_EVIDENCE:
            return {"reason": HoldReason.NO_EVIDENCE}
        case _:
            assert_never(finding)


def _apply(conn: Connection, finding: Finding, rows: list[dict[str, Any]]) -> None:
    match finding:
        case Finding.SENT:
            telemetry.overtaken(acceptances.apply(conn, rows))
        case Finding.ABSENT_ONCE:
            doubts.note_absence(conn, rows)
        case Finding.DISPROVED:
            transitions.disprove_unknown(conn, rows)
        case Finding.ASK_LATER:
            doubts.ask_later(conn, rows)
        case Finding.NO_EVIDENCE:
            doubts.hold(conn, rows)
        case _:
            assert_never(finding)


def _hold(ledger: Ledger, plan: SendPlan, rows: list[Row[Any]]) -> None:
    held = _held(rows, plan.resend_lifetime)
    ledger.transact(lambda conn: doubts.hold(conn, held))


def _held(rows: list[Row[Any]], lifetime: int | None) -> list[dict[str, Any]]:
    def reason(row: Row[Any]) -> HoldReason:
        if lifetime is not None and row.ambiguous_at <= row.now - lifetime:
            return HoldReason.KEY_EXPIRED
        if lifetime is not None and not row.window_open:
            return HoldReason.WINDOW_CLOSED
        return HoldReason.NO_EVIDENCE

    return [
        {"manifest_id": r.manifest_id, "ordinal": r.ordinal, "token": r.token, "reason": reason(r)}
        for r in rows
    ]

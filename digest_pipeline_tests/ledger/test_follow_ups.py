"""Finding work in the ledger: from small indexes, never by walking through what is finished or held."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, event

from digest_pipeline.ledger import follow_ups, kept_rows, reads
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.follow_ups import Reason, Sending
from digest_pipeline.ledger.kept_rows import Keeping
from digest_pipeline.outcomes import Proof
from digest_pipeline.states import State
from digest_pipeline_tests.harness.ledgers import LABEL, plant, plant_attempt, run_ledger_sql

DIGEST = "tiny_digest"
FAR = 2**60
HOW = Sending(gateway="sandbox", sends=True, asks=True, grace=0)
KEPT = Keeping(
    Proof.ACCEPTED,
    0,
    dict.fromkeys((State.FAILED, State.DEAD, State.SUPPRESSED, State.WRITTEN_OFF), FAR),
    FAR,
    FAR,
)
Shared = tuple[Ledger, int]


@pytest.fixture
def desk(shared: Shared) -> Shared:
    """Twelve deliveries that failed and keep their rows, in a window that is open."""
    ledger, manifest = shared
    run_ledger_sql(ledger, "DELETE FROM attempt")
    run_ledger_sql(
        ledger,
        "UPDATE manifest SET state = 'sealed', window_opens_at = 1000, window_closes_at = :far, "
        "late_until = NULL, content_sealed_at = 500, sealed_at = 400, in_doubt_from_at = NULL",
        far=FAR,
    )
    for ordinal in range(1, 13):
        plant(ledger, manifest, ordinal, "failed", failure_class="recipient", late_until=None)
    return shared


def deliveries(desk: Shared, **how: Any) -> list[tuple[str, Reason]]:
    with desk[0].read() as conn:
        return [(one.period, one.reason) for one in follow_ups.deliveries(conn, DIGEST, replace(HOW, **how))]


def cleanups(desk: Shared, **how: Any) -> list[Reason]:
    with desk[0].read() as conn:
        return [one.reason for one in kept_rows.cleanups(conn, DIGEST, replace(KEPT, **how))]


def header(desk: Shared, **columns: Any) -> None:
    changed = ", ".join(f"{name} = :{name}" for name in columns)
    run_ledger_sql(desk[0], f"UPDATE manifest SET {changed}", **columns)


CASES: dict[str, tuple[dict[str, Any], Reason]] = {
    "never sent": ({"state": "pending", "due_at": 1_000}, Reason.UNDELIVERED),
    "due again": ({"state": "retry", "due_at": 2_000}, Reason.RETRIES_DUE),
    "evidence": ({"state": "unknown", "due_at": 2_000}, Reason.EVIDENCE_DUE),
    "dead sender": ({"state": "claimed", "lease_ends": 3_000}, Reason.LEASES_ENDED),
}


@pytest.mark.parametrize(("row", "reason"), CASES.values(), ids=CASES.keys())
def test_each_row_that_can_go_on_is_found_with_its_reason(desk: Shared, row: Any, reason: Reason) -> None:
    assert deliveries(desk) == []
    plant(*desk, 7, **row)
    assert deliveries(desk) == [(LABEL, reason)]


LATER: dict[str, dict[str, Any]] = {
    "not due": {"state": "retry", "due_at": FAR},
    "evidence not due": {"state": "unknown", "due_at": FAR},
    "held unknown": {"state": "unknown", "due_at": None, "hold_reason": "no_evidence"},
    "live lease": {"state": "claimed", "lease_ends": FAR},
    "sent": {"state": "sent"},
}


@pytest.mark.parametrize("row", LATER.values(), ids=LATER.keys())
def test_what_waits_for_time_or_for_a_person_is_no_work(desk: Shared, row: Any) -> None:
    plant(*desk, 7, **row)
    assert deliveries(desk) == []


def test_the_most_urgent_reason_stands_for_a_period(desk: Shared) -> None:
    plant(*desk, 5, "retry", due_at=2_000)
    plant(*desk, 6, "claimed", lease_ends=3_000)
    assert deliveries(desk) == [(LABEL, Reason.LEASES_ENDED)]


def test_a_closed_window_leaves_evidence_permissions_and_retries_to_be_ended(desk: Shared) -> None:
    header(desk, window_closes_at=2_000)
    plant(*desk, 1, "pending", due_at=1_000)
    assert deliveries(desk) == []
    plant(*desk, 2, "retry", due_at=FAR)
    assert deliveries(desk) == [(LABEL, Reason.WINDOW_CLOSED)]
    plant(*desk, 2, "retry", due_at=2_000, late_until=FAR)
    assert deliveries(desk) == [(LABEL, Reason.RETRIES_DUE)]
    plant(*desk, 2, "unknown", due_at=2_000)
    assert deliveries(desk) == [(LABEL, Reason.EVIDENCE_DUE)]
    header(desk, late_until=FAR)
    plant(*desk, 2, "failed", failure_class="recipient")
    assert deliveries(desk) == [(LABEL, Reason.UNDELIVERED)]


def test_where_sending_is_disabled_only_evidence_is_sought_and_only_where_it_can_be_had(desk: Shared) -> None:
    plant(*desk, 1, "pending", due_at=1_000)
    plant(*desk, 2, "retry", due_at=2_000)
    assert deliveries(desk, sends=False) == []
    plant(*desk, 3, "unknown", due_at=3_000)
    assert deliveries(desk, sends=False) == [(LABEL, Reason.EVIDENCE_DUE)]
    assert deliveries(desk, sends=False, asks=False) == []


def test_what_was_sealed_lately_is_left_to_whoever_sealed_it(desk: Shared) -> None:
    with desk[0].read() as conn:
        now = reads.now(conn)
    plant(*desk, 1, "pending", due_at=1_000)
    header(desk, content_sealed_at=now - 60_000_000)
    assert deliveries(desk, grace=3_600_000_000) == []
    assert deliveries(desk, grace=1_000_000) == [(LABEL, Reason.UNDELIVERED)]
    plant(*desk, 1, "failed", failure_class="recipient")
    header(desk, content_sealed_at=None, sealed_at=now - 60_000_000)
    assert deliveries(desk, grace=3_600_000_000) == []
    assert deliveries(desk, grace=1_000_000) == [(LABEL, Reason.CONTENT_NOT_SEALED)]
    header(desk, state="building")
    assert deliveries(desk) == []


def test_another_digest_has_no_part_in_it(desk: Shared) -> None:
    plant(*desk, 1, "pending", due_at=1_000)
    with desk[0].read() as conn:
        assert follow_ups.deliveries(conn, "other_digest", HOW) == []
        assert kept_rows.cleanups(conn, "other_digest", KEPT) == []


def test_only_definitive_sends_with_their_proof_are_to_be_cleaned(desk: Shared) -> None:
    plant(*desk, 3, "sent")
    assert cleanups(desk) == []  # nothing was ever tried: no such row can be
    plant_attempt(*desk, 3, 1_003)
    assert cleanups(desk) == [Reason.CLEANUP_DUE]
    assert cleanups(desk, proof=Proof.DELIVERED) == []
    assert cleanups(desk, waited=FAR) == []
    assert cleanups(desk, waited=-1) == []
    header(desk, window_closes_at=2_000)
    assert cleanups(desk, waited=-1) == [Reason.CLEANUP_DUE]
    header(desk, late_until=FAR)
    assert cleanups(desk, waited=-1) == []


def test_each_retention_is_found_when_it_is_over(desk: Shared) -> None:
    assert cleanups(desk) == []
    kept = {**KEPT.kept, State.FAILED: 1}
    assert cleanups(desk, kept=kept) == [Reason.RETENTION_OVER]
    plant(*desk, 1, "unknown", due_at=None, hold_reason="no_evidence")
    assert cleanups(desk, unknown=1) == [Reason.RETENTION_OVER]
    plant(*desk, 1, "pending", due_at=1_000)
    assert cleanups(desk, unknown=1) == cleanups(desk, pending=1) == []
    header(desk, window_closes_at=2_000)
    assert cleanups(desk, pending=1) == [Reason.RETENTION_OVER]
    header(desk, in_doubt_from_at=1)
    assert cleanups(desk, pending=1) == []


@contextmanager
def statements(ledger: Ledger) -> Iterator[list[tuple[str, Any]]]:
    """Collect what is asked of the database in the block."""
    asked: list[tuple[str, Any]] = []

    def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        asked.append((statement, parameters))

    event.listen(ledger.engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        event.remove(ledger.engine, "before_cursor_execute", note)


def plan_of(conn: Connection, statement: str, parameters: Any) -> str:
    explain = "EXPLAIN" if conn.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN"
    return "\n".join(str(row[-1]) for row in conn.exec_driver_sql(f"{explain} {statement}", parameters))


def test_no_question_reads_through_the_deliveries_or_their_content(desk: Shared) -> None:
    ledger, _ = desk
    with statements(ledger) as asked, ledger.read() as conn:
        follow_ups.deliveries(conn, DIGEST, HOW)
        follow_ups.deliveries(conn, DIGEST, replace(HOW, sends=False))
        kept_rows.cleanups(conn, DIGEST, KEPT)
        kept_rows.cleanups(conn, DIGEST, replace(KEPT, waited=-1))
    selects = [one for one in asked if "manifest" in one[0]]
    assert len(selects) == 12
    with ledger.read() as conn:
        if ledger.is_postgresql:
            # With twelve rows it reads the table whatever the index: only what cannot use one does so now.
            conn.exec_driver_sql("SET LOCAL enable_seqscan = off")
        plans = [plan_of(conn, *one) for one in selects]
    whole_table = r"(SCAN|Seq Scan on) (delivery|content)"
    whole_manifest = (
        r"(autoindex_delivery_1 \(manifest_id=\?\)$|pk_delivery on delivery.*\n.*manifest\.id\)$)"
    )
    for plan in plans:
        assert not re.search(f"{whole_table}|{whole_manifest}", plan, re.MULTILINE), plan
    used = "\n".join(plans)
    assert "ix_delivery_open" in used
    assert "ix_delivery_lease" in used

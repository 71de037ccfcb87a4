from __future__ import annotations

from typing import Any

import pytest

from digest_pipeline.errors import UnknownKeyError
from digest_pipeline.ledger import reads
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.reads import Summary
from digest_pipeline.states import State
from digest_pipeline_tests.harness.ledgers import plant, plant_attempt, run_ledger_sql

Shared = tuple[Ledger, int]


@pytest.fixture
def desk(shared: Shared) -> Shared:
    """Twelve deliveries, all sent in 1970, without attempts."""
    ledger, manifest = shared
    run_ledger_sql(ledger, "DELETE FROM attempt")
    for ordinal in range(1, 13):
        plant(ledger, manifest, ordinal, "sent")
    return shared


def summary(desk: Shared) -> Summary:
    ledger, manifest = desk
    with ledger.read() as conn:
        return reads.summarise(conn, [manifest])


def duplicates(desk: Shared) -> list[str]:
    ledger, manifest = desk
    with ledger.read() as conn:
        assert reads.duplicate_sends(conn) == reads.duplicate_sends(conn, [manifest])
        return reads.duplicate_sends(conn, [manifest])


def attempt(desk: Shared, token: int, outcome: str = "accepted", ordinal: int = 1, **columns: Any) -> None:
    plant_attempt(*desk, ordinal, token, outcome=outcome, **columns)


def test_every_customer_is_in_exactly_one_state_whatever_the_mixture(desk: Shared) -> None:
    ledger, manifest = desk
    for ordinal, state in enumerate(State, 1):
        plant(
            ledger,
            manifest,
            ordinal,
            state,
            failure_class="recipient" if state in ("failed", "dead") else None,
        )
    found = summary(desk)
    assert sum(found.states.values()) == found.entries == 12
    assert found.states == {str(state): 3 if state is State.SENT else 1 for state in State}
    assert found.suppressed == {"opted_out": 1}
    assert found.failed == {"recipient": 2}
    assert sum(found.suppressed.values()) == found.states["suppressed"]
    assert not found.is_settled
    assert found.on_time == 4  # sent and cleaned
    assert found.coverage == pytest.approx(4 / 11)


def test_entries_without_content_yet_are_pending_and_held(desk: Shared) -> None:
    ledger, _ = desk
    run_ledger_sql(ledger, "CREATE TABLE kept AS SELECT content_sealed_at FROM manifest")
    try:
        run_ledger_sql(ledger, "DELETE FROM delivery WHERE ordinal > 10")
        run_ledger_sql(ledger, "UPDATE manifest SET content_sealed_at = NULL")
        found = summary(desk)
    finally:
        run_ledger_sql(ledger, "UPDATE manifest SET content_sealed_at = (SELECT content_sealed_at FROM kept)")
        run_ledger_sql(ledger, "DROP TABLE kept")
        run_ledger_sql(
            ledger,
            "INSERT INTO delivery (manifest_id, ordinal, state, due_at) SELECT manifest_id, ordinal, 'pending', 1 "
            "FROM manifest_entry WHERE ordinal > 10",
        )
    assert (found.states["sent"], found.states["pending"]) == (10, 2)
    assert found.held == {"content_not_sealed": 2}
    assert sum(found.states.values()) == found.entries


def test_rows_of_a_closed_window_are_held_until_a_permission_opens_it(desk: Shared) -> None:
    ledger, manifest = desk
    plant(ledger, manifest, 1, "pending")
    plant(ledger, manifest, 2, "unknown", hold_reason="no_evidence", due_at=None)
    assert summary(desk).held == {"no_evidence": 1}
    for window, held in (
        ("window_opens_at = 4611686018427387904", {"no_evidence": 1, "window_not_open": 1}),
        ("window_opens_at = 1, window_closes_at = 2", {"no_evidence": 1, "window_closed": 1}),
        ("late_until = 4611686018427387904", {"no_evidence": 1}),
        ("window_closes_at = 4611686018427387904, late_until = NULL", {"no_evidence": 1}),
    ):
        run_ledger_sql(ledger, f"UPDATE manifest SET {window}")
        assert summary(desk).held == held


def test_what_was_sent_after_the_window_is_not_on_time_unless_lateness_was_granted(desk: Shared) -> None:
    ledger, manifest = desk
    run_ledger_sql(ledger, "UPDATE manifest SET window_opens_at = 1, window_closes_at = 5000")
    plant(ledger, manifest, 1, "sent", finished_at=6_000)
    assert summary(desk).on_time == 11
    run_ledger_sql(ledger, "UPDATE manifest SET late_until = 7000")
    assert summary(desk).on_time == 12
    run_ledger_sql(ledger, "UPDATE manifest SET window_closes_at = 4611686018427387904, late_until = NULL")


def test_a_settled_period_says_so(desk: Shared) -> None:
    found = summary(desk)
    assert found.is_settled
    assert found.coverage == 1.0
    assert found.oldest_pending_seconds is None


def test_nobody_is_an_empty_summary(desk: Shared) -> None:
    ledger, _ = desk
    with ledger.read() as conn:
        found = reads.summarise(conn, [])
    assert (found.entries, sum(found.states.values()), found.coverage, found.is_settled) == (0, 0, 1.0, True)


def test_two_acceptances_with_different_messages_are_a_duplicate(desk: Shared) -> None:
    attempt(desk, 1, message_id="m-1")
    assert duplicates(desk) == []
    attempt(desk, 2, message_id="m-2")
    assert duplicates(desk) == ["tiny_digest:2025-W10:customer-001"]
    assert summary(desk).duplicates == 1


def test_a_replayed_answer_is_no_duplicate(desk: Shared) -> None:
    attempt(desk, 1, message_id="m-1")
    attempt(desk, 2, message_id="m-1", replayed=True)
    attempt(desk, 3, message_id="m-9", replayed=True)
    assert duplicates(desk) == []


def test_the_same_message_told_twice_is_no_duplicate(desk: Shared) -> None:
    attempt(desk, 1, "expired", late_outcome="accepted", late_message_id="m-1")
    attempt(desk, 2, message_id="m-1")
    assert duplicates(desk) == []


def test_a_late_acceptance_beside_another_message_is_a_duplicate(desk: Shared) -> None:
    attempt(desk, 1, "expired", late_outcome="accepted", late_message_id="m-1")
    attempt(desk, 2, message_id="m-2")
    assert len(duplicates(desk)) == 1


def test_two_acceptances_that_cannot_be_told_apart_count_as_two(desk: Shared) -> None:
    attempt(desk, 1)
    attempt(desk, 2)
    attempt(desk, 3, ordinal=2, message_id="m-1")
    attempt(desk, 4, ordinal=2)
    assert len(duplicates(desk)) == 2


def test_acceptances_of_different_customers_and_refusals_are_no_duplicates(desk: Shared) -> None:
    attempt(desk, 1, message_id="m-1")
    attempt(desk, 2, ordinal=2, message_id="m-2")
    attempt(desk, 3, "refused", failure_class="recipient")
    attempt(desk, 4, "ambiguous", failure_class="ambiguous")
    assert duplicates(desk) == []
    assert summary(desk).attempts == {"accepted": 2, "refused:recipient": 1, "ambiguous": 1}


def test_a_key_that_is_not_there_is_named(desk: Shared) -> None:
    ledger, manifest = desk
    with ledger.read() as conn:
        row = reads.find_entry(conn, "tiny_digest:2025-W10:customer-002")
        assert (row.manifest_id, row.entry_ordinal, row.state) == (manifest, 2, "sent")
        assert "recipient" not in row._mapping
        with pytest.raises(UnknownKeyError, match="nobody"):
            reads.find_entry(conn, "nobody")


def test_entries_come_page_by_page_in_order_without_an_address(desk: Shared) -> None:
    ledger, manifest = desk
    with ledger.read() as conn:
        pages = list(reads.entries(conn, [manifest], page=5))
    assert [len(page) for page in pages] == [5, 5, 2]
    assert [row["ordinal"] for page in pages for row in page] == list(range(1, 13))
    assert "example.test" not in repr(pages)

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from digest_pipeline.addresses import address_hash
from digest_pipeline.ledger import claims, transitions
from digest_pipeline.ledger.claims import Batch, Claimed, Claimer
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline_tests.harness import claimants
from digest_pipeline_tests.harness.children import result_of, start_child
from digest_pipeline_tests.harness.claimants import ME, MINUTE, claim_everything
from digest_pipeline_tests.harness.ledgers import (
    PERIOD,
    delivery_row,
    frozen_period,
    migrated,
    plant,
    run_ledger_sql,
    states,
    tiny_source,
    tiny_spec,
)

FAR = 2**60
CUSTOMERS = 6


@pytest.fixture
def opened(shared: tuple[Ledger, int]) -> tuple[Ledger, int]:
    """A ledger whose one manifest holds six due deliveries."""
    ledger, manifest = shared
    run_ledger_sql(ledger, "DELETE FROM suppression")
    run_ledger_sql(
        ledger,
        "UPDATE manifest SET state = 'sealed', content_sealed_at = sealed_at, window_opens_at = 1, "
        f"window_closes_at = {FAR}, late_until = NULL",
    )
    for ordinal in range(1, 13):
        state, due_at = ("pending", 1_000) if ordinal <= CUSTOMERS else ("dead", None)
        plant(ledger, manifest, ordinal, state, due_at=due_at)
    return ledger, manifest


def claim(ledger: Ledger, manifest: int, limit: int = 100, cursor: tuple[int, int] | None = None) -> Batch:
    return ledger.transact(lambda conn: claims.claim_due(conn, manifest, limit, ME, cursor))


def reclaim(ledger: Ledger, manifest: int, who: Claimer = ME, lifetime: int = FAR) -> tuple[Claimed, ...]:
    return ledger.transact(lambda conn: claims.claim_unknown(conn, manifest, 100, who, lifetime)).claimed


def suppress(ledger: Ledger, address: str, tenant: str = "default", expires_at: int | None = None) -> None:
    run_ledger_sql(
        ledger,
        "INSERT INTO suppression (tenant, address_hash, reason, since_at, expires_at) VALUES (:t, :h, 'opted_out', 1, :e)",
        t=tenant,
        h=address_hash(address),
        e=expires_at,
    )


def _many(ledger: Ledger, folder: Path, customers: int) -> int:
    with tiny_source(folder, customers) as source:
        return frozen_period(ledger, tiny_spec(folder), PERIOD, source)[0]


def test_eight_threads_claim_two_hundred_rows_once_each(ledger_url: str, tmp_path: Path) -> None:
    """CON-01."""
    with migrated(ledger_url) as ledger, ThreadPoolExecutor(8) as pool:
        manifest = _many(ledger, tmp_path, 200)
        # Each with connections and a writer's lock of its own, as separate processes have them.
        taken = [
            one
            for some in pool.map(lambda _: claim_everything(ledger_url, manifest, 7), range(8))
            for one in some
        ]
    assert sorted(ordinal for ordinal, _ in taken) == list(range(1, 201))
    assert len({token for _, token in taken}) == 200


def test_three_processes_claim_two_hundred_rows_once_each(ledger_url: str, tmp_path: Path) -> None:
    """CON-01."""
    with migrated(ledger_url) as ledger:
        manifest = _many(ledger, tmp_path, 200)
    children = [
        start_child(claimants.__name__, "claim_everything", ledger_url, manifest, 3) for _ in range(3)
    ]
    taken = [one for child in children for one in result_of(child)]
    assert sorted(ordinal for ordinal, _ in taken) == list(range(1, 201))
    assert len({token for _, token in taken}) == 200


def test_a_claim_is_marked_with_who_where_and_how_long(opened: tuple[Ledger, int]) -> None:
    ledger, manifest = opened
    one = claim(ledger, manifest, 1).claimed[0]
    row = delivery_row(ledger, manifest, one.ordinal)
    assert (row.state, row.token, row.claimed_by) == ("claimed", one.token, "run-1/s1")
    assert (row.gateway, row.account, row.due_at) == ("sandbox", "a1", None)
    assert abs(row.lease_ends - row.claimed_at - MINUTE) < 1_000_000
    assert one.claimed_at == row.claimed_at
    assert one.operation_key == "tiny_digest:2025-W10:customer-001"
    assert one.document is not None
    assert (one.came_from, one.is_ambiguous, one.tenant) == ("pending", False, "default")


@pytest.mark.parametrize(
    "closed",
    [
        "state = 'building'",
        "content_sealed_at = NULL",
        "window_opens_at = 9000000000000000",
        "window_closes_at = 1",
        "window_closes_at = 1, late_until = 2",
    ],
)
def test_nothing_is_claimed_before_both_seals_or_outside_the_window(
    opened: tuple[Ledger, int], closed: str
) -> None:
    ledger, manifest = opened
    plant(ledger, manifest, 2, "unknown")
    run_ledger_sql(ledger, f"UPDATE manifest SET {closed}")
    assert claim(ledger, manifest).claimed == ()
    assert reclaim(ledger, manifest) == ()


def test_a_permission_to_be_late_opens_a_closed_window(opened: tuple[Ledger, int]) -> None:
    ledger, manifest = opened
    run_ledger_sql(ledger, f"UPDATE manifest SET window_closes_at = 1, late_until = {FAR}")
    assert len(claim(ledger, manifest).claimed) == CUSTOMERS


def test_a_row_is_not_claimed_before_it_is_due(opened: tuple[Ledger, int]) -> None:
    ledger, manifest = opened
    plant(ledger, manifest, 3, "retry", due_at=FAR)
    assert {one.ordinal for one in claim(ledger, manifest).claimed} == {1, 2, 4, 5, 6}


def test_the_oldest_due_rows_go_first(opened: tuple[Ledger, int]) -> None:
    ledger, manifest = opened
    plant(ledger, manifest, 5, "retry", due_at=10)
    plant(ledger, manifest, 4, "retry", due_at=20)
    assert [one.ordinal for one in claim(ledger, manifest, 3).claimed] == [5, 4, 1]


@pytest.mark.parametrize(
    "state", ["claimed", "unknown", "sent", "cleaned", "failed", "dead", "suppressed", "written_off"]
)
def test_what_does_not_wait_is_not_claimed(opened: tuple[Ledger, int], state: str) -> None:
    ledger, manifest = opened
    plant(ledger, manifest, 1, state)
    assert 1 not in {one.ordinal for one in claim(ledger, manifest).claimed}


def test_an_opt_out_after_the_freeze_counts_until_the_claim(
    opened: tuple[Ledger, int],
) -> None:
    """SEC-15, INP-15."""
    ledger, manifest = opened
    suppress(ledger, "READER-2@Example.TEST")
    batch = claim(ledger, manifest)
    assert {one.ordinal for one in batch.claimed} == {1, 3, 4, 5, 6}
    assert batch.suppressed == 1
    row = delivery_row(ledger, manifest, 2)
    assert (row.state, row.suppression, row.due_at, row.token) == ("suppressed", "opted_out", None, None)
    assert row.finished_at is not None


def test_another_tenants_and_an_expired_opt_out_count_for_nothing(opened: tuple[Ledger, int]) -> None:
    ledger, manifest = opened
    suppress(ledger, "reader-1@example.test", tenant="acme")
    suppress(ledger, "reader-2@example.test", expires_at=5)
    assert len(claim(ledger, manifest).claimed) == CUSTOMERS


def test_a_page_of_nothing_but_opt_outs_moves_the_cursor_on(opened: tuple[Ledger, int]) -> None:
    ledger, manifest = opened
    suppress(ledger, "reader-1@example.test")
    first = claim(ledger, manifest, 1)
    assert (first.claimed, first.suppressed) == ((), 1)
    assert [one.ordinal for one in claim(ledger, manifest, 1, first.cursor).claimed] == [2]


def test_tokens_strictly_increase_and_none_is_used_twice(opened: tuple[Ledger, int]) -> None:
    ledger, manifest = opened
    seen: list[int] = []
    for _ in range(3):
        batch = claim(ledger, manifest).claimed
        seen += [one.token for one in batch]
        rows = [{"manifest_id": manifest, "ordinal": o.ordinal, "token": o.token, "delay": 0} for o in batch]
        with ledger.write() as conn:
            transitions.release_pending(conn, rows)
    assert len(seen) == 3 * CUSTOMERS
    assert seen == sorted(set(seen))


def test_a_claim_that_was_rolled_back_leaves_the_row_as_it_was(opened: tuple[Ledger, int]) -> None:
    ledger, manifest = opened
    before = delivery_row(ledger, manifest, 1)

    def die(conn: Connection) -> None:
        assert claims.claim_due(conn, manifest, 10, ME).claimed
        raise RuntimeError("the process dies here")

    with pytest.raises(RuntimeError, match="the process dies here"):
        ledger.transact(die)
    assert delivery_row(ledger, manifest, 1) == before


def test_the_cursor_does_not_pass_over_released_rows(opened: tuple[Ledger, int]) -> None:
    ledger, manifest = opened
    first = claim(ledger, manifest, 4)
    rows = [
        {"manifest_id": manifest, "ordinal": one.ordinal, "token": one.token, "delay": 0}
        for one in first.claimed[:2]
    ]
    ledger.transact(lambda conn: transitions.release_pending(conn, rows))
    rest = claim(ledger, manifest, 10, first.cursor)
    assert sorted(one.ordinal for one in rest.claimed) == [1, 2, 5, 6]


def test_a_lease_expires_by_the_ledgers_clock_and_only_then(opened: tuple[Ledger, int]) -> None:
    ledger, manifest = opened
    short = Claimer("run-1/s1", "sandbox", "a1", 1)
    ledger.transact(lambda conn: claims.claim_due(conn, manifest, 1, short))
    claim(ledger, manifest, 1)
    expired = ledger.transact(lambda conn: transitions.expire_lease(conn, [manifest], "sandbox", "a1", 0))
    assert [row.ordinal for row in expired] == [1]
    assert list(states(ledger, manifest).values())[:3] == ["unknown", "claimed", "pending"]
    again = ledger.transact(lambda conn: transitions.expire_lease(conn, [manifest], "sandbox", "a1", 0))
    assert list(again) == []


def test_an_expired_claim_is_never_claimed_as_if_new(opened: tuple[Ledger, int]) -> None:
    """LOST-07."""
    ledger, manifest = opened
    plant(ledger, manifest, 1, "claimed", lease_ends=1)
    assert 1 not in {one.ordinal for one in claim(ledger, manifest).claimed}


def test_an_unknown_is_sent_again_by_its_own_account_inside_the_keys_lifetime(
    opened: tuple[Ledger, int],
) -> None:
    ledger, manifest = opened
    plant(ledger, manifest, 1, "unknown")
    for who in (Claimer("r/s", "smtp", "a1", MINUTE), Claimer("r/s", "sandbox", "a2", MINUTE)):
        assert reclaim(ledger, manifest, who) == ()
    assert reclaim(ledger, manifest, lifetime=MINUTE) == ()
    (one,) = reclaim(ledger, manifest)
    assert (one.came_from, one.is_ambiguous, one.ambiguous_at) == ("unknown", True, 1_000)


def test_an_unknown_of_a_suppressed_address_stays_unknown(opened: tuple[Ledger, int]) -> None:
    ledger, manifest = opened
    plant(ledger, manifest, 1, "unknown")
    suppress(ledger, "reader-1@example.test")
    assert reclaim(ledger, manifest) == ()
    assert delivery_row(ledger, manifest, 1).state == "unknown"


def test_an_unknown_of_an_erased_customer_stays_unknown_whoever_else_is_suppressed(
    opened: tuple[Ledger, int],
) -> None:
    """With an empty suppression list, and with somebody else on it: two questions, not one."""
    ledger, manifest = opened
    plant(ledger, manifest, 1, "unknown")
    run_ledger_sql(ledger, "UPDATE manifest_entry SET recipient = NULL, name = NULL WHERE ordinal = 1")
    assert reclaim(ledger, manifest) == ()
    suppress(ledger, "reader-2@example.test")
    assert reclaim(ledger, manifest) == ()


def test_live_leases_and_the_next_due_row_are_told_in_microseconds(opened: tuple[Ledger, int]) -> None:
    ledger, manifest = opened
    with ledger.read() as conn:
        assert claims.live_leases(conn, [manifest]) == (0, 0)
        assert claims.next_due(conn, [manifest], "sandbox") == 0
    claim(ledger, manifest, 5)
    plant(ledger, manifest, 6, "retry", due_at=FAR)
    with ledger.read() as conn:
        count, left = claims.live_leases(conn, [manifest])
        assert (count, 0 < left <= MINUTE) == (5, True)
        assert (claims.next_due(conn, [manifest], "sandbox") or 0) > MINUTE
    run_ledger_sql(ledger, "UPDATE manifest SET window_closes_at = 1")
    with ledger.read() as conn:
        assert claims.next_due(conn, [manifest], "sandbox") is None


def test_processes_that_read_and_then_write_lose_nothing(ledger_url: str) -> None:
    """CON-07."""
    migrated(ledger_url).close()
    children = [start_child(claimants.__name__, "take_tokens", ledger_url, 40) for _ in range(3)]
    seen = [result_of(child) for child in children]
    assert all(tokens == sorted(tokens) for tokens in seen)
    assert len({token for tokens in seen for token in tokens}) == 120


def test_a_settlement_is_written_although_another_process_writes_meanwhile(
    sqlite_url: str, tmp_path: Path
) -> None:
    """CON-07."""
    with migrated(sqlite_url) as ledger, Ledger(sqlite_url) as other, ThreadPoolExecutor(1) as pool:
        manifest = _many(ledger, tmp_path, 2)
        one, two = claim(ledger, manifest).claimed
        with other.write() as conn:
            transitions.settle_sent(conn, [_accepted(two)])
            waiting = pool.submit(
                ledger.transact, lambda conn: transitions.settle_sent(conn, [_accepted(one)])
            )
            assert not waiting.done()
        assert waiting.result(30) == {one.token}
        assert set(states(ledger, manifest).values()) == {"sent"}


def _accepted(one: Claimed) -> dict[str, Any]:
    return {
        "manifest_id": one.manifest_id,
        "ordinal": one.ordinal,
        "token": one.token,
        "message_id": "m",
        "proof": "accepted",
    }


@pytest.mark.postgresql
def test_rows_that_another_transaction_holds_are_passed_over_not_waited_for(
    postgres_url: str, tmp_path: Path
) -> None:
    with migrated(postgres_url) as ledger:
        manifest = _many(ledger, tmp_path, CUSTOMERS)
        with ledger.write() as conn:
            mine = claims.claim_due(conn, manifest, 4, ME).claimed
            theirs = claim(ledger, manifest, 4).claimed
        assert [one.ordinal for one in mine] == [1, 2, 3, 4]
        assert [one.ordinal for one in theirs] == [5, 6]

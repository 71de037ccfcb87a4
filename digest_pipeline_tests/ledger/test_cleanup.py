from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Connection, text

from digest_pipeline.cleanup.clean import clean
from digest_pipeline.cleanup.retention import apply_retention
from digest_pipeline.ledger import transitions
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.spec import Digest
from digest_pipeline.states import State
from digest_pipeline_tests.harness.ledgers import (
    another,
    delivery_row,
    dump,
    plant,
    run_ledger_sql,
    states,
    tiny_spec,
    wait_until_blocked,
)

HOUR = 3_600_000_000
Shared = tuple[Ledger, int]


@pytest.fixture
def desk(shared: Shared) -> Shared:
    """Twelve deliveries in sent since 1970, with their generated rows, in a window that is open."""
    ledger, manifest = shared
    run_ledger_sql(ledger, "DELETE FROM content")
    run_ledger_sql(
        ledger, "INSERT INTO content SELECT manifest_id, ordinal, :d FROM manifest_entry", d=b"generated"
    )
    run_ledger_sql(ledger, f"UPDATE manifest SET window_closes_at = {2**60}, late_until = NULL")
    for ordinal in range(1, 13):
        plant(ledger, manifest, ordinal, "sent", cleaned_by=None)
    return shared


@pytest.fixture
def at_once(tmp_path_factory: pytest.TempPathFactory) -> Digest:
    return tiny_spec(tmp_path_factory.mktemp("spec"), cleanup={"delay_hours": 0})


def spec_with(tmp_path_factory: pytest.TempPathFactory, **cleanup: Any) -> Digest:
    return tiny_spec(tmp_path_factory.mktemp("spec"), cleanup=cleanup)


def with_content(ledger: Ledger) -> set[int]:
    return {row["ordinal"] for row in dump(ledger, "content", "document")}


def test_only_definitive_sends_are_cleaned(desk: Shared, at_once: Digest) -> None:
    """CLN-01."""
    ledger, manifest = desk
    for ordinal, state in enumerate((s for s in State if s is not State.SENT), 1):
        plant(ledger, manifest, ordinal, state)
    assert clean(ledger, at_once, (manifest,), "run-7") == 3
    assert [o for o, s in states(ledger, manifest).items() if s == "cleaned"] == [5, 10, 11, 12]
    assert with_content(ledger) == set(range(1, 10))
    row = delivery_row(ledger, manifest, 12)
    assert (row.cleaned_by, row.proof, row.finished_at) == ("run-7", "accepted", 2_000)


def test_nothing_is_cleaned_on_an_ambiguous_outcome_until_evidence_comes(
    desk: Shared, at_once: Digest
) -> None:
    """CLN-03."""
    ledger, manifest = desk
    plant(ledger, manifest, 1, "unknown")
    clean(ledger, at_once, (manifest,), "run-1")
    assert with_content(ledger) == {1}
    row = {"manifest_id": manifest, "ordinal": 1, "token": 1_001, "message_id": "m", "proof": "delivered"}
    ledger.transact(lambda conn: transitions.apply_acceptance(conn, [row]))
    assert clean(ledger, at_once, (manifest,), "run-2") == 1
    assert with_content(ledger) == set()
    assert clean(ledger, at_once, (manifest,), "run-3") == 0


def test_a_key_is_cleaned_once_and_a_repeat_changes_nothing(desk: Shared, at_once: Digest) -> None:
    ledger, manifest = desk
    assert clean(ledger, at_once, (manifest,), "run-1") == 12
    before = dump(ledger, "delivery")
    assert clean(ledger, at_once, (manifest,), "run-2") == 0
    assert dump(ledger, "delivery") == before


def test_two_cleanups_at_once_clean_each_key_once(desk: Shared, at_once: Digest) -> None:
    ledger, manifest = desk
    with another(ledger) as other, ThreadPoolExecutor(2) as pool:
        counts = list(pool.map(lambda one: clean(one, at_once, (manifest,), "run"), (ledger, other)))
    assert sum(counts) == 12


def test_more_rows_than_a_page_are_all_cleaned(
    desk: Shared, at_once: Digest, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, manifest = desk
    monkeypatch.setattr("digest_pipeline.cleanup.clean.PAGE", 5)
    assert clean(ledger, at_once, (manifest,), "run-1") == 12
    assert with_content(ledger) == set()


def test_without_a_delay_rows_stay_until_the_window_has_closed(
    desk: Shared, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ledger, manifest = desk
    digest = spec_with(tmp_path_factory)
    assert clean(ledger, digest, (manifest,), "run-1") == 0
    run_ledger_sql(ledger, "UPDATE manifest SET window_closes_at = 1")
    assert clean(ledger, digest, (manifest,), "run-2") == 12


def test_a_delay_is_counted_from_the_send(desk: Shared, tmp_path_factory: pytest.TempPathFactory) -> None:
    ledger, manifest = desk
    digest = spec_with(tmp_path_factory, delay_hours=1)
    with ledger.read() as conn:
        now = _now(conn)
    plant(ledger, manifest, 1, "sent", finished_at=now - 30 * 60 * 1_000_000)
    plant(ledger, manifest, 2, "sent", finished_at=now - 2 * HOUR)
    clean(ledger, digest, (manifest,), "run-1")
    assert with_content(ledger) == {1}


def _now(conn: Connection) -> int:
    from digest_pipeline.ledger.reads import now

    return now(conn)


def test_a_proof_that_has_not_come_keeps_the_rows(
    desk: Shared, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """LOST-12."""
    ledger, manifest = desk
    digest = spec_with(tmp_path_factory, delay_hours=0, proof="delivered")
    plant(ledger, manifest, 1, "sent", proof="delivered")
    plant(ledger, manifest, 2, "sent", proof="bounced")
    assert clean(ledger, digest, (manifest,), "run-1") == 1
    assert with_content(ledger) == set(range(2, 13))


def test_only_the_manifests_named_are_cleaned(desk: Shared, at_once: Digest) -> None:
    ledger, manifest = desk
    assert clean(ledger, at_once, (manifest + 1,), "run-1") == 0
    assert clean(ledger, at_once, (), "run-1") == 0
    assert len(with_content(ledger)) == 12


def test_a_late_cleanup_of_a_period_that_was_cleaned_is_a_no_op(desk: Shared, at_once: Digest) -> None:
    ledger, manifest = desk
    clean(ledger, at_once, (manifest,), "run-1")
    run_ledger_sql(ledger, "UPDATE manifest SET window_closes_at = 1")
    before = dump(ledger, "delivery")
    assert clean(ledger, at_once, (manifest,), "run-99") == 0
    assert apply_retention(ledger, at_once, (manifest,)) == {}
    assert dump(ledger, "delivery") == before


def test_retention_removes_what_its_rule_names_and_records_it(desk: Shared, at_once: Digest) -> None:
    ledger, manifest = desk
    for ordinal, state in enumerate(State, 1):
        plant(ledger, manifest, ordinal, state, ambiguous_at=2**60 if state is State.UNKNOWN else None)
    done = apply_retention(ledger, at_once, (manifest,))
    ended = [s for s in State if s in ("failed", "dead", "suppressed", "written_off")]
    assert done == {f"removed_{state}": 1 for state in ended}
    for ordinal, state in enumerate(State, 1):
        row = delivery_row(ledger, manifest, ordinal)
        assert row.state == state
        assert row.cleaned_by == (f"retention:{state}" if state in ended else None)
        assert (ordinal in with_content(ledger)) == (state not in ended)
    assert apply_retention(ledger, at_once, (manifest,)) == {}


def test_retention_waits_for_its_days(desk: Shared, tmp_path_factory: pytest.TempPathFactory) -> None:
    ledger, manifest = desk
    digest = tiny_spec(tmp_path_factory.mktemp("spec"), retention={"failed_days": 2, "dead_days": 4})
    with ledger.read() as conn:
        three_days_ago = _now(conn) - 72 * HOUR
    plant(ledger, manifest, 1, "failed", finished_at=three_days_ago)
    plant(ledger, manifest, 2, "dead", finished_at=three_days_ago)
    assert apply_retention(ledger, digest, (manifest,)) == {"removed_failed": 1}
    assert 2 in with_content(ledger)


def test_an_old_unknown_is_written_off_with_its_rows_and_a_young_one_is_not(
    desk: Shared, at_once: Digest
) -> None:
    ledger, manifest = desk
    with ledger.read() as conn:
        now = _now(conn)
    plant(ledger, manifest, 1, "unknown", ambiguous_at=now - 31 * 24 * HOUR)
    plant(ledger, manifest, 2, "unknown", ambiguous_at=now - 29 * 24 * HOUR)
    plant(ledger, manifest, 3, "claimed", ambiguous_at=now - 31 * 24 * HOUR)
    assert apply_retention(ledger, at_once, (manifest,)) == {"written_off": 1}
    assert list(states(ledger, manifest).values())[:3] == ["written_off", "unknown", "claimed"]
    assert {1, 2, 3} <= with_content(ledger)


Act = Callable[[Connection, dict[str, Any]], Any]


@pytest.mark.parametrize(
    ("state", "act", "after"),
    [
        ("failed", transitions.apply_acceptance, "sent"),
        ("dead", transitions.apply_acceptance, "sent"),
        ("written_off", transitions.apply_acceptance, "sent"),
    ],
)
def test_evidence_that_comes_while_retention_runs_keeps_the_rows(
    desk: Shared, at_once: Digest, state: str, act: Act, after: str
) -> None:
    """Retention has read the row as ended; the evidence is committed before it removes anything."""
    ledger, manifest = desk
    plant(ledger, manifest, 1, state)
    row = {"manifest_id": manifest, "ordinal": 1, "token": 1_001, "message_id": "m", "proof": "accepted"}
    with another(ledger) as other, ThreadPoolExecutor(1) as pool:
        with other.write() as conn:
            act(conn, [row])  # type: ignore[arg-type]
            running = pool.submit(apply_retention, ledger, at_once, (manifest,))
            wait_until_blocked(other)
        assert running.result(30) == {}
    assert states(ledger, manifest)[1] == after
    assert 1 in with_content(ledger)


def test_a_message_that_turns_out_never_to_have_left_while_cleanup_runs_keeps_its_rows(
    desk: Shared, at_once: Digest
) -> None:
    ledger, manifest = desk
    row = {"manifest_id": manifest, "ordinal": 1, "token": 1_001, "failure_class": "content"}
    with another(ledger) as other, ThreadPoolExecutor(1) as pool:
        with other.write() as conn:
            assert transitions.fail_sent(conn, [row]) == {1_001}
            running = pool.submit(clean, ledger, at_once, (manifest,), "run-1")
            wait_until_blocked(other)
        assert running.result(30) == 11
    assert states(ledger, manifest)[1] == "failed"
    assert with_content(ledger) == {1}


def test_a_cleanup_that_is_rolled_back_removes_nothing(desk: Shared) -> None:
    ledger, manifest = desk

    def die(conn: Connection) -> None:
        conn.execute(text("UPDATE delivery SET cleaned_by = 'nobody'"))
        assert transitions.remove_content(conn, manifest, [1, 2]) == 2
        raise RuntimeError("the process dies here")

    with pytest.raises(RuntimeError, match="dies here"):
        ledger.transact(die)
    assert len(with_content(ledger)) == 12

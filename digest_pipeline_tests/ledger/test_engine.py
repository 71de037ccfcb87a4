from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, make_url, text
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, OperationalError

from digest_pipeline.errors import InputError, LedgerError
from digest_pipeline.ledger import attempts, claims, reads, transitions
from digest_pipeline.ledger.attempts import Attempt
from digest_pipeline.ledger.dialects import bulk_insert
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.schema import template
from digest_pipeline.outcomes import Stage
from digest_pipeline_tests.harness.claimants import ME
from digest_pipeline_tests.harness.ledgers import (
    PERIOD,
    another,
    dump,
    frozen_period,
    migrated,
    run_ledger_sql,
    tiny_source,
    tiny_spec,
    wait_until_blocked,
)

EPOCH = "UPDATE ledger_identity SET token_epoch = token_epoch + 1"


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with migrated(ledger_url) as found:
        yield found


@pytest.fixture
def on_postgres(postgres_url: str) -> Iterator[Ledger]:
    with migrated(postgres_url) as found:
        yield found


def epoch(ledger: Ledger) -> int:
    return int(dump(ledger, "ledger_identity")[0]["token_epoch"])


class Work:
    """Bumps the epoch; ``first`` runs inside the first try only, before or after the write."""

    def __init__(self, first: Any) -> None:
        self.first, self.tries = first, 0

    def __call__(self, conn: Connection) -> int:
        self.tries += 1
        conn.execute(text(EPOCH))
        if self.tries == 1:
            self.first(conn)
        return self.tries


@pytest.mark.postgresql
def test_a_write_whose_connection_is_lost_is_made_again_once(on_postgres: Ledger) -> None:
    def lose(conn: Connection) -> None:
        mine = conn.execute(text("SELECT pg_backend_pid()")).scalar_one()
        with another(on_postgres) as other, other.read() as killer:
            killer.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": mine})
        conn.execute(text("SELECT 1"))

    work = Work(lose)
    assert on_postgres.transact(work) == 2
    assert epoch(on_postgres) == 2


@pytest.mark.postgresql
def test_a_connection_lost_during_a_copy_is_made_again_too(on_postgres: Ledger) -> None:
    def lose(conn: Connection) -> None:
        mine = conn.execute(text("SELECT pg_backend_pid()")).scalar_one()
        with another(on_postgres) as other, other.read() as killer:
            killer.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": mine})
        bulk_insert(conn, template, ("hash", "text"), [("h" * 64, "x")])

    assert on_postgres.transact(Work(lose)) == 2
    assert epoch(on_postgres) == 2


@pytest.mark.postgresql
def test_two_transactions_that_wait_for_each_other_both_succeed_in_the_end(on_postgres: Ledger) -> None:
    """DUP-12."""
    for name in "ab":
        run_ledger_sql(on_postgres, "INSERT INTO template (hash, text) VALUES (:n, '')", n=name)
    met = threading.Barrier(2, timeout=30)

    def work(first: str, second: str) -> int:
        tries = 0

        def both(conn: Connection) -> None:
            nonlocal tries
            tries += 1
            for name in (first, second):
                conn.execute(
                    text("UPDATE template SET text = text || :f WHERE hash = :h"), {"f": first, "h": name}
                )
                if name == first and tries == 1:
                    met.wait()

        on_postgres.transact(both)
        return tries

    with ThreadPoolExecutor(2) as pool:
        tries = list(pool.map(work, "ab", "ba"))
    assert sorted(tries) == [1, 2]
    assert [sorted(row["text"]) for row in dump(on_postgres, "template")] == [["a", "b"]] * 2


@pytest.mark.postgresql
def test_a_serialization_failure_is_tried_again(on_postgres: Ledger) -> None:
    def conflict(conn: Connection) -> None:
        conn.execute(text("DO $$ BEGIN RAISE serialization_failure; END $$"))

    assert on_postgres.transact(Work(conflict)) == 2
    assert epoch(on_postgres) == 2


@pytest.mark.postgresql
def test_a_server_that_is_gone_is_given_up_with_the_databases_own_error(on_postgres: Ledger) -> None:
    with Ledger("postgresql://nobody:S3cr3t@127.0.0.1:1/nowhere") as ledger:
        with pytest.raises(OperationalError) as caught:
            ledger.transact(lambda conn: None, patience=0.1)
        assert "S3cr3t" not in "".join(traceback.format_exception(caught.value))
        assert "S3cr3t" not in ledger.describe()


def test_a_constraint_that_refuses_is_not_tried_again_and_nothing_is_written(ledger: Ledger) -> None:
    work = Work(lambda conn: conn.execute(text("INSERT INTO ledger_identity SELECT * FROM ledger_identity")))
    with pytest.raises(IntegrityError):
        ledger.transact(work)
    assert (work.tries, epoch(ledger)) == (1, 1)


def test_an_error_of_ours_is_not_tried_again_and_nothing_is_written(ledger: Ledger) -> None:
    def fail(_conn: Connection) -> None:
        raise RuntimeError("ours")

    work = Work(fail)
    with pytest.raises(RuntimeError, match="ours"):
        ledger.transact(work)
    assert (work.tries, epoch(ledger)) == (1, 1)


def test_bulk_rows_that_a_constraint_refuses_are_an_integrity_error_on_both_engines(ledger: Ledger) -> None:
    with pytest.raises(IntegrityError):
        ledger.transact(lambda conn: bulk_insert(conn, template, ("hash", "text"), [("a", "1"), ("a", "2")]))
    assert dump(ledger, "template") == []


@pytest.mark.postgresql
def test_bulk_rows_that_the_database_cannot_hold_are_a_data_error(on_postgres: Ledger) -> None:
    with pytest.raises(DataError):
        on_postgres.transact(lambda conn: bulk_insert(conn, template, ("hash", "text"), [("a", "x\0y")]))
    address = "@".join(("ann", "example.test"))  # not spelt here: a traceback shows this line
    with pytest.raises(DBAPIError) as caught:
        on_postgres.transact(
            lambda conn: bulk_insert(conn, template, ("hash", "text"), [("h" * 65, address)])
        )
    assert address not in "".join(traceback.format_exception(caught.value))


def test_a_writer_waits_for_another_process_and_nothing_is_lost(ledger: Ledger) -> None:
    with another(ledger) as other, ThreadPoolExecutor(1) as pool:
        with other.write() as conn:
            conn.execute(text(EPOCH))
            waiting = pool.submit(ledger.transact, lambda c: c.execute(text(EPOCH)))
            wait_until_blocked(other)
        waiting.result(30)
    assert epoch(ledger) == 3


@pytest.mark.postgresql
@pytest.mark.parametrize("accepted", [True, False])
def test_a_settlement_whose_commit_answer_was_lost_is_not_applied_twice(
    on_postgres: Ledger, tmp_path: Path, accepted: bool
) -> None:
    """The commit happens, its answer does not arrive: the second try recognises its own work."""
    with tiny_source(tmp_path, 1) as source:
        (manifest,) = frozen_period(on_postgres, tiny_spec(tmp_path), PERIOD, source)
    (one,) = on_postgres.transact(lambda conn: claims.claim_due(conn, manifest, 1, ME)).claimed
    row = {
        "manifest_id": manifest,
        "ordinal": 1,
        "token": one.token,
        "message_id": "m-1",
        "proof": "accepted",
    }
    record = Attempt(
        one.token,
        manifest,
        1,
        "run-1/s1",
        "sandbox",
        "a1",
        one.claimed_at,
        Stage.AFTER_WIRE,
        "accepted",
        message_id="m-1",
    )
    late: list[set[int]] = []

    def settle(conn: Connection) -> int:
        settled = transitions.settle_sent(conn, [row])
        if settled:
            attempts.record(conn, [record])
        else:
            late.append(attempts.record_late(conn, [record]))
        if not late:
            if accepted:
                conn.commit()  # the server has it
            raise OperationalError(
                "COMMIT", None, Exception("the answer was lost"), connection_invalidated=True
            )
        return len(settled)

    if not accepted:
        # Nothing was committed: the second try is the first.
        tries = iter([True, False])

        def settle(conn: Connection) -> int:
            settled = transitions.settle_sent(conn, [row])
            attempts.record(conn, [record])
            if next(tries):
                raise OperationalError("COMMIT", None, Exception("lost"), connection_invalidated=True)
            return len(settled)

        assert on_postgres.transact(settle) == 1
    else:
        assert on_postgres.transact(settle) == 0
        assert late == [set()]
    (stored,) = dump(on_postgres, "attempt")
    assert (stored["outcome"], stored["late_outcome"], stored["message_id"]) == ("accepted", None, "m-1")
    (state,) = dump(on_postgres, "delivery")
    assert (state["state"], state["attempts"]) == ("sent", 1)
    with on_postgres.read() as conn:
        assert reads.duplicate_sends(conn, [manifest]) == []


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file::memory:?uri=true",
        "sqlite:///file:shared?mode=memory&cache=shared&uri=true",
    ],
)
def test_a_ledger_in_memory_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="forget what was sent"):
        Ledger(url)


@pytest.mark.parametrize(
    "url", ["", "ledger.db", "mysql://u:S3cr3t@h/d", "oracle://h", "postgresql://u:S3cr3t@h:port/d"]
)
def test_a_url_that_is_none_is_explained_without_what_it_holds(url: str) -> None:
    with pytest.raises(InputError) as caught:
        Ledger(url)
    assert "S3cr3t" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("driver", ["postgresql", "postgresql+psycopg2", "postgresql+psycopg"])
def test_every_postgresql_url_is_spoken_to_through_psycopg_3(driver: str) -> None:
    with Ledger(f"{driver}://u:S3cr3t@h/d") as ledger:
        assert ledger.url.drivername == "postgresql+psycopg"
        assert ledger.describe() == "postgresql+psycopg://u:***@h/d"


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match="cannot be made"):
        Ledger(f"sqlite:///{tmp_path / 'file' / 'ledger.db'}")


def test_sqlite_survives_a_power_cut_and_keeps_its_foreign_keys(sqlite_url: str) -> None:
    with migrated(sqlite_url) as ledger, ledger.read() as conn:
        found = {
            p: conn.exec_driver_sql(f"PRAGMA {p}").scalar_one()
            for p in ("journal_mode", "synchronous", "foreign_keys")
        }
    assert found == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


@pytest.mark.postgresql
def test_postgresql_is_asked_for_durable_commits(on_postgres: Ledger) -> None:
    with on_postgres.read() as conn:
        assert conn.execute(text("SHOW synchronous_commit")).scalar_one() == "on"
        assert conn.execute(text("SHOW transaction_isolation")).scalar_one() == "read committed"


def test_what_the_url_asks_of_the_server_is_kept_beside_what_the_ledger_needs(postgres_url):
    """A ledger meant for a schema of its own must not land in another one."""
    url = make_url(postgres_url)
    with Ledger(postgres_url) as ledger, ledger.write() as conn:
        conn.execute(text("CREATE SCHEMA apart"))
    asked = url.update_query_dict({"options": "-csearch_path=apart"}).render_as_string(hide_password=False)
    with Ledger(asked) as ledger, ledger.read() as conn:
        assert conn.execute(text("SELECT current_schema()")).scalar_one() == "apart"
        assert conn.execute(text("SHOW synchronous_commit")).scalar_one() == "on"

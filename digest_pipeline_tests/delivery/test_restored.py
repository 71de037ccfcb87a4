"""A ledger that was restored from a backup: what its lost copy may have sent is never sent on trust."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import make_url

from digest_pipeline.delivery.run import deliver, prepare
from digest_pipeline.eligibility.source import Source
from digest_pipeline.errors import EnvironmentMismatchError, InputError
from digest_pipeline.lab.sandbox.faults import Fault
from digest_pipeline.ledger.witness import Witness
from digest_pipeline.operations.close import close_period
from digest_pipeline.operations.decisions import Order
from digest_pipeline.operations.erase import erase_customer
from digest_pipeline.operations.rebind import Account, rebind
from digest_pipeline.operations.replay import replay
from digest_pipeline_tests.harness.delivering import (
    BOTH,
    LOOK_UP,
    NEITHER,
    REPLAYS,
    Desk,
    assert_once_each,
    frozen_desk,
    key_of,
    sending_spec,
)
from digest_pipeline_tests.harness.ledgers import PERIOD, dump, frozen_period, migrated, plant, source_url

EVERYBODY = range(1, 7)


@pytest.fixture
def backed_up(tmp_path, ledger_url, sandbox, request) -> Iterator[Callable[..., tuple[Desk, Desk]]]:
    """Freeze a period, take a backup of the ledger before anything is sent; return the lost and the restored.

    SQLite's backup is a copy of the file, PostgreSQL's a database made from the first as its template.
    """
    with ExitStack() as stack:

        def opened(can=REPLAYS, customers=6, **changes) -> tuple[Desk, Desk]:
            lost = stack.enter_context(frozen_desk(tmp_path, ledger_url, sandbox, customers, can, **changes))
            lost.ledger.close()
            if ledger_url.startswith("sqlite"):
                file = tmp_path / "backup.db"
                shutil.copy(str(make_url(ledger_url).database), file)
                url = f"sqlite:///{file}"
            else:
                server = request.getfixturevalue("postgres_server")
                url = stack.enter_context(server.database(template=ledger_url))
            restored = lost.as_process(stack.enter_context(migrated(url)))
            return lost, restored

        yield opened


def ago(**duration) -> datetime:
    return datetime.now(UTC) - timedelta(**duration)


def bind(desk: Desk, since: datetime, with_account: bool = True):
    gateway = desk.gateway()
    accounts = {desk.digest.name: Account(gateway.name, gateway.account)} if with_account else {}
    return rebind(desk.ledger, "test", who="me", reason="disk lost", restored_from=since, accounts=accounts)


def born(desk: Desk) -> datetime:
    return datetime.fromtimestamp(dump(desk.ledger, "ledger_identity")[0]["created_at"] / 1e6, UTC)


def test_a_restored_copy_sends_nothing_until_it_is_bound(backed_up):
    """DUP-26, DUP-27."""
    _, restored = backed_up()
    with pytest.raises(EnvironmentMismatchError, match="copy or was restored"):
        restored.deliver()
    assert restored.sandbox.oracle().accepted_count() == 0


@pytest.mark.parametrize("can", [REPLAYS, LOOK_UP, BOTH])
@pytest.mark.parametrize("with_account", [True, False])
def test_what_the_lost_copy_sent_is_found_and_the_rest_is_sent_once(backed_up, can, with_account):
    """DUP-27: the lost copy sent to half of them after the backup was taken."""
    lost, restored = backed_up(can)
    lost.sql("UPDATE delivery SET due_at = 4000000000000000 WHERE ordinal > 3")
    assert lost.deliver(run_id="lost").accepted == 3

    bound = bind(restored, born(restored), with_account)
    assert (bound.in_doubt, bound.unknown) == (1, 6 if with_account else 0)
    if with_account:
        assert restored.counts() == {"unknown": 6}
    for number in range(6):
        restored.deliver(run_id=f"restored-{number}")
        restored.pass_time(61)
    assert restored.counts() == {"sent": 6}
    assert_once_each(restored, EVERYBODY)


def test_where_nothing_can_be_asked_everything_is_held_for_a_person(backed_up):
    lost, restored = backed_up(NEITHER)
    assert lost.deliver(run_id="lost").accepted == 6
    bind(restored, born(restored))
    restored.deliver(run_id="restored")
    assert {(row.state, row.hold_reason) for row in restored.rows()} == {("unknown", "no_evidence")}
    assert_once_each(restored, EVERYBODY)


def test_a_period_frozen_after_the_restore_begins_in_doubt(backed_up, tmp_path):
    """The lost copy froze and sent it after the backup; the restored one has never heard of it."""
    lost, restored = backed_up(LOOK_UP)
    assert lost.deliver(run_id="lost").accepted == 6
    for table in ("content", "delivery", "manifest_entry", "manifest_exclusion", "manifest"):
        restored.sql(f"DELETE FROM {table}")
    bind(restored, born(restored))
    with Source(source_url(tmp_path)) as source:
        ids = frozen_period(restored.ledger, restored.digest, PERIOD, source)
    again = replace(restored, manifest_ids=ids)
    for number in range(3):
        assert again.deliver(run_id=f"restored-{number}").accepted == 0
        again.pass_time(61)
    assert again.counts() == {"sent": 6}
    assert_once_each(again, EVERYBODY)


def test_an_absence_seen_before_the_restore_counts_for_nothing_after_it(backed_up):
    _, restored = backed_up(LOOK_UP)
    restored.sql(
        "UPDATE delivery SET state = 'unknown', token = 7, ambiguous_token = 7, ambiguous_at = 1, claimed_at = 1, "
        "absent_at = 2, gateway = 'sandbox', account = :account WHERE ordinal = 1",
        account=restored.gateway().account,
    )
    bind(restored, born(restored))
    row = restored.row(1)
    assert (row.state, row.absent_at, row.ambiguous_at) == ("unknown", None, 1)
    assert row.ambiguous_token == row.token > 7


def test_dead_letters_from_before_the_restore_are_refused_by_name(backed_up):
    _, restored = backed_up()
    plant(restored.ledger, restored.manifest_ids[0], 1, "dead")
    bind(restored, born(restored))
    order = Order(restored.digest, PERIOD, (key_of(1),), "me", "try again")
    decision = replay(restored.ledger, order, apply=True)
    assert decision.changed == []
    assert "lost copy may have sent it" in decision.refused[key_of(1)]
    assert restored.row(1).state == "dead"


def test_tokens_go_on_beyond_any_that_the_lost_copy_gave_out(backed_up):
    lost, restored = backed_up()
    lost.deliver(run_id="lost")
    newest = max(attempt.token for attempt in lost.attempts())
    bind(restored, born(restored))
    assert all(row.token > newest for row in restored.rows())


def test_binding_is_audited_and_refuses_times_that_cannot_be(backed_up):
    _, restored = backed_up()
    for wrong, words in (
        (datetime.now(UTC) + timedelta(hours=1), "in the future"),
        (born(restored) - timedelta(days=1), "before this ledger began"),
        (datetime(2026, 1, 1), "needs a time zone"),  # noqa: DTZ001 - that is the mistake
    ):
        with pytest.raises(InputError, match=words):
            bind(restored, wrong)
    assert dump(restored.ledger, "operator_action") == []
    bind(restored, born(restored))
    (action,) = dump(restored.ledger, "operator_action")
    assert (action["kind"], action["who"], action["reason"]) == ("rebind", "me", "disk lost")


def test_a_backup_restored_into_the_same_file_is_noticed_by_the_witness(tmp_path, sandbox):
    """The fingerprint is the same: what differs is what this host has seen."""
    file = tmp_path / "ledger.db"
    with frozen_desk(tmp_path, f"sqlite:///{file}", sandbox, 4, REPLAYS) as desk:
        backup = tmp_path / "backup.db"
        with desk.ledger.engine.connect() as conn:
            driver = conn.connection.driver_connection
            assert driver is not None
            driver.execute(f"VACUUM INTO '{backup}'")
        witnessed(desk, tmp_path)
        desk.ledger.close()
        for leftover in tmp_path.glob("ledger.db-*"):
            leftover.unlink()
        with backup.open("rb") as source, file.open("r+b") as target:
            target.truncate()
            shutil.copyfileobj(source, target)
        with migrated(f"sqlite:///{file}") as ledger:
            restored = desk.as_process(ledger)
            with pytest.raises(EnvironmentMismatchError, match="was restored from a backup"):
                witnessed(restored, tmp_path)
            bind(restored, born(restored))
            witnessed(restored, tmp_path)
            assert restored.counts() == {"sent": 4}
            assert_once_each(restored, range(1, 5))


def witnessed(desk: Desk, home: Path) -> None:
    plan = replace(desk.plan(), witness=Witness(home, "the ledger"))
    desk.ledger.transact(lambda conn: prepare(conn, plan))
    deliver(desk.ledger, plan)


def test_a_new_ledger_of_the_same_name_is_no_restored_one(tmp_path, sandbox, ledger_url):
    with frozen_desk(tmp_path, ledger_url, sandbox, 2, REPLAYS) as desk:
        witnessed(desk, tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    with frozen_desk(other, f"sqlite:///{other / 'new.db'}", sandbox, 2, REPLAYS) as desk:
        witnessed(desk, tmp_path)


def test_an_unknown_of_before_goes_on_being_settled_after_a_move(backed_up):
    """``--moved`` promises that no other copy has sent: nothing becomes unknown by it."""
    _, restored = backed_up(LOOK_UP)
    restored.script(Fault.RESET_AFTER_ACCEPT, 1)
    rebind(restored.ledger, "test", who="me", reason="moved")
    restored.deliver()
    assert restored.counts() == {"sent": 5, "unknown": 1}
    restored.pass_time(61)
    restored.deliver(run_id="run-2")
    assert restored.counts() == {"sent": 6}


def test_the_specification_may_have_changed_since(backed_up, tmp_path):
    """An account that is another one now cannot settle what the old one may have accepted."""
    _, restored = backed_up(REPLAYS)
    bind(restored, born(restored))
    moved = sending_spec(
        tmp_path,
        restored.sandbox,
        REPLAYS,
        gateway={"settings": {"url": restored.sandbox.url, "api_key": "k2"}},
    )
    changed = replace(restored, digest=moved)
    changed.deliver()
    assert {row.hold_reason for row in changed.rows()} == {"other_account"}
    assert changed.sandbox.oracle().accepted_count() == 0


def test_nothing_ends_as_unsent_before_it_was_doubted(backed_up):
    """Closing, or erasing, between the restore and the first run: what waits may have been sent."""
    lost, restored = backed_up(REPLAYS)
    lost.deliver(run_id="lost")
    restored.close_window()
    bind(restored, born(restored), with_account=False)
    closed = close_period(restored.ledger, restored.digest, PERIOD, who="me", reason="old", apply=True)
    assert closed.ended == 0
    erase_customer(
        restored.ledger, "customer-001", digest=None, tenant=None, who="me", reason="asked", apply=True
    )
    assert restored.counts() == {"pending": 6}
    restored.deliver(run_id="restored")
    assert restored.counts() == {"unknown": 6}
    assert_once_each(restored, EVERYBODY)


def test_addresses_that_repeat_are_merged_in_a_period_that_begins_in_doubt(backed_up, tmp_path):
    """What is decided before the content's seal is decided as ever; only what waits is doubted."""
    _, restored = backed_up(LOOK_UP, shared_address="merge")
    for table in ("content", "delivery", "manifest_entry", "manifest_exclusion", "manifest"):
        restored.sql(f"DELETE FROM {table}")
    bind(restored, born(restored))
    with closing(sqlite3.connect(tmp_path / "source.db")) as database, database:
        database.execute("UPDATE customers SET email = 'family@example.test'")
    with Source(source_url(tmp_path)) as source:
        ids = frozen_period(restored.ledger, restored.digest, PERIOD, source)
    again = replace(restored, manifest_ids=ids)
    assert again.counts() == {"pending": 1, "suppressed": 5}
    again.deliver()
    assert again.counts() == {"unknown": 1, "suppressed": 5}

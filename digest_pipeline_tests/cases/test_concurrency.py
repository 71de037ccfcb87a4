"""Somebody ran two of them. Here the ledger decides, on any connection, and nobody waits behind a stranger."""

import re
import sqlite3
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import dagster as dg
import pytest
from sqlalchemy import create_engine, event, pool
from sqlalchemy.exc import DBAPIError

import digest_pipeline
from digest_pipeline.ledger import engine, reads, transitions
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline_tests.cases.stage import shell_before, wait_until
from digest_pipeline_tests.harness.delivering import NEITHER, REPLAYS, assert_once_each, empty_desk, key_of
from digest_pipeline_tests.harness.ledgers import another, customer, migrated, plant

PACKAGE = Path(digest_pipeline.__file__).parent
on_sqlite = pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)


@contextmanager
def ledger_of_a_standby(desk, url):
    """Open the ledger as a replica would be: it answers, and takes no write."""
    ledger = Ledger(url)
    if desk.ledger.is_postgresql:
        desk.sql(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', "
            "current_database()); END $$"
        )
    else:
        event.listen(ledger.engine, "connect", lambda conn, _: conn.execute("PRAGMA query_only = ON"))
    with ledger:
        yield ledger


def test_a_ledger_that_takes_no_writes_sends_nothing(open_desk, ledger_url):
    """CON-02: a stale replica answers every question, and is no place to claim from."""
    desk = open_desk(3, can=NEITHER)
    with ledger_of_a_standby(desk, ledger_url) as standby:
        with standby.read() as conn:
            assert reads.entry_count(conn, desk.manifest_ids) == 3
        with pytest.raises(DBAPIError):
            desk.as_process(standby).deliver()
    assert desk.sandbox.control.statistics()["arrivals"] == 0


@pytest.mark.parametrize("state", ["claimed", "sent", "unknown", "dead"])
def test_a_claim_of_a_row_that_has_moved_meanwhile_takes_nothing(open_desk, state):
    """CON-02: whoever chose the rows, only those that still wait are claimed."""
    desk = open_desk(2)
    manifest = desk.manifest_ids[0]
    plant(desk.ledger, manifest, 2, state)
    rows = [{"manifest_id": manifest, "ordinal": n, "token": 900 + n} for n in (1, 2)]
    with desk.ledger.write() as conn:
        taken = transitions.claim(conn, rows, 60_000_000, "run-1/s1", "sandbox", "a1")
    assert [row.ordinal for row in taken] == [1]


@pytest.mark.postgresql
@pytest.mark.parametrize("ledger_url", ["postgresql"], indirect=True)
def test_senders_whose_every_transaction_is_another_session_share_a_period(
    open_desk, ledger_url, monkeypatch
):
    """CON-03: no state of a session survives, as behind a transaction pooler."""
    desk = open_desk(40, can=NEITHER)

    def without_pool(url, **given):
        kept = {name: value for name, value in given.items() if name not in ("pool_size", "max_overflow")}
        return create_engine(url, **kept, poolclass=pool.NullPool)

    monkeypatch.setattr(engine, "create_engine", without_pool)
    with migrated(ledger_url) as here, migrated(ledger_url) as there:
        one = desk.as_process(here).deliver_meanwhile(run_id="run-1")
        two = desk.as_process(there).deliver_meanwhile(run_id="run-2")
        assert one.result().accepted + two.result().accepted == 40
    assert_once_each(desk, range(1, 41))


def test_nothing_in_the_package_needs_a_session():
    """CON-03: no lock, no listener and no temporary table that belongs to a connection."""
    of_a_session = re.compile(
        r"pg_(try_)?advisory_(un)?lock|\bLISTEN\b|\bSET SESSION\b|TEMP(ORARY)? TABLE|\bPREPARE\b"
    )
    found = [
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path in PACKAGE.rglob("*.py")
        for line in path.read_text("utf-8").splitlines()
        if of_a_session.search(line)
    ]
    assert found == []


@contextmanager
def writes_blocked(ledger):
    """Let nobody write to the ledger, while everybody may read."""
    with another(ledger) as other, other.write() as conn:
        if other.is_postgresql:
            # In the order in which a sender takes them: a deadlock would end one of us.
            conn.exec_driver_sql("LOCK TABLE rate_gate, delivery, attempt, manifest IN EXCLUSIVE MODE")
        yield


def test_a_sender_that_cannot_write_starts_no_send_that_could_outlive_its_lease(open_desk, ledger_url):
    """CON-05: the ledger is blocked for longer than a lease, and the provider works all the while."""
    desk = open_desk(80, can=REPLAYS, rate={"per_second": 30, "burst": 10})
    desk.change(lease_seconds=4, timeout_seconds=0.5)
    with migrated(ledger_url) as mine:
        run = desk.as_process(mine).deliver_meanwhile()
        desk.sandbox.control.wait(accepted=10)
        with writes_blocked(desk.ledger):
            leases = {row.ordinal: row.lease_ends for row in desk.rows() if row.state == "claimed"}
            assert leases

            def every_lease_is_over():
                with desk.ledger.read() as conn:
                    return reads.now(conn) > max(leases.values())

            wait_until(every_lease_is_over)
            arrived = list(desk.sandbox.control.arrivals())
        run.result()
    last_start = {key_of(number): ends - 500_000 for number, ends in leases.items()}
    assert [one for one in arrived if one["at_us"] > last_start.get(one["operation_key"], 2**60)] == []
    assert max(one["at_us"] for one in arrived) < max(leases.values())
    for number in range(2, 5):
        desk.pass_time(61)
        desk.deliver(run_id=f"run-{number}")
    assert desk.counts() == {"sent": 80}
    assert_once_each(desk, range(1, 81))


@on_sqlite
def test_an_event_log_that_fails_right_after_the_sends_costs_nobody_a_second_mail(open_rim, monkeypatch):
    """CON-08: Dagster's own storage is locked when the sending step reports its end."""
    rim = open_rim()
    handle = dg.DagsterInstance.handle_new_event
    broken: list[str] = []

    def locked(self, event, **keywords):
        done = event.is_dagster_event and event.get_dagster_event().event_type_value == "STEP_OUTPUT"
        if done and "send_batches" in str(event.step_key) and not broken:
            broken.append(event.step_key)
            raise sqlite3.OperationalError("database is locked")
        return handle(self, event, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(dg.DagsterInstance, "handle_new_event", locked)
        with suppress(sqlite3.OperationalError):  # or the whole run dies of it
            assert not rim.materialise().success
    assert broken
    assert rim.states() == {"sent": 5}
    assert rim.materialise().success
    assert rim.accepted() == {rim.key_of(n): 1 for n in range(1, 6)}
    assert rim.states() == {"cleaned": 5}


@on_sqlite
@pytest.mark.slow
def test_two_commands_that_run_one_period_at_once_both_end_well(tmp_path, ledger_url, sandbox):
    """CON-11: one of them freezes and sends, the other finds it done or shares it."""
    with empty_desk(tmp_path, ledger_url, sandbox, 20, NEITHER) as desk:
        shells = [
            shell_before(tmp_path, ledger_url, sandbox, DIGEST_HOME=str(tmp_path / f"h{n}")) for n in (1, 2)
        ]
        said = []
        both = [
            threading.Thread(
                target=lambda shell=shell: said.append(
                    shell.run("run", "--digest", "tiny_digest", "--period", "2025-W10", "--json")
                )
            )
            for shell in shells
        ]
        for one in both:
            one.start()
        for one in both:
            one.join()
        assert [one.code for one in said] == [0, 0], [one.err for one in said]
        assert sum(one.json["sent_now"] for one in said) == 20
        assert {one.json["states"]["cleaned"] for one in said} == {20}
        assert desk.counts() == {"cleaned": 20}
    assert_once_each(desk, range(1, 21))


def test_a_small_tenant_does_not_wait_behind_a_large_one(open_desk_for):
    """CON-14: they share one account's rate, and take turns in it."""
    large = [customer(n, tenant="t1") for n in range(1, 301)]
    small = [customer(n, tenant="t2") for n in range(301, 306)]
    desk = open_desk_for(
        *large, *small, tenants={"mode": "column"}, rate={"per_second": 100, "burst": 30}, can=NEITHER
    )
    desk.deliver()
    order = [one["operation_key"] for one in desk.sandbox.control.arrivals()]
    assert len(order) == 305
    places = [place for place, key in enumerate(order) if ":t2/" in key]
    assert len(places) == 5
    assert max(places) < 60

"""Many senders on one ledger: one acceptance each, and the gate's promise as the provider sees it."""

import itertools
import math

import pytest
from sqlalchemy import create_engine, select

from digest_pipeline.delivery import claiming, clock
from digest_pipeline.delivery.turns import Turns
from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline.ledger import engine
from digest_pipeline.ledger.schema import attempt
from digest_pipeline_tests.harness.delivering import assert_once_each, frozen_desk, key_of, send_from
from digest_pipeline_tests.harness.ledgers import migrated


@pytest.mark.postgresql
@pytest.mark.parametrize("senders", [2, 4, 8])
def test_processes_share_one_period_and_one_rate(tmp_path, postgres_url, sandbox, nursery, senders):
    """CON-01, CON-14, DUP-21."""
    rate, burst, customers = 50, 40, 200
    paced = {"per_second": rate, "burst": burst}
    with frozen_desk(tmp_path, postgres_url, sandbox, customers, rate=paced) as desk:
        done = send_from(nursery, tmp_path, postgres_url, senders)
        assert sum(one["accepted"] for one in done) == customers
        assert desk.counts() == {"sent": customers}
    assert_once_each(desk, range(1, customers + 1))
    oracle = sandbox.oracle()
    for window in (1, 2, 3, 4, 5):
        assert oracle.max_arrivals(window) <= rate * window + burst


def test_two_processes_share_one_ledger_file(tmp_path, sqlite_url, sandbox, nursery):
    """CON-07: a writer that finds the file busy waits, and no result is lost of it."""
    with frozen_desk(tmp_path, sqlite_url, sandbox, 120) as desk:
        done = send_from(nursery, tmp_path, sqlite_url, 2)
        assert sum(one["accepted"] for one in done) == 120
        assert desk.counts() == {"sent": 120}
    assert_once_each(desk, range(1, 121))


def test_twenty_slow_sends_hold_no_connection(open_desk, ledger_url, monkeypatch):
    """CON-10."""
    desk = open_desk(20, sending={"concurrency": 20, "timeout_seconds": 20})
    desk.sandbox.control.script(Rule(Fault.HELD_AFTER_ACCEPT, share=1.0))
    only_one = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 10}
    monkeypatch.setattr(
        engine, "create_engine", lambda url, **given: create_engine(url, **{**given, **only_one})
    )
    with migrated(ledger_url) as narrow:
        run = desk.as_process(narrow).deliver_meanwhile()
        desk.sandbox.control.wait(accepted=20)
        with narrow.read():
            assert desk.counts() == {"claimed": 20}
        desk.sandbox.control.release()
        assert run.result().accepted == 20
    assert desk.counts() == {"sent": 20}


@pytest.mark.parametrize("stored", [-5.0, 0.0, math.inf])
def test_a_stored_rate_that_cannot_be_one_lets_one_through_a_second(open_desk, stored):
    """CON-12: three takers, one permit between them."""
    desk = open_desk(10)
    desk.deliver(run_id="run-0")
    desk.sql("UPDATE delivery SET state = 'pending', due_at = 1, finished_at = NULL, proof = NULL")
    desk.sql("UPDATE rate_gate SET per_second = :stored, next_free_at = 0", stored=stored)
    plan = desk.plan()
    taken = [
        desk.ledger.transact(lambda conn: claiming.claim(conn, plan, Turns(desk.manifest_ids), 10, 0.0))
        for _ in range(3)
    ]
    assert [len(one.rows) for one in taken] == [1, 0, 0]
    assert all(one.again_in is not None for one in taken[1:])


def test_a_claim_that_is_used_too_late_is_released_before_the_wire(open_desk, monkeypatch):
    """CON-05: the machine slept for an hour between the claim and its send."""
    desk = open_desk(5)
    looks = itertools.count()
    real = clock.now
    monkeypatch.setattr(clock, "now", lambda: real() + (3600 if next(looks) else 0))
    desk.deliver()
    with desk.ledger.read() as conn:
        released = conn.execute(select(attempt).where(attempt.c.outcome == "released")).all()
    assert len(released) == 5
    assert not any(one.charged for one in released)
    assert all(desk.sandbox.oracle().attempts(key_of(n)) == 1 for n in range(1, 6))
    assert_once_each(desk, range(1, 6))

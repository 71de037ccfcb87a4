"""Somebody's customers got nothing. Here every one of them ends, or waits, where it can be seen."""

import signal

import pytest

from digest_pipeline.cleanup.clean import clean
from digest_pipeline.faults import Point
from digest_pipeline.lab.nursery import End
from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline.ledger import reads, transitions
from digest_pipeline.reconciliation.invariants import every_delivery_is_visible
from digest_pipeline_tests.cases.stage import Workers
from digest_pipeline_tests.harness.delivering import (
    NEITHER,
    REPLAYS,
    assert_once_each,
    empty_desk,
    frozen_desk,
    key_of,
    sending_spec,
)
from digest_pipeline_tests.harness.ledgers import LABEL, customer, dump, write_customers
from digest_pipeline_tests.harness.rim import failures

KILLED = End(signal=signal.SIGKILL)
DAY = 86_400
on_sqlite = pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)


def summary(desk):
    with desk.ledger.read() as conn:
        return reads.summarise(conn, reads.manifest_ids(conn, "tiny_digest", LABEL))


def test_what_a_killed_sender_had_not_sent_is_sent_and_the_states_say_what_is_left(
    tmp_path, ledger_url, sandbox, nursery
):
    """LOST-01: killed after 40 of 100; nothing but the rows' states says how far it came."""
    sandbox.change(latency_ms=10)
    paced = {"per_second": 200, "burst": 60}
    with empty_desk(tmp_path, ledger_url, sandbox, 100, REPLAYS, rate=paced) as desk:
        workers = Workers(nursery, tmp_path, ledger_url)
        assert workers.start(f"{Point.AFTER_PROVIDER_CALL}:kill:40").wait() == KILLED
        left = summary(desk)
        assert sum(left.states.values()) == left.entries == 100
        assert left.states["pending"] > 0
        assert not left.is_settled
        desk.pass_time(91)
        workers.start().report()
        done = summary(desk)
        assert (done.is_settled, done.states["cleaned"], done.coverage) == (True, 100, 1.0)
    assert_once_each(desk, range(1, 101))


def test_a_sender_told_to_stop_while_it_waits_for_the_rate_leaves_an_incomplete_period(
    tmp_path, ledger_url, sandbox, nursery
):
    """LOST-02: SIGTERM during the limiter's wait; the manifest's numbers add up before and after."""
    slow = {"per_second": 8, "burst": 4}
    with frozen_desk(tmp_path, ledger_url, sandbox, 40, REPLAYS, rate=slow) as desk:
        workers = Workers(nursery, tmp_path, ledger_url)
        running = workers.start(only_deliver=True)
        sandbox.control.wait(accepted=10)
        running.send(signal.SIGTERM)
        assert running.wait() == End(signal=signal.SIGTERM)
        left = summary(desk)
        assert not left.is_settled
        assert left.states["sent"] + left.states["claimed"] + left.states["pending"] == left.entries == 40
        assert left.states["pending"] > 0
        desk.pass_time(91)
        sending_spec(tmp_path, sandbox, REPLAYS, rate={"per_second": 500, "burst": 200})
        workers.start(only_deliver=True).report()
        assert (summary(desk).is_settled, summary(desk).states["sent"]) == (True, 40)
    assert_once_each(desk, range(1, 41))


@pytest.mark.parametrize("point", [Point.MANIFEST_SEALED, Point.CONTENT_BUILDING, Point.BEFORE_FIRST_CLAIM])
def test_a_period_that_was_frozen_and_never_sent_is_seen_and_finished_by_the_next_run(
    tmp_path, ledger_url, sandbox, nursery, point
):
    """LOST-04: the process died between the commit of the manifest and the first send."""
    with empty_desk(tmp_path, ledger_url, sandbox, 6, NEITHER) as desk:
        workers = Workers(nursery, tmp_path, ledger_url)
        assert workers.start(f"{point}:kill:1").wait() == KILLED
        with desk.ledger.read() as conn:
            assert reads.frozen_periods(conn, "tiny_digest") == [LABEL]
        left = summary(desk)
        assert (left.states["pending"], left.coverage, left.is_settled) == (6, 0.0, False)
        assert left.oldest_pending_seconds is not None
        workers.start().report()
        assert desk.counts() == {"cleaned": 6}
    assert_once_each(desk, range(1, 7))


def test_a_claim_that_nobody_ended_is_an_alarm_and_then_unknown_and_never_pending_again(
    tmp_path, ledger_url, sandbox, nursery
):
    """LOST-07: killed between the claim and the outcome, and left alone for a day."""
    with empty_desk(tmp_path, ledger_url, sandbox, 4, NEITHER, sending={"concurrency": 1}) as desk:
        workers = Workers(nursery, tmp_path, ledger_url)
        assert workers.start(f"{Point.BEFORE_PROVIDER_CALL}:kill:1").wait() == KILLED
        stuck = desk.counts()["claimed"]
        ids = (desk.rows()[0].manifest_id,)
        desk.pass_time(DAY)
        with desk.ledger.read() as conn:
            seen = every_delivery_is_visible(conn, desk.digest, ids)
        assert seen.violations == stuck
        assert "digest run" in seen.next_command
        workers.start().report()
        assert desk.counts()["unknown"] == stuck
        assert summary(desk).held == {"no_evidence": stuck}
        with desk.ledger.read() as conn:
            assert every_delivery_is_visible(conn, desk.digest, ids).holds
        desk.pass_time(DAY)
        workers.start().report()
        assert desk.counts()["unknown"] == stuck
    assert sandbox.oracle().accepted_count() == 4 - stuck


def test_a_message_that_cannot_be_made_any_more_stops_alone_and_is_a_dead_letter(open_desk):
    """LOST-05: the claim is one thing and the outcome another."""
    desk = open_desk(3)
    desk.sql("DELETE FROM content WHERE ordinal = 2")
    desk.deliver()
    desk.deliver(run_id="run-2")
    assert desk.counts() == {"sent": 2, "failed": 1}
    assert (desk.row(2).failure_class, desk.row(2).attempts) == ("content", 1)
    assert desk.sandbox.oracle().attempts(key_of(2)) == 0


@on_sqlite
@pytest.mark.slow
def test_a_day_that_failed_all_day_is_produced_later_for_exactly_its_own_hours(open_rim):
    """LOST-09: two days later, with orders of the days around it in the source."""
    rim = open_rim(customers=0, cadence="daily", first_period="2025-03-01")
    days = ["2025-03-09", "2025-03-10", "2025-03-11", "2025-03-12"]
    write_customers(rim.folder, [customer(n, orders=(day,)) for n, day in enumerate(days, 1)])
    rim.sandbox.control.script(Rule(Fault.UNAUTHORIZED_401, next=100))
    assert not rim.materialise("2025-03-10").success
    rim.sandbox.control.clear_faults()
    assert failures(rim.materialise("2025-03-12")) == {}
    assert failures(rim.materialise("2025-03-10")) == {}
    assert rim.accepted() == {rim.key_of(4, "2025-03-12"): 1, rim.key_of(2, "2025-03-10"): 1}


def test_a_message_that_never_left_is_failed_and_keeps_its_rows(open_desk):
    """LOST-12: accepted with an id, and rejected by the provider's own rendering afterwards."""
    desk = open_desk(3, cleanup={"proof": "delivered", "delay_hours": 0})
    desk.deliver()
    row = {"manifest_id": desk.manifest_ids[0], "ordinal": 2, "token": desk.row(2).token}
    assert clean(desk.ledger, desk.digest, desk.manifest_ids, "run-1") == 0
    moved = desk.ledger.transact(
        lambda conn: transitions.fail_sent(conn, [{**row, "failure_class": "content"}])
    )
    assert moved == {row["token"]}
    desk.pass_time(400 * DAY)
    assert clean(desk.ledger, desk.digest, desk.manifest_ids, "run-2") == 0
    assert (desk.row(2).state, desk.row(2).failure_class, desk.row(2).proof) == ("failed", "content", None)
    assert len(dump(desk.ledger, "content")) == 3
    with desk.ledger.read() as conn:
        told = reads.summarise(conn, desk.manifest_ids)
    assert (told.failed, told.coverage) == ({"content": 1}, 2 / 3)


@on_sqlite
def test_a_period_whose_run_failed_before_it_was_frozen_can_be_asked_for_again(open_rim):
    """LOST-14: what is remembered about a period is in the ledger, and there is nothing yet."""
    rim = open_rim()
    source = rim.folder / "source.db"
    away = source.rename(rim.folder / "away.db")
    done = rim.materialise()
    assert any("eligible_customers" in step for step in failures(done))
    assert rim.accepted() == {}
    away.replace(source)
    assert failures(rim.materialise()) == {}
    assert rim.accepted() == {rim.key_of(n): 1 for n in range(1, 6)}


def test_two_customers_behind_one_address_both_get_theirs(open_desk_for):
    """LOST-15: two accounts, two digests."""
    desk = open_desk_for(*(customer(n, email="Office@example.test") for n in (1, 2)))
    desk.deliver()
    assert_once_each(desk, range(1, 3))


def test_where_addresses_are_merged_the_second_customer_is_suppressed_and_visible(open_desk_for):
    """LOST-15: the other choice, by configuration; and one with nothing to tell is not the one who is kept."""
    desk = open_desk_for(
        customer(1, email="office@example.test", hidden=1),
        customer(2, email="office@example.test"),
        customer(3, email="OFFICE@Example.Test"),
        customer(4),
        shared_address="merge",
    )
    desk.deliver()
    assert [row.suppression for row in desk.rows()] == ["empty", None, "shared_address", None]
    with desk.ledger.read() as conn:
        assert reads.summarise(conn, desk.manifest_ids).suppressed == {"empty": 1, "shared_address": 1}
    assert list(desk.sandbox.oracle().accepted_keys()) == [key_of(2), key_of(4)]


def test_an_accepted_message_is_called_accepted_and_not_delivered(open_desk):
    """LOST-11: what is only accepted keeps its rows where cleanup waits for more."""
    desk = open_desk(3, cleanup={"proof": "delivered", "delay_hours": 0})
    desk.deliver()
    assert {(row.state, row.proof) for row in desk.rows()} == {("sent", "accepted")}
    desk.pass_time(400 * DAY)
    assert clean(desk.ledger, desk.digest, desk.manifest_ids, "run-1") == 0
    assert len(dump(desk.ledger, "content")) == 3

"""When a run stops or waits for everybody: the account, the rate, the connection, the time, the window."""

import pytest
from sqlalchemy import event

from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline.ledger import reads
from digest_pipeline_tests.harness.delivering import assert_once_each
from digest_pipeline_tests.harness.ledgers import plant


def test_a_refused_account_stops_the_run_and_leaves_every_row_as_it_was(open_desk):
    """LOST-19, CLS-05."""
    desk = open_desk(30)
    desk.sandbox.control.script(Rule(Fault.UNAUTHORIZED_401, next=1_000))
    first = desk.deliver()
    assert first.halted is not None
    assert first.halted.startswith("account: 401")
    assert {(row.state, row.attempts, row.budget_from) for row in desk.rows()} == {("pending", 0, None)}
    asked = desk.sandbox.control.statistics()["arrivals"]
    assert 1 <= asked <= desk.digest.sending.concurrency

    second = desk.deliver(run_id="run-2")
    assert second.halted == first.halted
    assert desk.sandbox.control.statistics()["arrivals"] == asked + 1  # one probe and no more
    assert {(row.state, row.attempts) for row in desk.rows()} == {("pending", 0)}


def test_after_the_account_is_mended_the_next_run_sends_one_probe_and_then_everybody(open_desk):
    desk = open_desk(12)
    desk.sandbox.control.script(Rule(Fault.UNAUTHORIZED_401, next=1_000))
    desk.deliver()
    before = desk.sandbox.control.statistics()["arrivals"]
    desk.sandbox.control.clear_faults()
    desk.sandbox.control.script(Rule(Fault.SLOW, next=1, delay=0.5))
    assert desk.deliver(run_id="run-2").halted is None
    probe, other = list(desk.sandbox.control.arrivals())[before : before + 2]
    assert other["at_us"] >= probe["at_us"] + 500_000  # only once the probe was answered
    assert desk.counts() == {"sent": 12}
    assert_once_each(desk, range(1, 13))


def test_a_429_closes_the_gate_for_everybody_and_costs_nobody_an_attempt(open_desk):
    """CLS-02, CLS-10: a longer pause than the run waits for ends the run, and is nobody's failure."""
    desk = open_desk(6, sending={"concurrency": 1, "lanes": 1})
    desk.sandbox.control.script(Rule(Fault.THROTTLED_429, next=1, retry_after=7_200))
    begun: list[object] = []
    event.listen(desk.ledger.engine, "begin", begun.append)
    first = desk.deliver()
    assert (first.accepted, first.halted, first.out_of_time) == (0, None, False)
    assert len(begun) < 50  # it ended, and did not turn on the spot until its time was up
    other = desk.deliver(run_id="run-2", sender="s2")
    assert (other.accepted, other.out_of_time) == (0, False)
    assert desk.sandbox.control.statistics()["arrivals"] == 1
    assert {(row.state, row.attempts) for row in desk.rows()} == {("pending", 0)}

    desk.pass_time(7_200)
    assert desk.deliver(run_id="run-3").accepted == 6
    assert {(row.state, row.attempts) for row in desk.rows()} == {("sent", 1)}
    assert_once_each(desk, range(1, 7))


@pytest.mark.parametrize("fault", [Fault.THROTTLED_429, Fault.THROTTLED_429_DATE])
def test_a_short_pause_is_waited_for_and_respected(open_desk, fault):
    desk = open_desk(6, sending={"concurrency": 1, "lanes": 1})
    desk.sandbox.control.script(Rule(fault, next=1, retry_after=1))
    assert desk.deliver().accepted == 6
    first, second = list(desk.sandbox.control.arrivals())[:2]
    assert second["at_us"] - first["at_us"] >= 1_000_000
    assert_once_each(desk, range(1, 7))


def test_connect_failures_in_a_row_halt_and_the_next_run_goes_on_when_the_provider_is_back(open_desk):
    desk = open_desk(40, retry={"connect_failures_to_halt": 5})
    desk.sandbox.stop()
    try:
        down = desk.deliver()
    finally:
        desk.sandbox.start()
    assert down.halted == "connect: the provider cannot be reached"
    assert set(desk.counts()) <= {"pending", "retry"}
    assert 5 <= len([a for a in desk.attempts() if a.outcome == "not_sent"]) <= 5 + 2 * 8
    desk.pass_time(1)
    assert desk.deliver(run_id="run-2").halted is None
    assert desk.counts() == {"sent": 40}
    assert_once_each(desk, range(1, 41))


def test_a_run_out_of_time_leaves_its_rows_and_the_next_one_goes_on(open_desk):
    """LOST-02: the manifest's numbers add up at any moment."""
    desk = open_desk(40, rate={"per_second": 20, "burst": 6}, sending={"run_limit_seconds": 1})
    stopped = desk.deliver()
    assert stopped.out_of_time
    counts = desk.counts()
    assert set(counts) == {"sent", "pending"}
    assert sum(counts.values()) == 40
    desk.change(run_limit_seconds=60)
    desk.digest = desk.digest.model_copy(
        update={"rate": desk.digest.rate.model_copy(update={"per_second": 5_000, "burst": 5_000})}
    )
    done = desk.deliver(run_id="run-2")
    assert (done.out_of_time, done.accepted) == (False, counts["pending"])
    assert_once_each(desk, range(1, 41))


def test_a_closed_window_ends_what_was_tried_and_holds_what_never_was(open_desk):
    desk = open_desk(4)
    plant(desk.ledger, desk.manifest_ids[0], 1, "retry", attempts=1)
    desk.close_window()
    assert desk.deliver().window_closed == 1
    assert (desk.row(1).state, desk.row(1).failure_class) == ("dead", "window")
    assert desk.counts() == {"dead": 1, "pending": 3}
    with desk.ledger.read() as conn:
        assert reads.summarise(conn, desk.manifest_ids).held == {"window_closed": 3}
    assert desk.sandbox.control.statistics()["arrivals"] == 0


def test_a_permission_to_be_late_sends_what_was_held(open_desk):
    desk = open_desk(4)
    desk.close_window()
    desk.deliver()
    desk.sql("UPDATE manifest SET late_until = :until", until=2**60)
    assert desk.deliver(run_id="run-2").accepted == 4
    assert_once_each(desk, range(1, 5))


def test_a_run_ends_when_nothing_is_due_though_the_gate_grants_less_than_a_lane_could_use(open_desk):
    """A gate that granted some permits is not why nothing was claimed."""
    slow = {"per_second": 10, "burst": 5}
    desk = open_desk(8, rate=slow, sending={"concurrency": 20, "run_limit_seconds": 20})
    done = desk.deliver()
    assert (done.out_of_time, desk.counts()) == (False, {"sent": 8})
    assert not desk.deliver(run_id="run-2").out_of_time

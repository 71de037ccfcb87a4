"""A period that is sent through an SMTP relay: what its replies do to the rows of the ledger."""

import pytest

from digest_pipeline.lab.smtp.script import DROP, SILENCE, Scripted
from digest_pipeline_tests.gateways.stands_local import gateway_to
from digest_pipeline_tests.harness.delivering import key_of


@pytest.fixture
def relay(open_stands):
    process = open_stands("smtp").process
    process.control.reset()
    return process


def deliver(desk, relay, *, runs=1, **settings):
    known = {"time_out": "2s"} | settings
    return [desk.deliver(gateway_to(relay, **known), run_id=f"run-{run}") for run in range(runs)]


def to(number, step, action, **more):
    """An order for one customer's message alone."""
    return Scripted(step, action, recipient=f"reader-{number}@example.test", **more)


def accepted(relay):
    return sorted(relay.oracle().accepted_keys()), list(relay.oracle().duplicates())


def everybody_but(number, of=5):
    return [key_of(one) for one in range(1, of + 1) if one != number], []


def test_a_refused_address_stops_nobody_else_and_is_never_tried_again(open_desk, relay):
    """LOST-17."""
    desk = open_desk(5)
    relay.script(to(3, "rcpt", "550 5.1.1 no such user", times=99))
    deliver(desk, relay, runs=3)
    assert desk.counts() == {"sent": 4, "failed": 1}
    assert (desk.row(3).failure_class, desk.row(3).attempts) == ("recipient", 1)
    assert accepted(relay) == everybody_but(3)


def test_a_sender_that_is_not_authorised_halts_and_leaves_what_was_accepted_as_sent(open_desk, relay):
    """DUP-06: the account is refused at the second of two messages, in each of three runs."""
    desk = open_desk(2)
    relay.script(to(2, "dot", "550 5.7.26 this sender is not authenticated", times=99))
    runs = deliver(desk, relay, runs=3)
    assert all(run.halted for run in runs)
    assert (desk.row(1).state, desk.row(2).state, desk.row(2).attempts) == ("sent", "pending", 0)
    assert accepted(relay) == everybody_but(2, of=2)


@pytest.mark.parametrize("action", [SILENCE, DROP])
def test_a_lost_reply_to_the_final_dot_is_unknown_and_never_sent_again_by_itself(open_desk, relay, action):
    """DUP-07: five runs, and days go by."""
    desk = open_desk(3)
    relay.script(to(2, "dot", action, accepts=True))
    for _ in range(5):
        deliver(desk, relay, time_out="500ms")
        desk.pass_time(3_600)
    assert desk.counts() == {"sent": 2, "unknown": 1}
    assert (desk.row(2).hold_reason, desk.row(2).due_at) == ("no_evidence", None)
    assert accepted(relay) == ([key_of(one) for one in (1, 2, 3)], [])


@pytest.mark.parametrize("action", ["421 4.4.2 closing", DROP])
def test_what_happens_while_the_connection_is_torn_down_changes_no_verdict(open_desk, relay, action):
    """DUP-09: the queue's id of the 250 is kept."""
    desk = open_desk(2)
    relay.script(Scripted("quit", action, times=9))
    deliver(desk, relay)
    assert desk.counts() == {"sent": 2}
    said = {one.operation_key: one.message_id for one in relay.oracle().acceptances()}
    assert [desk.row(number).message_id for number in (1, 2)] == [said[key_of(1)], said[key_of(2)]]


def test_a_greylisted_recipient_is_sent_to_some_minutes_later_and_suppressed_for_nobody(open_desk, relay):
    """CLS-01: with a backoff of a twentieth of a second."""
    desk = open_desk(3)
    relay.script(to(2, "rcpt", "450 4.2.0 greylisted"))
    deliver(desk, relay, runs=2)
    assert (desk.row(2).state, desk.row(2).failure_class) == ("retry", "transient")
    desk.pass_time(200)
    deliver(desk, relay)
    assert desk.row(2).state == "retry"
    desk.pass_time(101)
    deliver(desk, relay)
    assert desk.counts() == {"sent": 3}
    assert desk.sql("SELECT count(*) FROM suppression") == [(0,)]


def test_throttling_takes_no_attempt_of_anybody_and_everybody_gets_it_in_the_end(open_desk, relay):
    """CLS-02."""
    desk = open_desk(6)
    relay.script(*(to(number, "dot", "454 4.7.0 too many messages", times=2) for number in (1, 2, 3)))
    for _ in range(7):
        deliver(desk, relay)
        desk.pass_time(6)
    assert desk.counts() == {"sent": 6}
    assert {row.attempts for row in desk.rows()} == {1}
    assert accepted(relay) == everybody_but(None, of=6)


@pytest.mark.parametrize(
    ("orders", "settings", "reason"),
    [
        ([Scripted("auth", "535 5.7.8 no", times=99)], {}, "credentials"),
        ([Scripted("auth", "454 4.7.0 try later", times=99)], {}, "transient account"),
        ([], {"security": "none", "host": "127.0.0.1"}, "configuration"),
    ],
)
def test_a_login_that_fails_changes_no_row_and_halts_at_once(open_desk, relay, orders, settings, reason):
    """CLS-05: refused, refused for now, and no mechanism that both sides know."""
    desk = open_desk(5)
    before = [(row.state, row.attempts, row.ambiguous_at) for row in desk.rows()]
    relay.script(*orders)
    (run,) = deliver(desk, relay, **settings)
    assert reason in run.halted
    assert [(row.state, row.attempts, row.ambiguous_at) for row in desk.rows()] == before
    assert accepted(relay) == ([], [])
    relay.control.reset()
    deliver(desk, relay)
    assert desk.counts() == {"sent": 5}


def test_of_five_permanent_and_passing_replies_each_does_what_it_says(open_desk, relay):
    """CLS-03: a refused address, spam, a closing server, a message that is too large, and nonsense."""
    desk = open_desk(5)
    relay.script(
        to(1, "rcpt", "550 5.1.1 no such user", times=9),
        to(2, "dot", "554 5.7.1 looks like spam", times=9),
        to(3, "rcpt", "421 4.3.2 closing"),
        to(4, "dot", "552 5.3.4 too large", times=9),
        to(5, "dot", "999 what?", times=9, accepts=True),
    )
    deliver(desk, relay, runs=2)
    assert [(desk.row(one).state, desk.row(one).failure_class) for one in (1, 2, 4)] == [
        ("failed", "recipient"), ("failed", "content"), ("failed", "content"),
    ]  # fmt: skip
    assert [desk.row(one).attempts for one in (1, 2, 4)] == [1, 1, 1]
    assert (desk.row(3).state, desk.row(5).state) == ("sent", "unknown")
    assert accepted(relay) == ([key_of(3), key_of(5)], [])

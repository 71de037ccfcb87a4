"""A run against the real provider: what each fault ends as, and that no rerun sends anything twice."""

import pytest

from digest_pipeline.content.message import Message
from digest_pipeline.gateways.base import Envelope
from digest_pipeline.lab.sandbox.faults import Fault
from digest_pipeline_tests.harness.delivering import NEITHER, assert_once_each, key_of
from digest_pipeline_tests.harness.ledgers import plant
from digest_pipeline_tests.harness.sandbox import gateway_to, send

ACCEPTED = ["accepted"]
ENDS = {
    Fault.SLOW: ("sent", ACCEPTED),
    Fault.UNAVAILABLE_503: ("sent", ["not_sent", "accepted"]),
    Fault.RESET_BEFORE_ACCEPT: ("sent", ["ambiguous", "accepted"]),
    Fault.RESET_AFTER_ACCEPT: ("sent", ["ambiguous", "accepted"]),
    Fault.BAD_GATEWAY_502_AFTER_ACCEPT: ("sent", ["ambiguous", "accepted"]),
    Fault.TRUNCATED_JSON_AFTER_ACCEPT: ("sent", ["ambiguous", "accepted"]),
    Fault.CUT_BODY_AFTER_ACCEPT: ("sent", ["ambiguous", "accepted"]),
    Fault.HTML_200_AFTER_ACCEPT: ("sent", ["ambiguous", "accepted"]),
    Fault.INVALID_RECIPIENT_422: ("failed", ["refused"]),
    Fault.SERVER_ERROR_500_BEFORE_ACCEPT: ("sent", ["ambiguous", "accepted"]),
    Fault.SERVER_ERROR_500_AFTER_ACCEPT: ("sent", ["ambiguous", "accepted"]),
    Fault.THROTTLED_429: ("sent", ["throttled", "accepted"]),
    Fault.THROTTLED_429_DATE: ("sent", ["throttled", "accepted"]),
}


def made(desk, number):
    """The outcomes of a customer's attempts."""
    return [attempt.outcome for attempt in desk.attempts(number)]


def test_everybody_gets_it_once_and_a_rerun_sends_nothing(open_desk):
    desk = open_desk(20)
    first = desk.deliver()
    again = desk.deliver(run_id="run-2")
    assert (first.accepted, again.accepted) == (20, 0)
    assert desk.counts() == {"sent": 20}
    assert desk.sandbox.control.statistics()["arrivals"] == 20
    assert_once_each(desk, range(1, 21))


def test_every_fault_ends_in_the_state_it_should_and_nobody_else_notices(open_desk):
    desk = open_desk(len(ENDS) + 5)
    faults = dict(enumerate(ENDS, start=1))
    for number, fault in faults.items():
        desk.script(fault, number)
    desk.deliver()
    for number, fault in faults.items():
        state, outcomes = ENDS[fault]
        assert (fault, desk.row(number).state, made(desk, number)) == (fault, state, outcomes)
    for number in range(len(ENDS) + 1, len(ENDS) + 6):
        assert (desk.row(number).state, made(desk, number)) == ("sent", ACCEPTED)
    refused = next(number for number, fault in faults.items() if ENDS[fault][0] == "failed")
    assert list(desk.sandbox.oracle().duplicates()) == []
    assert set(desk.sandbox.oracle().accepted_keys()) == {
        key_of(n) for n in range(1, len(ENDS) + 6) if n != refused
    }
    assert (desk.row(refused).failure_class, desk.row(refused).attempts) == ("recipient", 1)


def test_one_refused_address_never_touches_the_others_and_is_never_tried_again(open_desk):
    """DUP-05, LOST-17."""
    desk = open_desk(19)
    desk.script(Fault.INVALID_RECIPIENT_422, 19, attempts=99)
    for run in range(3):
        desk.deliver(run_id=f"run-{run}")
    assert desk.counts() == {"sent": 18, "failed": 1}
    assert desk.sandbox.oracle().attempts(key_of(19)) == 1
    assert_once_each(desk, range(1, 19))


def test_a_provider_that_answers_too_late_is_asked_once_however_often_the_schedule_ticks(open_desk):
    """DUP-07, DUP-16."""
    desk = open_desk(3, can=NEITHER, sending={"timeout_seconds": 1, "lease_seconds": 60})
    desk.script(Fault.TIMEOUT_AFTER_ACCEPT, 2, attempts=99)
    for run in range(10):
        desk.deliver(run_id=f"run-{run}")
        desk.pass_time(60)
    row = desk.row(2)
    assert (row.state, row.hold_reason, row.due_at) == ("unknown", "no_evidence", None)
    assert desk.sandbox.oracle().attempts(key_of(2)) == 1
    assert_once_each(desk, range(1, 4))


def test_a_proxys_502_and_a_reset_are_ambiguous_and_a_503_is_not(open_desk):
    """DUP-33, with a provider that knows no keys, where a repeat would be a second mail."""
    desk = open_desk(4, can=NEITHER)
    desk.script(Fault.BAD_GATEWAY_502_AFTER_ACCEPT, 1)
    desk.script(Fault.RESET_AFTER_ACCEPT, 2)
    desk.script(Fault.UNAVAILABLE_503, 3)
    desk.deliver()
    assert [row.state for row in desk.rows()] == ["unknown", "unknown", "sent", "sent"]
    assert [desk.sandbox.oracle().attempts(key_of(n)) for n in range(1, 5)] == [1, 1, 2, 1]
    assert_once_each(desk, range(1, 5))


def test_a_transient_failure_that_stays_ends_dead_when_its_budget_is_used_up(open_desk):
    """CLS-01, LOST-05."""
    desk = open_desk(3)
    desk.script(Fault.UNAVAILABLE_503, 2, attempts=99)
    desk.deliver()
    desk.deliver(run_id="run-2")
    row = desk.row(2)
    assert (row.state, row.failure_class, row.attempts, row.due_at) == ("dead", "transient", 3, None)
    assert made(desk, 2) == ["not_sent"] * 3
    assert desk.counts() == {"sent": 2, "dead": 1}


def test_other_bytes_under_our_key_are_held_and_never_get_a_new_key(open_desk):
    """CLS-11."""
    desk = open_desk(3)
    message = Message("Somebody <else@sender.test>", "Reader 2", "Another digest", "text", "<p>text</p>")
    send(gateway_to(desk.sandbox), Envelope(key_of(2), "reader-2@example.test", message))
    desk.deliver()
    desk.pass_time(3_600)
    desk.deliver(run_id="run-2")
    row = desk.row(2)
    assert (row.state, row.hold_reason, row.due_at) == ("unknown", "integrity", None)
    assert desk.sandbox.oracle().attempts(key_of(2)) == 2  # the stranger's request and our one
    assert_once_each(desk, range(1, 4))


def test_a_frozen_message_that_was_changed_is_never_sent(open_desk):
    desk = open_desk(3)
    plant(desk.ledger, desk.manifest_ids[0], 2, "unknown", gateway="sandbox", account=desk.gateway().account)
    desk.sql("UPDATE delivery SET ambiguous_at = claimed_at + 1700000000000000")
    desk.sql(
        "UPDATE content SET document = (SELECT document FROM content WHERE ordinal = 3) WHERE ordinal < 3"
    )
    desk.pass_time(-3600)
    desk.deliver()
    never_sent, ambiguous, untouched = desk.rows()
    assert (never_sent.state, never_sent.failure_class) == ("failed", "content")
    assert ambiguous.state == "unknown"
    assert untouched.state == "sent"
    assert list(desk.sandbox.oracle().accepted_keys()) == [key_of(3)]


class Faulty:
    """A gateway with a bug: it raises for one key, after handing the message over or before."""

    def __init__(self, real, key, hands_over):
        self._real, self._key, self._hands_over, self.raised = real, key, hands_over, 0
        self.name, self.account, self.capabilities = real.name, real.account, real.capabilities

    async def send(self, envelope):
        if envelope.operation_key != self._key or self.raised:
            return await self._real.send(envelope)
        self.raised += 1
        if self._hands_over:
            await self._real.send(envelope)
        raise KeyError("a bug that quotes reader-2@example.test")

    async def look_up(self, operation_key):
        raise ZeroDivisionError

    async def __aenter__(self):
        await self._real.__aenter__()
        return self

    async def __aexit__(self, *error):
        await self._real.__aexit__(*error)


@pytest.mark.parametrize("hands_over", [True, False])
def test_a_gateway_that_raises_hurts_only_the_row_it_was_called_for(open_desk, hands_over):
    desk = open_desk(6)
    gateway = Faulty(desk.gateway(), key_of(2), hands_over)
    desk.deliver(gateway)
    assert gateway.raised == 1
    assert desk.counts() == {"sent": 6}
    assert made(desk, 2) == ["ambiguous", "accepted"]
    assert desk.attempts(2)[0].detail == "the gateway raised KeyError"
    assert_once_each(desk, range(1, 7))

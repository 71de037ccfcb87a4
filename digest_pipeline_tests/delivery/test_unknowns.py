"""What settles an unknown, by what the gateway can do; and that nothing else ever does."""

import pytest

from digest_pipeline.delivery.run import ASKED_IN_VAIN
from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline.reconciliation import settle
from digest_pipeline.reconciliation.evidence import Finding
from digest_pipeline_tests.harness.delivering import (
    BOTH,
    LOOK_UP,
    MICROS,
    NEITHER,
    REPLAYS,
    assert_once_each,
    key_of,
)

TAKEN, NOT_TAKEN = Fault.RESET_AFTER_ACCEPT, Fault.RESET_BEFORE_ACCEPT
ONE_PASS = {"sending": {"in_run_wait_seconds": 0}, "retry": {"base_seconds": 30, "cap_seconds": 30}}
"""Each run makes one pass: what it leaves is due only when time has passed."""


def sends(desk, number):
    """Every request that offered this customer's message, as the provider saw it."""
    key = key_of(number)
    return [one for one in desk.sandbox.control.arrivals(key) if one["route"] == "send"]


@pytest.mark.parametrize("fault", [TAKEN, NOT_TAKEN])
@pytest.mark.parametrize("can", [REPLAYS, BOTH])
def test_where_keys_replay_the_same_bytes_go_again_under_the_same_key(open_desk, can, fault):
    """SEC-06, CLS-11."""
    desk = open_desk(4, can=can)
    desk.script(fault, 2)
    desk.deliver()
    first, second = sends(desk, 2)
    assert first["body_hash"] == second["body_hash"]
    assert first["operation_key"] == second["operation_key"] == key_of(2)
    row = desk.row(2)
    assert (row.state, row.ambiguous_at, row.ambiguous_token) == ("sent", None, None)
    assert [a.replayed for a in desk.attempts(2)] == [False, fault is TAKEN]
    assert_once_each(desk, range(1, 5))


def test_a_look_up_that_finds_the_key_settles_it_without_a_second_request(open_desk):
    desk = open_desk(4, can=LOOK_UP)
    desk.script(TAKEN, 2)
    desk.deliver()
    assert desk.row(2).state == "unknown"
    desk.pass_time(6)
    assert desk.deliver(run_id="run-2").findings == {Finding.SENT: 1}
    (accepted,) = desk.sandbox.oracle().acceptances(key_of(2))
    assert (desk.row(2).state, desk.row(2).message_id) == ("sent", accepted.message_id)
    assert len(sends(desk, 2)) == 1


def test_an_absence_leads_to_a_resend_only_the_second_time_and_apart(open_desk):
    desk = open_desk(4, can=LOOK_UP)
    desk.script(NOT_TAKEN, 2)
    desk.deliver()
    desk.deliver(run_id="run-2")  # too early: an accepted message need not show up yet
    assert (desk.row(2).state, desk.row(2).absent_at) == ("unknown", None)

    desk.pass_time(6)
    assert desk.deliver(run_id="run-3").findings == {Finding.ABSENT_ONCE: 1}
    assert desk.row(2).absent_at is not None
    assert desk.deliver(run_id="run-4").findings == {}
    assert len(sends(desk, 2)) == 1

    desk.pass_time(6)
    assert desk.deliver(run_id="run-5").findings == {Finding.DISPROVED: 1}
    assert desk.row(2).state == "sent"
    assert_once_each(desk, range(1, 5))


def test_an_absence_counts_for_nothing_while_no_known_message_is_found(open_desk):
    desk = open_desk(1, can=LOOK_UP)
    desk.script(NOT_TAKEN, 1)
    for _ in range(4):
        found = desk.deliver()
        assert set(found.findings) <= {Finding.ASK_LATER}
        desk.pass_time(60)
    assert (desk.row(1).state, desk.row(1).absent_at) == ("unknown", None)
    assert len(sends(desk, 1)) == 1


def test_an_absence_counts_for_nothing_while_look_ups_miss_what_was_surely_sent(open_desk):
    desk = open_desk(4, can=LOOK_UP)
    desk.script(NOT_TAKEN, 2)
    desk.deliver()
    desk.sandbox.change(visibility_delay=3_600)  # the provider's index lags behind what it promises
    for _ in range(3):
        desk.pass_time(60)
        assert set(desk.deliver().findings) == {Finding.ASK_LATER}
    assert (desk.row(2).state, desk.row(2).absent_at) == ("unknown", None)
    assert len(sends(desk, 2)) == 1


def test_a_look_up_api_that_is_down_does_not_keep_the_run_from_ending(open_desk, monkeypatch):
    monkeypatch.setattr(settle, "ASK_AGAIN", 400_000)
    monkeypatch.setattr(settle, "apart", lambda capabilities: 400_000)
    desk = open_desk(4, can=LOOK_UP, sending={"in_run_wait_seconds": 0})
    desk.script(TAKEN, 2)
    desk.deliver()
    desk.pass_time(6)
    desk.change(in_run_wait_seconds=5)
    desk.sandbox.control.script(Rule(Fault.UNAVAILABLE_503, next=1_000, route="look_up"))
    ended = desk.deliver(run_id="run-2")
    assert (ended.findings, ended.out_of_time) == ({Finding.ASK_LATER: ASKED_IN_VAIN}, False)
    desk.sandbox.control.clear_faults()
    desk.pass_time(6)
    assert desk.deliver(run_id="run-3").findings == {Finding.SENT: 1}


def test_with_neither_an_unknown_is_held_with_its_reason_and_never_sent_again(open_desk):
    desk = open_desk(6, can=NEITHER)
    desk.script(TAKEN, 2)
    desk.script(NOT_TAKEN, 3)
    for _ in range(3):
        desk.deliver()
        desk.pass_time(86_400)
    for number in (2, 3):
        row = desk.row(number)
        assert (row.state, row.hold_reason, row.due_at) == ("unknown", "no_evidence", None)
        assert len(sends(desk, number)) == 1
    assert desk.counts() == {"sent": 4, "unknown": 2}


@pytest.mark.parametrize(
    ("fault", "outcome", "charged"),
    [
        (Fault.THROTTLED_429, "throttled", False),
        (Fault.UNAVAILABLE_503, "not_sent", True),
        (Fault.INVALID_RECIPIENT_422, "refused", True),
        (Fault.UNAUTHORIZED_401, "account_refused", False),
    ],
)
def test_a_refusal_of_the_second_request_says_nothing_about_the_first(open_desk, fault, outcome, charged):
    desk = open_desk(3, **ONE_PASS)
    desk.script(TAKEN, 2)
    desk.script(fault, 2, attempts=2)
    desk.deliver()
    before = desk.row(2)
    desk.pass_time(60)
    desk.deliver(run_id="run-2")
    after = desk.row(2)
    assert [a.outcome for a in desk.attempts(2)] == ["ambiguous", outcome]
    assert after.state == before.state == "unknown"
    assert after.ambiguous_at == before.ambiguous_at - 60 * MICROS
    assert after.ambiguous_token == before.ambiguous_token == desk.attempts(2)[0].token
    assert after.attempts == before.attempts + charged

    desk.pass_time(61)
    desk.deliver(run_id="run-3")
    assert (desk.row(2).state, desk.attempts(2)[-1].replayed) == ("sent", True)
    assert_once_each(desk, range(1, 4))


def test_a_suspect_beyond_its_retry_budget_is_still_not_given_up(open_desk):
    desk = open_desk(3)
    desk.script(TAKEN, 2)
    desk.script(Fault.UNAVAILABLE_503, 2, attempts=5)
    desk.deliver()
    assert (desk.row(2).state, desk.row(2).attempts) == ("sent", 6)
    assert_once_each(desk, range(1, 4))


@pytest.mark.parametrize("fault", [TAKEN, NOT_TAKEN])
def test_a_key_that_the_provider_may_have_forgotten_is_never_used_again(open_desk, fault):
    """DUP-34."""
    desk = open_desk(3, can={**REPLAYS, "key_lifetime": "5m"}, **ONE_PASS)
    desk.script(fault, 2)
    desk.deliver()
    desk.pass_time(220)
    assert desk.deliver(run_id="run-2").findings == {Finding.NO_EVIDENCE: 1}
    row = desk.row(2)
    assert (row.state, row.hold_reason, row.due_at) == ("unknown", "key_expired", None)
    assert len(sends(desk, 2)) == 1


def test_a_forgotten_key_is_looked_up_where_that_is_possible(open_desk):
    desk = open_desk(3, can={"key_lifetime": "5m"}, **ONE_PASS)
    desk.script(TAKEN, 2)
    desk.deliver()
    desk.pass_time(220)
    assert desk.deliver(run_id="run-2").findings == {Finding.SENT: 1}
    assert desk.row(2).state == "sent"
    assert len(sends(desk, 2)) == 1


@pytest.mark.parametrize("can", [REPLAYS, LOOK_UP], ids=["replays", "look_up"])
def test_another_account_neither_repeats_nor_asks_and_the_right_one_settles_it_later(open_desk, can):
    desk = open_desk(3, can=can, **ONE_PASS)
    desk.script(TAKEN, 2)
    desk.deliver()
    asked = desk.sandbox.control.statistics()["arrivals"]
    desk.pass_time(60)
    desk.deliver(desk.gateway(api_key="another-account"), run_id="run-2")
    row = desk.row(2)
    assert (row.state, row.hold_reason, row.due_at) == ("unknown", "other_account", None)
    assert desk.sandbox.control.statistics()["arrivals"] == asked

    desk.deliver(run_id="run-3")
    assert (desk.row(2).state, desk.row(2).hold_reason) == ("sent", None)
    assert_once_each(desk, range(1, 4))


def test_an_unknown_of_a_closed_window_is_not_repeated_until_it_may_be_late(open_desk):
    desk = open_desk(3, can=REPLAYS, **ONE_PASS)
    desk.script(NOT_TAKEN, 2)
    desk.deliver()
    desk.pass_time(60)
    desk.close_window()
    desk.deliver(run_id="run-2")
    assert (desk.row(2).state, desk.row(2).hold_reason) == ("unknown", "window_closed")
    assert len(sends(desk, 2)) == 1
    desk.sql("UPDATE manifest SET late_until = :until", until=2**60)
    desk.deliver(run_id="run-3")
    assert desk.row(2).state == "sent"
    assert_once_each(desk, range(1, 4))


def test_an_unknown_of_a_closed_window_is_looked_up_all_the_same(open_desk):
    desk = open_desk(3, **ONE_PASS)
    desk.script(TAKEN, 2)
    desk.deliver()
    desk.pass_time(60)
    desk.close_window()
    assert desk.deliver(run_id="run-2").findings == {Finding.SENT: 1}
    assert len(sends(desk, 2)) == 1


def test_an_unknown_to_a_suppressed_address_is_not_repeated(open_desk):
    desk = open_desk(3, can=REPLAYS, **ONE_PASS)
    desk.script(NOT_TAKEN, 2)
    desk.deliver()
    desk.sql(
        "INSERT INTO suppression (tenant, address_hash, reason, since_at) "
        "SELECT 'default', address_hash, 'opted_out', 1 FROM manifest_entry WHERE ordinal = 2"
    )
    desk.pass_time(60)
    desk.deliver(run_id="run-2")
    row = desk.row(2)
    assert (row.state, row.hold_reason, row.due_at) == ("unknown", "no_evidence", None)
    assert len(sends(desk, 2)) == 1
